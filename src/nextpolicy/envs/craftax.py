"""Craftax and Craftax-Classic, open worlds to survive in: symbolic or pixel observations (Matthews et al., 2024).

An option is a field of the environment's parameters, such as `max_timesteps` or `day_length`. Craftax ends an episode
on death, on victory and after `max_timesteps` steps alike; here the last is a truncation.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import io
import sys
from pathlib import Path
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

from nextpolicy.envs.base import (
    Discrete,
    EnvSpec,
    at_least_one,
    check_options,
    over_environments,
    strip_weak_types,
    take_options,
)
from nextpolicy.envs.registry import Backend
from nextpolicy.types import Array, PyTree, Step

NAMES = ("Craftax-Symbolic-v1", "Craftax-Classic-Symbolic-v1", "Craftax-Pixels-v1", "Craftax-Classic-Pixels-v1")
_LARGEST = 2**31 - 1  # int32
_CHUNKS = 16


class Game(Protocol):
    """What we call of Craftax's environments without auto-reset."""

    @property
    def num_actions(self) -> int: ...

    def observation_space(self, params: PyTree) -> PyTree: ...

    def reset_env(self, key: Array, params: PyTree) -> tuple[Array, PyTree]: ...

    def step_env(
        self, key: Array, state: PyTree, action: Array, params: PyTree
    ) -> tuple[Array, PyTree, Array, Array, PyTree]: ...

    def is_terminal(self, state: PyTree, params: PyTree) -> Array: ...


def names() -> list[str]:
    """The names of all environments."""
    if importlib.util.find_spec("craftax") is None:  # importing it takes seconds
        raise ModuleNotFoundError("No module named 'craftax'", name="craftax")
    return list(NAMES)


def make(name: str, **options: object) -> CraftaxEnv:
    """The environment `name`; options are fields of its parameters."""
    env_id = f"craftax/{name}"
    game = _load(name)
    params = game.default_params
    fields = {field.name: getattr(params, field.name) for field in dataclasses.fields(params)}
    fields.pop("fractal_noise_angles")  # for tests of the world's generator
    check_options(env_id, options, fields)
    chosen = take_options(env_id, options, fields)
    for counter in ("max_timesteps", "day_length"):
        at_least_one(env_id, counter, chosen[counter])
    for field, value in chosen.items():
        if value > _LARGEST:
            raise ValueError(f"{env_id} {field}: expected at most {_LARGEST}, got {value}")
    return CraftaxEnv(game, params.replace(**chosen), env_id)


def _load(name: str) -> PyTree:
    """Craftax's object. At first use, one with pixels prepares textures for about a minute; only this is said."""
    from craftax.craftax_env import make_craftax_env_from_name

    if "Pixels" not in name:
        return make_craftax_env_from_name(name, auto_reset=False)
    if "Classic" in name:
        from craftax.craftax_classic.constants import TEXTURE_CACHE_FILE
    else:
        from craftax.craftax.constants import TEXTURE_CACHE_FILE
    with contextlib.redirect_stdout(io.StringIO() if Path(TEXTURE_CACHE_FILE).exists() else sys.stderr):
        return make_craftax_env_from_name(name, auto_reset=False)


class CraftaxEnv:
    """A Craftax environment as a `DeviceEnv`."""

    def __init__(self, game: Game, params: PyTree, env_id: str):
        self.game, self.params = game, params
        self._endless = params.replace(max_timesteps=_LARGEST)
        # Under jit, both are traced once, however often the program calls them.
        self._start = over_environments(jax.jit(self._start_one))
        self._advance = over_environments(jax.jit(self._step_one))
        space = game.observation_space(params)
        self.spec = EnvSpec(
            id=env_id,
            obs_shape=tuple(space.shape),
            action=Discrete(int(game.num_actions)),
            obs_dtype=np.dtype(space.dtype),
            time_limit=int(params.max_timesteps),
        )

    def _start_one(self, key: Array) -> tuple[PyTree, Array]:
        obs, state = self.game.reset_env(key, self.params)
        return strip_weak_types((state, obs))

    def _step_one(self, key: Array, state: PyTree, action: Array) -> tuple[PyTree, Array, Array, Array]:
        """Successor, its observation, the reward, and whether the episode terminated."""
        obs, state, reward, _, _ = self.game.step_env(key, state, action, self.params)
        return strip_weak_types((state, obs, reward, self.game.is_terminal(state, self._endless)))

    def reset(self, key: Array, num_envs: int) -> tuple[PyTree, Array]:
        return self._start(jax.random.split(key, num_envs))

    def step(self, key: Array, state: PyTree, action: Array) -> tuple[PyTree, Step[Array]]:
        key_step, key_reset = jax.random.split(key)
        num_envs = action.shape[0]
        state, next_obs, reward, terminated = self._advance(jax.random.split(key_step, num_envs), state, action)
        truncated = (state.timestep >= self.spec.time_limit) & ~terminated
        done = terminated | truncated
        state, obs = self._restart(jax.random.split(key_reset, num_envs), done, state, next_obs)
        step = Step(
            obs=obs,
            next_obs=next_obs,
            reward=reward.astype(jnp.float32),
            terminated=terminated,
            truncated=truncated,
        )
        return state, step

    def _restart(self, keys: Array, done: Array, state: PyTree, obs: Array) -> tuple[PyTree, Array]:
        """State and observations with a new world for each of N environments that has finished.

        A world takes longer than a step and few environments finish at once. So worlds are generated in chunks of
        N / 16, as many chunks as needed, often one or none.
        """
        num_envs = done.shape[0]
        finished, order = jnp.sum(done), jnp.argsort(~done)  # finished ones first
        places = jnp.arange(max(1, num_envs // _CHUNKS))

        def generate(carry: tuple[Array, PyTree]) -> tuple[Array, PyTree]:
            begin, current = carry
            rows = order[jnp.minimum(begin + places, num_envs - 1)]
            fresh = self._start(keys[rows])
            rows = jnp.where(begin + places < finished, rows, num_envs)  # out of bounds: dropped
            current = jax.tree.map(lambda leaf, new: leaf.at[rows].set(new, mode="drop"), current, fresh)
            return begin + len(places), current

        start = jnp.zeros((), finished.dtype), (state, obs)
        return jax.lax.while_loop(lambda carry: carry[0] < finished, generate, start)[1]


BACKEND = Backend(
    prefix="craftax",
    make=make,
    names=names,
    checks_options=True,  # skips the check by tracing, which takes seconds
    extra="craftax",
    packages=("craftax",),
    traced_modules=("craftax",),
    presets={"*": "craftax"},
)
