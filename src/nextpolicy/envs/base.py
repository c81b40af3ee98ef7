"""The interface of environments, inside XLA and on the host, and helpers that all adapters share."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from nextpolicy.envs.nested import ArrayT, DType, MultiDiscrete, Tree, byte_scale, unflatten
from nextpolicy.types import Array, PyTree, Step

if TYPE_CHECKING:
    from typing_extensions import TypeIs


@dataclass(frozen=True)
class Discrete:
    """Actions `start` .. start + n - 1; policies and training count from 0, in int32."""

    n: int
    start: int = 0
    dtype: DType = field(default=np.int32, compare=False)  # of the environment's own actions
    tree = None  # its own actions are one array

    @property
    def outputs(self) -> int:
        """Outputs of the actor's last layer."""
        return self.n

    def legal(self, action: ArrayT) -> ArrayT:
        """A policy's actions [N], counted from `start`."""
        return action + self.start


@dataclass(frozen=True)
class Box:
    """Real-valued actions of one shape; adapters clip them to [low, high], element by element."""

    shape: tuple[int, ...]
    low: float | np.ndarray  # number or array of `shape`
    high: float | np.ndarray
    dtype: DType = field(default=np.float32, compare=False)  # of the environment's own actions
    tree: Tree | None = None  # how the environment's own actions hold the elements; None: as one array

    @property
    def outputs(self) -> int:
        return math.prod(self.shape)

    def clip(self, action: Array) -> Array:
        """One action, not a batch, clipped to the bounds."""
        low, high = (jnp.broadcast_to(jnp.asarray(b, action.dtype), self.shape) for b in (self.low, self.high))
        return jnp.clip(action, low, high)

    def legal(self, action: ArrayT) -> ArrayT:
        """A policy's actions [N, A] or [N, *shape], reshaped to [N, *shape] and clipped to the bounds."""
        low, high = (np.broadcast_to(np.asarray(bound), self.shape)[None] for bound in (self.low, self.high))
        return action.reshape((-1, *self.shape)).clip(low, high)


ActionSpace = Discrete | MultiDiscrete | Box


def own_actions(space: ActionSpace, action: np.ndarray, lead: tuple[int, ...] | None = None) -> PyTree:
    """A policy's actions [N, ...] in the shapes and types of the environment's own actions, with leading axes `lead`.

    Clipping in 64 bits keeps the bounds: rounding to the environment's type preserves order.
    """
    legal = space.legal(action.astype(np.float64 if isinstance(space, Box) else np.int64))
    legal = legal if lead is None else legal.reshape((*lead, *legal.shape[1:]))
    if space.tree is not None:
        return unflatten(space.tree, legal, own_dtypes=True)
    return np.asarray(legal.astype(space.dtype))


def plain(obs: np.ndarray) -> np.ndarray:
    """Observations in a type that every device supports: floats as float32, uint8 as uint8, other integers as int32."""
    return obs.astype(np.float32) if obs.dtype.kind == "f" else obs if obs.dtype == np.uint8 else obs.astype(np.int32)


@dataclass(frozen=True)
class EnvSpec:
    """Description of an environment: its spaces and its time limit.

    An environment with few distinct observations lists them in `obs_table` [S, ...] and returns row numbers (int32,
    shape ()). The networks are then evaluated once per row instead of once per step; `obs_shape` and `obs_dtype`
    describe a row.
    """

    id: str
    obs_shape: tuple[int, ...]  # of one network input
    action: ActionSpace
    obs_dtype: DType = np.float32
    time_limit: int | None = None  # steps after which an episode is truncated
    obs_table: np.ndarray | None = field(default=None, compare=False)
    own_obs_shape: tuple[int, ...] | None = None  # of one observation before `HostEnv.arrange`; host only
    first_state: int | None = None  # the smallest of a discrete observation space; host only
    obs_tree: Tree | None = None  # the environment's own observations, if they were nested and are now vectors
    # Probabilities [S, A] of a policy on `obs_table` -> its exact value in the start state; None: cannot be solved.
    start_value: Callable[[Array], Array] | None = field(default=None, compare=False)

    @property
    def obs_scale(self) -> np.ndarray | None:
        """Factors [F] by which networks multiply flattened observations that are not normalised; None: 1."""
        return None if self.obs_tree is None else byte_scale(self.obs_tree)


class DeviceEnv(Protocol):
    """N environments as two pure functions, traceable by JAX; the population axis is mapped over both.

    `step` resets finished environments and returns the true successor beside the next observation. An environment that
    can be rendered also has `render(state) -> uint8 [H, W, 3]` for the state of one environment. One that can draw
    randomness in advance also has `draw(key, num_envs)` and `step_drawn(drawn, state, action)`, the halves of `step`.
    On a CPU they replace `step`, so a subclass must override all three or none.
    """

    spec: EnvSpec

    def reset(self, key: Array, num_envs: int) -> tuple[PyTree, Array]:
        """State (leaves [N, ...]) and first observations [N, ...]."""
        ...

    def step(self, key: Array, state: PyTree, action: Array) -> tuple[PyTree, Step[Array]]:
        """One step of all N; `action` is [N] (Discrete) or [N, A] (MultiDiscrete) int32, or [N, *shape] (Box)."""
        ...


