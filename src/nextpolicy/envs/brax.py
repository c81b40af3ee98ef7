"""Brax environments, batched, with our own time limit and auto-reset.

A fresh start state needs a physics initialisation, which is too slow to run for all N environments at every step. The
state therefore carries a ring of start states: every step refills a sixteenth of it, and finished environments take the
next entries in turn. If at most N environments finish in any 16 steps, no start state is used twice.
`reset="cached"` reproduces Brax's own wrapper: every environment always returns to its first state.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import io
import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from nextpolicy.core import check
from nextpolicy.envs import pictures
from nextpolicy.envs.base import (
    Box,
    EnvSpec,
    at_least_one,
    check_options,
    over_environments,
    select,
    strip_weak_types,
)
from nextpolicy.envs.ordered_sums import ordered
from nextpolicy.envs.registry import Backend
from nextpolicy.types import Array, PyTree, Step

if TYPE_CHECKING:
    from brax.envs import Env

NAMES = (
    "inverted_pendulum",
    "humanoidstandup",
    "walker2d",
    "inverted_double_pendulum",
    "swimmer",
    "halfcheetah",
    "fast",
    "pusher",
    "hopper",
    "ant",
    "humanoid",
    "reacher",
)
PHYSICS = ("positional", "generalized", "spring", "mjx")  # Brax's physics backends
REFILL_SHARE = 16  # a step refills 1/16 of the ring


class Start(NamedTuple):
    """The part of a Brax state that a step reads; observation, reward, done and metrics are outputs only."""

    pipeline_state: PyTree
    info: PyTree


class BraxState(NamedTuple):
    """N environments and a ring of P start states for those that finish."""

    current: Start  # leaves [N, ...]
    age: Array  # [N] int32, steps taken in this episode
    ring: Start  # leaves [P, ...]
    ring_obs: Array  # [P, obs]
    read_at: Array  # int32: the entry that the next finished environment takes
    write_at: Array  # int32: the first entry of the chunk refilled next


class _OldClip:
    """`jax.numpy`, except that `clip` still accepts `a_min` and `a_max`."""

    def __getattr__(self, name: str) -> Any:
        return getattr(jnp, name)

    @staticmethod
    def clip(
        array: Array, a_min: jax.typing.ArrayLike | None = None, a_max: jax.typing.ArrayLike | None = None
    ) -> Array:
        return jnp.clip(array, a_min, a_max)


def import_brax() -> ModuleType:
    """Import `brax.envs` and hide its messages about missing optional packages."""
    printed = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(printed):
        warnings.simplefilter("ignore", DeprecationWarning)  # jaxopt warns that it is deprecated
        import brax.envs
        from brax import fluid
    for line in printed.getvalue().splitlines():
        if not line.startswith(("Failed to import warp", "Failed to import mujoco_warp")):
            print(line)
    if not isinstance(fluid.jp, _OldClip):
        fluid.jp = _OldClip()  # brax 0.14.2 calls jnp.clip(a_min=), which newer JAX has removed
    return cast(ModuleType, brax.envs)


@contextlib.contextmanager
def _quiet_tracing() -> Iterator[None]:
    """Ignore MJX's warnings that Brax reads fields by a deprecated name."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Accessing `.*` directly from", DeprecationWarning)
        yield


@contextlib.contextmanager
def _quiet_models() -> Iterator[None]:
    """Ignore two notices about old model files; turn MuJoCo's other warnings into Python warnings.

    By default, MuJoCo writes its warnings to a file in the working directory.
    """
    import mujoco

    heard: list[str] = []
    mujoco.set_mju_user_warning(heard.append)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Brax System, piplines and environments", UserWarning)
            yield
    finally:
        mujoco.set_mju_user_warning(None)
    for message in heard:
        if "settotalmass" not in message:
            warnings.warn(message, stacklevel=3)


