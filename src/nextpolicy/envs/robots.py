"""What Brax's and MuJoCo Playground's environments share: N robots with our own time limit and auto-reset.

A fresh start state needs a physics initialisation, which is too slow to run for all N environments at every step. The
state therefore carries a ring of start states: every step refills a sixteenth of it, and finished environments take the
next entries in turn. If at most N environments finish in any 16 steps, no start state is used twice.
`reset="cached"` reproduces Brax's own wrapper: every environment always returns to its first state.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nextpolicy.envs.base import Box, EnvSpec, over_environments, select
from nextpolicy.envs.ordered_sums import ordered
from nextpolicy.types import Array, PyTree, Step

RESETS = ("fresh", "cached")
REFILL_SHARE = 16  # a step refills 1/16 of the ring


class RobotState(NamedTuple):
    """N environments and a ring of P start states for those that finish."""

    current: PyTree  # leaves [N, ...]
    age: Array  # [N] int32, steps taken in this episode
    ring: PyTree  # leaves [P, ...], as `current`
    ring_obs: Array  # [P, obs]
    read_at: Array  # int32: the entry that the next finished environment takes
    write_at: Array  # int32: the first entry of the chunk refilled next


class RobotEnv(ABC):
    """A simulated robot as a `DeviceEnv`; actions are clipped to [-1, 1]. A backend implements its two functions."""

    def __init__(self, env_id: str, action_size: int, time_limit: int, *, cached: bool, random_start: bool):
        self._cached, self._random_start, self._time_limit = cached, random_start, time_limit
        self._actions = Box(shape=(action_size,), low=-1.0, high=1.0)
        # Under jit, reset and step are each traced once, however often the program calls them.
        start, advance = jax.jit(ordered(self._start_one)), jax.jit(ordered(self._step_one))
        self._start, self._advance = over_environments(start), over_environments(advance)
        obs = jax.eval_shape(start, jax.random.key(0))[1]
        self.spec = EnvSpec(
            id=env_id,
            obs_shape=obs.shape,
            action=self._actions,
            obs_dtype=np.dtype(obs.dtype),
            time_limit=time_limit,
        )

    @abstractmethod
    def _start_one(self, key: Array) -> tuple[PyTree, Array]:
        """What a step reads of a start state, and the first observation."""

    @abstractmethod
    def _step_one(self, current: PyTree, action: Array) -> tuple[PyTree, Array, Array, Array]:
        """Successor, its observation, the reward, and whether the episode terminated."""

    def reset(self, key: Array, num_envs: int) -> tuple[RobotState, Array]:
        """State and first observations; with `random_start`, episodes start at random ages."""
        key_starts, key_age = jax.random.split(key)
        kept = 0 if self._cached else _ring_size(num_envs)
        starts = self._start(jax.random.split(key_starts, num_envs + kept))
        current, obs = jax.tree.map(lambda leaf: leaf[:num_envs], starts)
        ring, ring_obs = (current, obs) if self._cached else jax.tree.map(lambda leaf: leaf[num_envs:], starts)
        zero = jnp.zeros((), jnp.int32)
        state = RobotState(current, jnp.zeros(num_envs, jnp.int32), ring, ring_obs, read_at=zero, write_at=zero)
        return (self.desynchronise(key_age, state) if self._random_start else state), obs

    def desynchronise(self, key: Array, state: RobotState) -> RobotState:
        """Draw each environment's age from [0, time_limit), so that they do not all reach the time limit at once.

        Only the ages change; the physical states are still start states.
        """
        return state._replace(age=jax.random.randint(key, state.age.shape, 0, self._time_limit, jnp.int32))

    def step(self, key: Array, state: RobotState, action: Array) -> tuple[RobotState, Step[Array]]:
        current, next_obs, reward, terminated = self._advance(state.current, action)
        age = state.age + 1
        truncated = (age >= self._time_limit) & ~terminated
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

    def _restarts(self, key: Array, state: RobotState, done: Array) -> tuple[PyTree, Array, RobotState]:
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


@contextlib.contextmanager
def quiet_import() -> Iterator[None]:
    """Hide what MJX prints about missing optional packages, and jaxopt's notice that it is deprecated."""
    printed = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(printed):
        warnings.simplefilter("ignore", DeprecationWarning)
        yield
    for line in printed.getvalue().splitlines():
        if not line.startswith(("Failed to import warp", "Failed to import mujoco_warp")):
            print(line)


@contextlib.contextmanager
def quiet_tracing() -> Iterator[None]:
    """Ignore MJX's warnings about fields that an environment reads by a deprecated name."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Accessing `.*` directly from", DeprecationWarning)
        yield


@contextlib.contextmanager
def quiet_models() -> Iterator[None]:
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
