"""When may the target policy jump to the behavioural one? When the value estimates have stopped moving.

The gate is a pair of pure functions, `init` and `update`, and its parameters are numbers that may be traced
and batched: PPO, static and dynamic SV-PPO are the same compiled program with other numbers in it.

Any object with these two functions is a stability criterion (`Criterion`) and may be given to training. The shipped one
is that of Sandhu and Parr, arXiv 2605.05481, Algorithms 2 and 3.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from nextpolicy.core import check
from nextpolicy.types import Array

Number = float | Array

# ceil() of a float32 that should be a whole number must not be pushed up by its last bits; and k_min(p) comes as
# close as 1 / rounds to a whole number without being one, so this must stay far below that.
_ROUNDING = 1e-5


@jax.tree_util.register_pytree_with_keys_class
@dataclass(frozen=True)
class GateParams:
    """What the gate compares with. Every field may be a Python number, a traced number or a batch.

    delta_v         stable means diff <= delta_v * scale
    k_min           accept after this many stable rounds in a row
    k_max           accept after this many rounds in any case
    decay_fraction  share of training over which k_min falls linearly to 1; 0 means it does not fall
    decay_k_max     whether k_max falls too
    """

    delta_v: Number
    k_min: Number
    k_max: Number
    decay_fraction: Number = 0.0
    decay_k_max: bool | Array = False

    def __post_init__(self) -> None:
        check.number("delta_v", self.delta_v, 0.0, float("inf"))
        check.number("k_min", self.k_min, 1, float("inf"))
        check.number("k_max", self.k_max, 1, float("inf"))
        check.number("decay_fraction", self.decay_fraction, 0.0, 1.0)
        if isinstance(self.k_max, (int, float, np.number)):
            check.number("k_min", self.k_min, 1, self.k_max, rule=": k_min may not exceed k_max")

    def tree_flatten_with_keys(self) -> tuple[tuple[tuple[Any, Any], ...], None]:
        """The fields as leaves."""
        return tuple((jax.tree_util.GetAttrKey(f.name), getattr(self, f.name)) for f in fields(self)), None

    @classmethod
    def tree_unflatten(cls, _: None, leaves: tuple[Any, ...]) -> GateParams:
        """Not validated: JAX puts axis numbers, shapes and other things where the numbers were."""
        params = object.__new__(cls)
        for field, leaf in zip(fields(cls), leaves, strict=True):
            object.__setattr__(params, field.name, leaf)
        return params

    @classmethod
    def ppo(cls) -> GateParams:
        """The gate that is always open: SV-PPO with it is PPO."""
        return cls(delta_v=float("inf"), k_min=1, k_max=1)

    @classmethod
    def static(cls, k: Number, delta_v: Number = float("inf")) -> GateParams:
        """Accept once every k rounds, whatever the values do."""
        check.number("k", k, 1, float("inf"))
        return cls(delta_v=delta_v, k_min=k, k_max=k)

    @classmethod
    def dynamic(
        cls,
        delta_v: Number,
        k_min: Number = 1,
        k_max: Number = 33,
        decay_fraction: Number = 0.0,
        decay_k_max: bool | Array = False,
    ) -> GateParams:
        """Accept after k_min stable rounds in a row, and at the latest after k_max rounds."""
        return cls(delta_v, k_min, k_max, decay_fraction, decay_k_max)


class GateState(NamedTuple):
    """`rounds_held` since the target last changed; `stable_rounds` in a row up to now."""

    rounds_held: Array
    stable_rounds: Array


class GateStats(NamedTuple):
    """Why the gate did what it did: the counters are those the decision was taken on, before they reset."""

    diff_over_threshold: Array  # diff / (delta_v * scale); at most 1 means stable; NaN where not finite
    stable: Array
    finite: Array  # False: diff or scale was not a number, and the round does not count as stable
    stable_rounds: Array
    rounds_held: Array
    k_min: Array
    k_max: Array


class Criterion(Protocol):
    """A stability criterion. `update` must be traceable by JAX; `params` is whatever training was given."""

    def init(self) -> Any:
        """The state before the first round."""
        ...

    def update(
        self, state: Any, diff: Array, scale: Array, params: Any, progress: Array
    ) -> tuple[Any, Array, GateStats]:
        """(new state, accept, why) for one round; `progress` in [0, 1] is the share of rounds done."""
        ...


def init() -> GateState:
    """The state before the first round."""
    return GateState(rounds_held=jnp.zeros((), jnp.int32), stable_rounds=jnp.zeros((), jnp.int32))


def update(
    state: GateState, diff: Number, scale: Number, params: GateParams, progress: Number
) -> tuple[GateState, Array, GateStats]:
    """One round of the gate.

    diff = mean |y_t - v_k(s_t)| and scale = mean |y_t| over the round's batch; progress = round index / rounds.

        stable        = diff <= delta_v * scale        (never, if either is not finite)
        stable_rounds = (stable_rounds + 1) * stable
        rounds_held   = rounds_held + 1
        accept        = stable_rounds >= k_min or rounds_held >= k_max; then both counters return to 0
    """
    diff, scale = jnp.asarray(diff), jnp.asarray(scale)
    delta_v = jnp.asarray(params.delta_v)
    k_min = _decayed(params.k_min, params.decay_fraction, progress)
    k_max = jnp.where(
        jnp.asarray(params.decay_k_max),
        _decayed(params.k_max, params.decay_fraction, progress),
        jnp.asarray(params.k_max, jnp.float32),
    )

    # inf * 0 is not a number, and an infinite delta_v must call a scale of zero stable too.
    threshold = jnp.where(jnp.isinf(delta_v), jnp.inf, delta_v * scale)
    finite = jnp.isfinite(diff) & jnp.isfinite(scale)
    stable = finite & (diff <= threshold)
    rounds_held = state.rounds_held + 1
    stable_rounds = jnp.where(stable, state.stable_rounds + 1, 0)
    accept = (stable_rounds >= k_min) | (rounds_held >= k_max)

    stats = GateStats(
        diff_over_threshold=jnp.where(finite, jnp.where(diff == 0, 0.0, diff / threshold), jnp.nan),
        stable=stable,
        finite=finite,
        stable_rounds=stable_rounds,
        rounds_held=rounds_held,
        k_min=k_min,
        k_max=k_max,
    )
    zeroed = GateState(jnp.where(accept, 0, rounds_held), jnp.where(accept, 0, stable_rounds))
    return zeroed, accept, stats


def _decayed(k: Number, fraction: Number, progress: Number) -> Array:
    """ceil(1 + (k - 1) max(0, 1 - progress / fraction)); a fraction of 0 leaves k as it is."""
    k, fraction = jnp.asarray(k, jnp.float32), jnp.asarray(fraction, jnp.float32)
    left = jnp.maximum(0.0, 1.0 - progress / jnp.where(fraction > 0, fraction, 1.0))
    return jnp.where(fraction > 0, jnp.ceil(1.0 + (k - 1.0) * left - _ROUNDING), k)