def names() -> list[str]:
    """The names of all Brax environments."""
    if importlib.util.find_spec("brax") is None:  # importing it takes seconds
        raise ModuleNotFoundError("No module named 'brax'", name="brax")
    return list(NAMES)


def physics_of(name: str) -> tuple[str, ...]:
    """Brax's physics backends that an environment can run on, the default first."""
    return {"swimmer": ("generalized",), "fast": ("none",)}.get(name, PHYSICS)


def make(
    name: str,
    *,
    backend: str | None = None,
    episode_length: int = 1000,
    reset: str = "fresh",
    random_start: bool = False,
    **options: object,
) -> BraxEnv:
    """The Brax environment `name`; further options are its constructor's arguments, such as `ctrl_cost_weight`."""
    env_id = f"brax/{name}"
    envs = import_brax()
    physics = physics_of(name)
    backend = physics[0] if backend is None else backend
    check.one_of(f"{env_id} backend", backend, physics)
    check.one_of(f"{env_id} reset", reset, ("fresh", "cached"))
    at_least_one(env_id, "episode_length", episode_length)
    env = _construct(envs, name, backend)
    own = set(inspect.signature(type(env).__init__).parameters)
    # `fast` can return dictionaries, which the networks here cannot read; it ignores `n_frames`.
    own -= {"self", "kwargs", "obs_mode", "asymmetric_obs"}
    own |= {"n_frames"} if name != "fast" else set()
    check_options(env_id, options, own | {"backend", "episode_length", "reset", "random_start"})
    env = _construct(envs, name, backend, **options) if options else env
    return BraxEnv(env, env_id, episode_length, cached=reset == "cached", random_start=random_start)


def _construct(envs: ModuleType, name: str, backend: str, **options: object) -> Env:
    with _quiet_models():
        return envs.get_environment(name, **({} if backend == "none" else {"backend": backend}), **options)


