"""What training asks of an environment that runs inside XLA, and the pieces every adapter shares."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from nextpolicy.types import Array, EnvStep, PyTree


@dataclass(frozen=True)
class Discrete:
    """Actions 0 .. n-1, as int32."""

    n: int


@dataclass(frozen=True)
class Box:
    """Real actions of one shape; the adapter clips what it is given to [low, high], element by element."""

    shape: tuple[int, ...]
    low: Any  # number or array of `shape`
    high: Any

    def clip(self, action: Array) -> Array:
        """One action (not a batch of them) brought inside the bounds."""
        low, high = (jnp.broadcast_to(jnp.asarray(b, action.dtype), self.shape) for b in (self.low, self.high))
        return jnp.clip(action, low, high)


@dataclass(frozen=True)
class EnvSpec:
    """What a policy needs to know of an environment.

    `obs_table` [S, ...] is for environments with few observations: the environment then gives the row number
    (int32, observation shape ()) instead of the row, and the networks are evaluated once per row, not per step.
    `obs_shape` and `obs_dtype` are then those of a row.
    """

    id: str
    obs_shape: tuple[int, ...]  # of what the network reads, so of one row where there is a table
    action: Discrete | Box
    obs_dtype: Any = np.float32
    time_limit: int | None = None  # steps after which an episode is truncated
    obs_table: np.ndarray | None = field(default=None, compare=False)


class DeviceEnv(Protocol):
    """N environments as two pure functions, traceable by JAX; the population axis is mapped over both.

    `step` resets finished environments itself and reports the true successor beside what the policy sees next.
    An environment that can draw itself also has `render(state) -> uint8 [H, W, 3]` for the state of one environment.
    """

    spec: EnvSpec

    def reset(self, key: Array, num_envs: int) -> tuple[PyTree, Array]:
        """State (leaves [N, ...]) and first observations [N, ...]."""
        ...

    def step(self, key: Array, state: PyTree, action: Array) -> tuple[PyTree, EnvStep]:
        """One step of all N; `action` is [N] int32 (Discrete) or [N, *shape] (Box)."""
        ...


def check_options(env_id: str, got: Iterable[str], taken: Iterable[str]) -> None:
    """Raise unless every option name in `got` is one of `taken`."""
    allowed = sorted(taken)
    for option in sorted(set(got) - set(allowed)):
        raise ValueError(f"{env_id}: got option {option!r}, takes {', '.join(allowed) or 'no options'}")


def strong(tree: PyTree) -> PyTree:
    """Leaves as arrays that keep their type in arithmetic.

    Environments start counters from Python numbers; such leaves are weakly typed at reset and not after a step, and
    the program would be traced a second time for nothing but that.
    """

    def fix(leaf: Any) -> Array:
        leaf = jnp.asarray(leaf)
        return leaf if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf.astype(leaf.dtype)

    return jax.tree.map(fix, tree)


def select(mask: Array, if_true: PyTree, if_false: PyTree) -> PyTree:
    """Leaf by leaf and environment by environment: `if_true` where `mask` [N] holds."""

    def pick(a: Array, b: Array) -> Array:
        a, b = jnp.asarray(a), jnp.asarray(b)
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            return jnp.where(mask, a, b)
        return jnp.where(mask.reshape(mask.shape + (1,) * (a.ndim - mask.ndim)), a, b)

    return jax.tree.map(pick, if_true, if_false)


def auto_reset(
    key: Array,
    reset: Callable[[Array], tuple[PyTree, Array]],
    state: PyTree,
    next_obs: Array,
    reward: Array,
    terminated: Array,
    truncated: Array,
) -> tuple[PyTree, EnvStep]:
    """Restart the finished ones of N environments from a fresh `reset(key)`, keeping the true successor."""
    truncated = truncated & ~terminated
    done = terminated | truncated
    fresh_state, fresh_obs = jax.vmap(reset)(jax.random.split(key, done.shape[0]))
    step = EnvStep(
        obs=select(done, fresh_obs, next_obs),
        next_obs=next_obs,
        reward=reward.astype(jnp.float32),
        terminated=terminated,
        truncated=truncated,
    )
    return select(done, fresh_state, state), step
