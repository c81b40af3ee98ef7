"""The criterion of the paper: the target is updated once the value estimates are stable.

Sandhu and Parr, "Approximate Next Policy Sampling" (arXiv 2605.05481), Algorithms 2 and 3. Parameters may be traced and
batched, so members with different gates share one compiled program.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np

from nextpolicy.core import check
from nextpolicy.settings import EXACT_INTEGER, ConfigError, Settings, pytree, setting
from nextpolicy.types import Array, Evidence, Metrics

Number = float | Array

# Keeps ceil() from rounding up a float32 that is an integer plus rounding error. For the k and numbers of rounds of the
# paper, k_min(progress) exceeds an integer by more than this or not at all; tests compare with exact fractions.
_ROUNDING = 1e-5


@pytree
@dataclass(frozen=True)
class GateParams(Settings):
    """Parameters of the gate. During training, each number may be traced or an array with one entry per member."""

    delta_v: float = setting(
        0.05,
        "Values are stable if diff is at most this fraction of the mean absolute value target.",
        traced=True,
        low=0,
    )
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
    diff_kind: Literal["target", "network"] = setting(
        "target",
        "What diff is: mean |y - v_k|, the distance of values from their targets (target), or mean |v_{k+1} - v_k|, "
        "their change in a round (network).",
    )

    def __post_init__(self) -> None:
        check.number("delta_v", self.delta_v, 0.0, float("inf"))
        check.number("k_min", self.k_min, 1, float("inf"))
        check.number("k_max", self.k_max, 1, float("inf"))
        check.number("decay_fraction", self.decay_fraction, 0.0, 1.0)
        check.one_of("diff_kind", self.diff_kind, ("target", "network"))

    def check(self, batch_size: int) -> None:
        """`k_min` must not exceed `k_max`."""
        if self.k_min > self.k_max:
            raise ConfigError(f"k_min: expected at most k_max, {self.k_max:g}, got {self.k_min:g}")

    def periodic(self, period: int) -> GateParams:
        """Accept every `period` rounds."""
        return replace(GateParams.static(period), diff_kind=self.diff_kind)

    @classmethod
    def ppo(cls) -> GateParams:
        """The gate that accepts every round, which makes SV-PPO equal to PPO."""
        return cls.static(1)

    @classmethod
    def static(cls, k: Number, delta_v: Number = float("inf")) -> GateParams:
        """Accept every k rounds, regardless of the values."""
        check.number("k", k, 1, float("inf"))
        return cls.dynamic(delta_v, k, k)

    @classmethod
    def dynamic(
        cls,
        delta_v: Number,
        k_min: Number = 1,
        k_max: Number = 33,
        decay_fraction: Number = 0.0,
        decay_k_max: bool | Array = False,
    ) -> GateParams:
        """Accept after k_min consecutive stable rounds, or after k_max rounds."""
        made = cls(delta_v, k_min, k_max, decay_fraction, decay_k_max)  # type: ignore[arg-type]
        if isinstance(k_max, int | float | np.number):
            check.number("k_min", k_min, 1, float(k_max), rule=": k_min may not exceed k_max")
        return made


class GateState(NamedTuple):
    """The two counters of the gate, int32 []."""

    rounds_held: Array  # rounds since the target last changed
    stable_rounds: Array  # consecutive stable rounds so far


class StableValues:
    """The paper's gate.

    With diff = mean |y_t - v_k(s_t)| and scale = mean |y_t| over the round's batch:

        stable        = diff <= delta_v * scale        (False if diff or scale is not finite)
        stable_rounds = (stable_rounds + 1) * stable
        rounds_held   = rounds_held + 1
        accept        = stable_rounds >= k_min or rounds_held >= k_max; both counters are then reset to 0

    Over the first `decay_fraction` of training, k_min falls linearly to 1, rounded up, and so does k_max if
    `decay_k_max`. With `diff_kind="network"`, diff = mean |v_{k+1}(s_t) - v_k(s_t)|.
    """

    name: ClassVar[str] = "stable-values"
    settings: ClassVar[type[Settings]] = GateParams

    def init(self) -> GateState:
        """Both counters at 0."""
        return GateState(rounds_held=jnp.zeros((), jnp.int32), stable_rounds=jnp.zeros((), jnp.int32))

    def update(
        self, state: GateState, evidence: Evidence, params: GateParams, progress: Number
    ) -> tuple[GateState, Array, Metrics]:
        """Decide after one round. The metrics hold `stable_rounds` before it is reset."""
        diff = jnp.asarray(evidence.diff_target if params.diff_kind == "target" else evidence.diff_network)
        scale, delta_v = jnp.asarray(evidence.scale), jnp.asarray(params.delta_v)
        k_min = _decayed(params.k_min, params.decay_fraction, progress)
        k_max = jnp.where(
            jnp.asarray(params.decay_k_max),
            _decayed(params.k_max, params.decay_fraction, progress),
            jnp.asarray(params.k_max, jnp.float32),
        )

        # inf * 0 is NaN, but with an infinite delta_v a scale of 0 also counts as stable.
        threshold = jnp.where(jnp.isinf(delta_v), jnp.inf, delta_v * scale)
        finite = jnp.isfinite(diff) & jnp.isfinite(scale)
        stable = finite & (diff <= threshold)
        rounds_held = state.rounds_held + 1
        stable_rounds = jnp.where(stable, state.stable_rounds + 1, 0)
        accept = (stable_rounds >= k_min) | (rounds_held >= k_max)
        metrics = {
            "diff": diff,
            "diff_over_threshold": jnp.where(finite, jnp.where(diff == 0, 0.0, diff / threshold), jnp.nan),
            "stable_rounds": stable_rounds,
            "k_min": k_min.astype(jnp.int32),
            "k_max": k_max.astype(jnp.int32),
        }
        return GateState(jnp.where(accept, 0, rounds_held), jnp.where(accept, 0, stable_rounds)), accept, metrics


def _decayed(k: Number, fraction: Number, progress: Number) -> Array:
    """ceil(1 + (k - 1) max(0, 1 - progress / fraction)); k if fraction is 0."""
    k, fraction = jnp.asarray(k, jnp.float32), jnp.asarray(fraction, jnp.float32)
    left = jnp.maximum(0.0, 1.0 - progress / jnp.where(fraction > 0, fraction, 1.0))
    return jnp.where(fraction > 0, jnp.ceil(1.0 + (k - 1.0) * left - _ROUNDING), k)