class BraxEnv:
    """A Brax environment as a `DeviceEnv`; actions are clipped to [-1, 1]."""

    def __init__(self, env: Env, env_id: str, episode_length: int, *, cached: bool, random_start: bool):
        self.env = env
        self._cached, self._random_start, self._episode_length = cached, random_start, episode_length
        self._view = pictures.VIEWS.get(env_id.partition("/")[2])  # None for `fast`, which has no bodies
        self.can_render = self._view is not None
        self.seconds_per_step = float(env.dt) if self.can_render else None
        # Under jit, reset and step are each traced once, however often the program calls them.
        start, advance = jax.jit(ordered(self._start_one)), jax.jit(ordered(self._step_one))
        self._start, self._advance = over_environments(start), over_environments(advance)
        obs = jax.eval_shape(start, jax.random.key(0))[1]
        self.spec = EnvSpec(
            id=env_id,
            obs_shape=obs.shape,
            action=Box(shape=(int(env.action_size),), low=-1.0, high=1.0),
            obs_dtype=np.dtype(obs.dtype),
            time_limit=episode_length,
        )

    def render(self, state: BraxState) -> np.ndarray:
        """The bodies of one environment, uint8 [240, 320, 3]."""
        assert self._view is not None
        bodies = state.current.pipeline_state.x
        return pictures.body(self.env.sys.mj_model, np.asarray(bodies.pos), np.asarray(bodies.rot), self._view)

    def _start_one(self, key: Array) -> tuple[Start, Array]:
        with _quiet_tracing():
            state = self.env.reset(key)
        return strip_weak_types((Start(state.pipeline_state, state.info), state.obs))

    def _step_one(self, current: Start, action: Array) -> tuple[Start, Array, Array, Array]:
        from brax.envs.base import State

        zero = jnp.zeros(())
        # Brax writes `metrics` and never reads them, so an empty dict is enough.
        state = State(current.pipeline_state, None, zero, zero, metrics={}, info=current.info)
        with _quiet_tracing():
            state = self.env.step(state, self.spec.action.clip(action))  # type: ignore[union-attr]
        successor = strip_weak_types(Start(state.pipeline_state, state.info))
        return successor, state.obs, state.reward, state.done.astype(bool)

    def reset(self, key: Array, num_envs: int) -> tuple[BraxState, Array]:
        """State and first observations; with `random_start`, episodes start at random ages."""
        key_starts, key_age = jax.random.split(key)
        kept = 0 if self._cached else _ring_size(num_envs)
        starts = self._start(jax.random.split(key_starts, num_envs + kept))
        current, obs = jax.tree.map(lambda leaf: leaf[:num_envs], starts)
        ring, ring_obs = (current, obs) if self._cached else jax.tree.map(lambda leaf: leaf[num_envs:], starts)
        zero = jnp.zeros((), jnp.int32)
        state = BraxState(current, jnp.zeros(num_envs, jnp.int32), ring, ring_obs, read_at=zero, write_at=zero)
        return (self.desynchronise(key_age, state) if self._random_start else state), obs

    def desynchronise(self, key: Array, state: BraxState) -> BraxState:
        """Draw each environment's age from [0, episode_length), so that they do not all reach the time limit at once.

        Only the ages change; the physical states are still start states.
        """
        return state._replace(age=jax.random.randint(key, state.age.shape, 0, self._episode_length, jnp.int32))

    def step(self, key: Array, state: BraxState, action: Array) -> tuple[BraxState, Step[Array]]:
        current, next_obs, reward, terminated = self._advance(state.current, action)
        age = state.age + 1
        truncated = (age >= self._episode_length) & ~terminated
        done = terminated | truncated
        restart, restart_obs, state = self._restarts(key, state, done)
        step = Step(
            obs=select(done, restart_obs, next_obs),
            next_obs=next_obs,
            reward=reward.astype(jnp.float32),
            terminated=terminated,
            truncated=truncated,
        )
        current = select(done, restart, current)
        return state._replace(current=current, age=jnp.where(done, 0, age)), step

    def _restarts(self, key: Array, state: BraxState, done: Array) -> tuple[Start, Array, BraxState]:
        """A start state and first observation for each environment (used only where `done`), and the advanced ring.

        The k-th finished environment takes entry read_at + k; then the chunk at write_at is refilled. The ring is a
        whole number of chunks, so no chunk wraps around.
        """
        if self._cached:
            return state.ring, state.ring_obs, state
        size, chunk = state.ring_obs.shape[0], _chunk_size(done.shape[0])
        rank = jnp.cumsum(done, dtype=jnp.int32) - done
        take = (state.read_at + rank) % size
        restart, restart_obs = jax.tree.map(lambda leaf: leaf[take], (state.ring, state.ring_obs))
        fresh = self._start(jax.random.split(key, chunk))
        ring, ring_obs = jax.tree.map(
            lambda leaf, new: jax.lax.dynamic_update_slice_in_dim(leaf, new, state.write_at, axis=0),
            (state.ring, state.ring_obs),
            fresh,
        )
        read_at = (state.read_at + jnp.sum(done, dtype=jnp.int32)) % size
        write_at = (state.write_at + chunk) % size
        return restart, restart_obs, state._replace(ring=ring, ring_obs=ring_obs, read_at=read_at, write_at=write_at)


def _chunk_size(num_envs: int) -> int:
    return max(1, num_envs // REFILL_SHARE)


def _ring_size(num_envs: int) -> int:
    """At least one entry per environment, and a whole number of chunks."""
    chunk = _chunk_size(num_envs)
    return -(-num_envs // chunk) * chunk


BACKEND = Backend(
    prefix="brax",
    make=make,
    names=names,
    checks_options=True,  # skips the check by tracing, which takes seconds
    extra="brax",
    packages=("brax", "jaxopt", "mujoco", "mujoco-mjx"),
    traced_modules=("brax",),
    presets={"*": "brax"},
)
