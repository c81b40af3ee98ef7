"""The interface between the training loop and an algorithm."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np

from nextpolicy.core.shards import Shards
from nextpolicy.settings import Settings
from nextpolicy.types import Array, Evidence, Metrics, Networks, PolicySnapshot, PyTree, Rollout

# When a variant updates its target: every round, every `static_k` rounds, or when the criterion accepts.
Pace = Literal["plain", "static", "dynamic"]


class Parts(NamedTuple):
    """The arguments of an algorithm's constructor, besides its settings."""

    networks: Networks
    obs_shape: tuple[int, ...]
    batch_size: int  # samples per round on one shard
    shards: Shards
    numbered_obs: bool = False  # whether observations are numbers of states, which nothing normalises
    obs_dtype: Any = np.float32
    action_size: int = 1  # elements of a continuous action
    num_rounds: int = 1  # of the whole training


class Algorithm(Protocol):
    """Learns from one round of data. All methods except the constructor must be traceable by JAX.

    The constructor reads the static fields of `settings`. In `learn`, the traced fields of `settings` are arrays that
    hold the member's values. Every algorithm has a traced field `gamma`, which collection needs for discounted returns.
    """

    name: ClassVar[str]
    settings: ClassVar[type[Settings]]
    # Optional: `networks_kind: ClassVar[str]`, the networks it needs (see `nets.kinds`), by default an actor and a
    # critic; `unsupported_criteria: ClassVar[tuple[str, ...]]`, criteria whose evidence it does not measure;
    # `remember(learner, rollout)`, which adds the rollout to `learner.replay`. It is called before `learn` and
    # `update_statistics`, which must leave `learner.replay` as it is.
    variants: ClassVar[dict[str, Pace]]  # by the names that `--algo` accepts

    def __init__(self, settings: Any, parts: Parts) -> None: ...

    def init(self, key: Array) -> PyTree:
        """The initial learner: parameters, optimiser state, statistics."""
        ...

    def behaviour(self, learner: Any) -> PolicySnapshot:
        """The behavioural policy, which collects data."""
        ...

    def learn(
        self, settings: Any, learner: Any, target: PolicySnapshot | None, rollout: Rollout, key: Array, progress: Array
    ) -> tuple[PyTree, Evidence, Metrics]:
        """Evaluate the frozen target on the rollout and improve the behavioural policy.

        target    None if it is the behavioural policy that collected the rollout, so that all ratios are 1
        key       the same on all shards
        progress  fraction of the rounds done, in [0, 1)

        Returns the learner after the round, the evidence for the criterion, and metrics.
        """
        ...

    def adopt(self, learner: Any, other: Any) -> PyTree:
        """`learner` with the parameters and statistics of `other`, a learner of another run, but its own optimiser."""
        ...

    def update_statistics(self, learner: Any, rollout: Rollout) -> PyTree:
        """Update only the statistics that normalise data; warm-up rounds, which act at random, do nothing else."""
        ...