class HostPool(Protocol):
    """N running environments on the host: `send` starts a step, `recv` waits for it."""

    num_envs: int

    def reset(self, seed: int) -> np.ndarray:
        """First observations [N, ...]; the same seed gives the same stream."""
        ...

    def send(self, action: np.ndarray) -> None:
        """Start a step with actions as in `DeviceEnv.step`, and return at once."""
        ...

    def recv(self) -> Step[np.ndarray]:
        """Wait for the step that was started."""
        ...

    def render(self) -> np.ndarray:
        """Image of the first environment, uint8 [H, W, 3]; the pool must have been started with `render=True`."""
        ...

    def close(self) -> None:
        """Stop the environments and their threads and processes; may be called twice."""
        ...


class HostEnv(Protocol):
    """An environment that runs on the host; `start` may be called several times."""

    spec: EnvSpec
    groups: int  # pools per member, stepped in turn so that one acts while the others step
    resets_in_step: bool  # whether a finished environment is reset within the step that finishes it

    def start(self, num_envs: int, render: bool = False) -> HostPool:
        """A pool of `num_envs` environments, not yet reset."""
        ...

    def arrange(self, obs: Array) -> Array:
        """Convert a pool's observations [N, ...] to the layout and type that networks read; traceable by JAX."""
        ...


def is_host_env(env: DeviceEnv | HostEnv) -> TypeIs[HostEnv]:
    """Whether the environment runs on the host rather than inside XLA."""
    return hasattr(env, "start")


class HostEnvError(RuntimeError):
    """An environment on the host raised, hung or died; the message is one line."""


def take_options(
    env_id: str, given: Mapping[str, object], defaults: Mapping[str, object], **choices: Sequence[str]
) -> dict[str, Any]:
    """The value of each option in `defaults`, checked to be of the default's type and one of its `choices`, if any."""
    return {name: _checked(env_id, name, given.get(name, d), d, choices.get(name)) for name, d in defaults.items()}


def _checked(env_id: str, name: str, got: object, default: object, choices: Sequence[str] | None) -> object:
    if choices is not None and got not in choices:
        raise ValueError(f"{env_id} {name}: expected one of {', '.join(map(repr, choices))}, got {got!r}")
    number = got if isinstance(got, (int, float)) and not isinstance(got, bool) else None
    fits = number is not None if isinstance(default, float) else type(got) is type(default)
    if not fits or (number is not None and not 0 <= number < math.inf):
        words = {bool: "true or false", int: "a whole number of at least 0", float: "a number of at least 0"}
        raise ValueError(f"{env_id} {name}: expected {words.get(type(default), 'text')}, got {got!r}")
    return float(number) if number is not None and isinstance(default, float) else got


def at_least_one(env_id: str, name: str, got: int) -> None:
    """Raise unless an option is 1 or more."""
    if got < 1:
        raise ValueError(f"{env_id} {name}: expected a whole number of at least 1, got {got}")


def check_options(env_id: str, got: Iterable[str], taken: Iterable[str]) -> None:
    """Raise unless every option name in `got` is one of `taken`."""
    allowed = sorted(taken)
    for option in sorted(set(got) - set(allowed)):
        near = difflib.get_close_matches(option, allowed, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"{env_id}: expected {', '.join(allowed) or 'no options'}, got option {option!r}{hint}")


def strip_weak_types(tree: PyTree) -> PyTree:
    """Leaves as arrays without JAX's weak types.

    Environments that start a counter from a Python number return it weakly typed from reset, but not from a step.
    Without this, the step would be traced twice.
    """

    def fix(leaf: jax.typing.ArrayLike) -> Array:
        leaf = jnp.asarray(leaf)
        return leaf if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf.astype(leaf.dtype)

    return jax.tree.map(fix, tree)


def select(mask: Array, if_true: PyTree, if_false: PyTree) -> PyTree:
    """`jnp.where` for pytrees with leaves [N, ...] and a mask [N]."""

    def pick(a: Array, b: Array) -> Array:
        a, b = jnp.asarray(a), jnp.asarray(b)
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            return jnp.where(mask, a, b)
        return jnp.where(mask.reshape(mask.shape + (1,) * (a.ndim - mask.ndim)), a, b)

    return jax.tree.map(pick, if_true, if_false)


def over_environments(function: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """`jax.vmap(function)` that, when mapped over members as well, merges members and environments into one axis.

    A simulator is many small kernels that spend much of their time on index arithmetic: on a GPU, one long axis is
    faster than two. Reverse-mode differentiation is not supported.
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

    return mapped


def auto_reset(
    fresh: tuple[PyTree, Array],
    state: PyTree,
    next_obs: Array,
    reward: Array,
    terminated: Array,
    truncated: Array,
) -> tuple[PyTree, Step[Array]]:
    """Replace those of N environments that have finished by `fresh`, N start states and their observations.

    The step keeps the true successors.
    """
    truncated = truncated & ~terminated
    done = terminated | truncated
    fresh_state, fresh_obs = fresh
    step = Step(
        obs=select(done, fresh_obs, next_obs),
        next_obs=next_obs,
        reward=reward.astype(jnp.float32),
        terminated=terminated,
        truncated=truncated,
    )
    return select(done, fresh_state, state), step
