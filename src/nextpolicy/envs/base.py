"""What training asks of an environment, inside XLA or on the host, and the pieces every adapter shares."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from nextpolicy.types import Array, PyTree, Step


@dataclass(frozen=True)
class Discrete:
    """Actions `start` .. start + n - 1; policies and training count them from 0, as int32."""

    n: int
    start: int = 0
    dtype: Any = field(default=np.int32, compare=False)  # of the environment's own actions

    def legal(self, action: Any) -> Any:
        """Actions [N] of a policy, NumPy's or JAX's, as the environment counts them."""
        return action + self.start


@dataclass(frozen=True)
class Box:
    """Real actions of one shape; the adapter clips what it is given to [low, high], element by element."""

    shape: tuple[int, ...]
    low: Any  # number or array of `shape`
    high: Any
    dtype: Any = field(default=np.float32, compare=False)  # of the environment's own actions

    def clip(self, action: Array) -> Array:
        """One action (not a batch of them) brought inside the bounds."""
        low, high = (jnp.broadcast_to(jnp.asarray(b, action.dtype), self.shape) for b in (self.low, self.high))
        return jnp.clip(action, low, high)

    def legal(self, action: Any) -> Any:
        """Actions [N, A] or [N, *shape] of a policy, NumPy's or JAX's, in the environment's shape and bounds."""
        low, high = (np.broadcast_to(np.asarray(bound), self.shape)[None] for bound in (self.low, self.high))
        return action.reshape((-1, *self.shape)).clip(low, high)


def own_actions(space: Discrete | Box, action: np.ndarray) -> np.ndarray:
    """Actions [N, ...] of a policy as the environment's own `step` takes them, type included.

    The bounds hold in the environment's type too: they are met in a wide one, and rounding keeps the order.
    """
    wide = np.int64 if isinstance(space, Discrete) else np.float64
    return np.asarray(space.legal(action.astype(wide)).astype(space.dtype))


def plain(obs: np.ndarray) -> np.ndarray:
    """Observations without what no device reads: floats as float32, bytes as bytes, whole numbers as int32."""
    return obs.astype(np.float32) if obs.dtype.kind == "f" else obs if obs.dtype == np.uint8 else obs.astype(np.int32)


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
    own_obs_shape: tuple[int, ...] | None = None  # of one observation before `HostEnv.arrange`, where it has that
    first_state: int | None = None  # where an environment on the host numbers its states: the first


class DeviceEnv(Protocol):
    """N environments as two pure functions, traceable by JAX; the population axis is mapped over both.

    `step` resets finished environments itself and reports the true successor beside what the policy sees next.
    An environment that can draw itself also has `render(state) -> uint8 [H, W, 3]` for the state of one environment.
    """

    spec: EnvSpec

    def reset(self, key: Array, num_envs: int) -> tuple[PyTree, Array]:
        """State (leaves [N, ...]) and first observations [N, ...]."""
        ...

    def step(self, key: Array, state: PyTree, action: Array) -> tuple[PyTree, Step[Array]]:
        """One step of all N; `action` is [N] int32 (Discrete) or [N, *shape] (Box)."""
        ...


class HostPool(Protocol):
    """N running environments on the host: `send` actions, do something else, `recv` the step."""

    num_envs: int

    def reset(self, seed: int) -> np.ndarray:
        """First observations [N, ...]; the same seed gives the same stream."""
        ...

    def send(self, action: np.ndarray) -> None:
        """Start a step with actions [N] int32 (Discrete) or [N, *shape] (Box), and return at once."""
        ...

    def recv(self) -> Step[np.ndarray]:
        """Wait for the step that was started."""
        ...

    def render(self) -> np.ndarray:
        """uint8 [H, W, 3] of the first environment; only of a pool started with `render=True`."""
        ...

    def close(self) -> None:
        """Stop the environments and whatever runs them; may be called twice."""
        ...


@runtime_checkable
class HostEnv(Protocol):
    """A kind of environment that runs on the host: described here, started as many times as needed."""

    spec: EnvSpec
    groups: int  # pools per member, stepped in turn so that one acts while the others step
    resets_in_step: bool  # whether a finished environment is reset within the step that finishes it

    def start(self, num_envs: int, render: bool = False) -> HostPool:
        """Environments of this kind, not yet reset."""
        ...

    def arrange(self, obs: Array) -> Array:
        """Observations [N, ...] as pools give them in the layout and type that networks read; traceable by JAX."""
        ...


class HostEnvError(RuntimeError):
    """An environment on the host raised, hung or died: one line."""


def take_option(env_id: str, options: dict[str, Any], name: str, default: Any, choices: Sequence[Any] = ()) -> Any:
    """Remove and return an option; its type is that of `default`, its value one of `choices` where there are any."""
    got = options.pop(name, default)
    if choices and got not in choices:
        raise ValueError(f"{env_id} {name}: got {got!r}, takes one of {', '.join(map(repr, choices))}")
    number = isinstance(got, (int, float)) and not isinstance(got, bool)
    fits = number if isinstance(default, float) else type(got) is type(default)
    if not fits or (number and not 0 <= got < math.inf):
        words = {bool: "true or false", int: "a whole number of at least 0", float: "a number of at least 0"}
        raise ValueError(f"{env_id} {name}: got {got!r}, takes {words.get(type(default), 'text')}")
    return type(default)(got)


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


def over_environments(function: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """`jax.vmap(function)`; where that is mapped over members as well, members and environments are one axis.

    A GPU runs the many small kernels of a simulator faster over one long axis than over two: index arithmetic is a good
    part of each. Reverse-mode derivatives do not pass through it.
    """
    mapped = jax.custom_batching.custom_vmap(jax.vmap(function))

    @mapped.def_vmap
    def as_one_axis(members: int, in_batched: Sequence[PyTree], *arguments: PyTree) -> tuple[PyTree, PyTree]:
        def merge(batched: bool, x: Array) -> Array:
            x = x if batched else jnp.broadcast_to(x, (members, *x.shape))
            return x.reshape(members * x.shape[1], *x.shape[2:])

        results = mapped(*(jax.tree.map(merge, b, a) for b, a in zip(in_batched, arguments, strict=True)))
        apart = jax.tree.map(lambda x: x.reshape(members, x.shape[0] // members, *x.shape[1:]), results)
        return apart, jax.tree.map(lambda _: True, results)

    return mapped  # type: ignore[no-any-return]


def auto_reset(
    key: Array,
    reset: Callable[[Array], tuple[PyTree, Array]],
    state: PyTree,
    next_obs: Array,
    reward: Array,
    terminated: Array,
    truncated: Array,
) -> tuple[PyTree, Step[Array]]:
    """Restart the finished ones of N environments from a fresh `reset(key)`, keeping the true successor."""
    truncated = truncated & ~terminated
    done = terminated | truncated
    fresh_state, fresh_obs = jax.vmap(reset)(jax.random.split(key, done.shape[0]))
    step = Step(
        obs=select(done, fresh_obs, next_obs),
        next_obs=next_obs,
        reward=reward.astype(jnp.float32),
        terminated=terminated,
        truncated=truncated,
    )
    return select(done, fresh_state, state), step
