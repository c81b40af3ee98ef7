"""What the loop asks of an algorithm."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, NamedTuple, Protocol

from nextpolicy.core.shards import Shards
from nextpolicy.settings import Settings
from nextpolicy.types import Array, Evidence, Metrics, Networks, PolicySnapshot, PyTree, Rollout

# How a variant of an algorithm updates its target: every round, every `static_k` rounds, or when the criterion accepts.
Pace = Literal["plain", "static", "dynamic"]


class Parts(NamedTuple):
    """What an algorithm is built from, besides its settings."""

    networks: Networks
    obs_shape: tuple[int, ...]
    batch_size: int  # samples of a round on one shard
    shards: Shards


class Algorithm(Protocol):
    """How a learner learns from a round of data. Every method but the constructor must be traceable by JAX.

    `settings` holds the static settings at construction; in `learn` its traced fields are the member's numbers. Every
    algorithm has a traced `gamma`, since collection sums discounted rewards.
    """

    name: ClassVar[str]
    settings: ClassVar[type[Settings]]
    variants: ClassVar[dict[str, Pace]]  # names for `--algo`

    def __init__(self, settings: Any, parts: Parts) -> None: ...

    def init(self, key: Array) -> PyTree:
        """A fresh learner: parameters, optimiser, statistics."""
        ...

    def behaviour(self, learner: Any) -> PolicySnapshot:
        """The policy that collects data."""
        ...

    def learn(
        self, settings: Any, learner: Any, target: PolicySnapshot, rollout: Rollout, key: Array, progress: Array
    ) -> tuple[PyTree, Evidence, Metrics]:
        """Evaluate the frozen target on the rollout and improve the behavioural policy against it.

        key       the same on all shards
        progress  share of the rounds done, in [0, 1)
        """
        ...

    def warm_up(self, learner: Any, rollout: Rollout) -> PyTree:
        """Learn nothing from random actions but the statistics that normalise data."""
        ...
