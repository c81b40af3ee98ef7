"""Bounds on how long a target is held, and criteria that compare one number with a threshold within these bounds."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, NamedTuple, TypeVar

import jax.numpy as jnp

from nextpolicy.core import check
from nextpolicy.settings import EXACT_INTEGER, ConfigError, Settings, pytree, setting
from nextpolicy.types import Array, Evidence, Metrics

Number = float | Array
T = TypeVar("T")

# Keeps ceil() from rounding up a float32 that is an integer plus rounding error. For the k and numbers of rounds of the
# paper, k_min(progress) exceeds an integer by more than this or not at all; tests compare with exact fractions.
_ROUNDING = 1e-5


@pytree
@dataclass(frozen=True)
class Bounds(Settings):
    """When the target is updated at the earliest and at the latest.

    During training, each number may be traced or an array with one entry per member.
    """

    k_min: int = setting(
        2, "Consecutive stable rounds after which the target is updated.", traced=True, low=1, high=EXACT_INTEGER
    )
    k_max: int = setting(
        16,
        "Rounds after which the target is updated even if values are unstable.",
        traced=True,
        low=1,
        high=EXACT_INTEGER,
    )
    decay_fraction: float = setting(
        0.0,
        "Fraction of training over which k_min falls to 1; 0 for no decay.",
        traced=True,
        low=0,
        high=1,
        interval="in [0, 1]",
    )
    decay_k_max: bool = setting(False, "Whether k_max also falls to 1.", traced=True)

    def __post_init__(self) -> None:
        for each in fields(self):
            low, high = each.metadata["low"], each.metadata["high"]
            if low is not None:  # a number; used directly, counts of rounds may be of any size
                check.number(each.name, getattr(self, each.name), low, math.inf if high == EXACT_INTEGER else high)

    def periodic(self: T, period: int) -> T:
        """Accept every `period` rounds."""
        fixed = {"k_min": period, "k_max": period, "decay_fraction": 0.0, "decay_k_max": False}
        return replace(self, **fixed)  # type: ignore[type-var]

    def check(self, batch_size: int) -> None:
        """`k_min` must not exceed `k_max`."""
        if self.k_min > self.k_max:
            raise ConfigError(f"k_min: expected at most k_max, {self.k_max:g}, got {self.k_min:g}")


@pytree
@dataclass(frozen=True)
class ValueBounds(Bounds):
    """Bounds, and a threshold in units of the values."""

    delta_v: float = setting(
        0.05,
        "Values are stable if diff is at most this fraction of the mean absolute value target.",
        traced=True,
        low=0,
    )


class GateState(NamedTuple):
    """The two counters of the gate, int32 []."""

    rounds_held: Array  # rounds since the target last changed
    stable_rounds: Array  # consecutive stable rounds so far


def decide(state: GateState, stable: Array, params: Bounds, progress: Number) -> tuple[GateState, Array, Metrics]:
    """Accept after k_min stable rounds in a row, or after k_max rounds. The metrics have the counters before a reset.

    stable_rounds = (stable_rounds + 1) * stable
    rounds_held   = rounds_held + 1
    accept        = stable_rounds >= k_min or rounds_held >= k_max; both counters are then reset to 0

    Over the first `decay_fraction` of training, k_min falls linearly to 1, rounded up, and so does k_max if
    `decay_k_max`.
    """
    k_min = _decayed(params.k_min, params.decay_fraction, progress)
    k_max = jnp.where(
        jnp.asarray(params.decay_k_max),
        _decayed(params.k_max, params.decay_fraction, progress),
        jnp.asarray(params.k_max, jnp.float32),
    )
    rounds_held = state.rounds_held + 1
    stable_rounds = jnp.where(stable, state.stable_rounds + 1, 0)
    accept = (stable_rounds >= k_min) | (rounds_held >= k_max)
    after = GateState(jnp.where(accept, 0, rounds_held), jnp.where(accept, 0, stable_rounds))
    bounds = {"k_min": k_min.astype(jnp.int32), "k_max": k_max.astype(jnp.int32)}
    return after, accept, {"stable_rounds": stable_rounds, **bounds}


class Threshold(ABC):
    """A criterion that compares one number with a threshold: a round is stable if `diff` is at most that.

    Subclasses have `name`, `settings` and `measured`. `diff`, and `diff` over the threshold, are metrics.
    """

    name: ClassVar[str]
    settings: ClassVar[type[Settings]]

    @abstractmethod
    def measured(self, evidence: Evidence, params: Any) -> tuple[Array, Array]:
        """`diff` and the threshold, shapes []."""

    def init(self) -> GateState:
        """Both counters at 0."""
        return GateState(rounds_held=jnp.zeros((), jnp.int32), stable_rounds=jnp.zeros((), jnp.int32))

    def update(
        self, state: GateState, evidence: Evidence, params: Any, progress: Number
    ) -> tuple[GateState, Array, Metrics]:
        """Decide after one round. A `diff` or a threshold that is not a number is not stable."""
        diff, threshold = (jnp.asarray(x) for x in self.measured(evidence, params))
        stable = jnp.isfinite(diff) & (diff <= threshold)
        state, accept, counters = decide(state, stable, params, progress)
        return state, accept, {"diff": diff, "diff_over_threshold": relative(diff, threshold), **counters}


def relative(diff: Array, threshold: Array) -> Array:
    """diff / threshold; 0 if diff is 0, NaN if diff is not finite or the threshold is not a number.

    Infinite if the threshold is negative, which no diff is.
    """
    finite = jnp.isfinite(diff) & ~jnp.isnan(threshold)
    found = jnp.where(threshold < 0, jnp.inf, jnp.where(diff == 0, 0.0, diff / threshold))
    return jnp.where(finite, found, jnp.nan)


def share_of(delta: Number, scale: Array) -> Array:
    """delta * scale; infinite if delta is, also for a scale of 0, and NaN if the scale is not finite."""
    delta, scale = jnp.asarray(delta), jnp.asarray(scale)
    return jnp.where(jnp.isfinite(scale), jnp.where(jnp.isinf(delta), jnp.inf, delta * scale), jnp.nan)


def _decayed(k: Number, fraction: Number, progress: Number) -> Array:
    """ceil(1 + (k - 1) max(0, 1 - progress / fraction)); k if fraction is 0."""
    k, fraction = jnp.asarray(k, jnp.float32), jnp.asarray(fraction, jnp.float32)
    left = jnp.maximum(0.0, 1.0 - progress / jnp.where(fraction > 0, fraction, 1.0))
    return jnp.where(fraction > 0, jnp.ceil(1.0 + (k - 1.0) * left - _ROUNDING), k)
