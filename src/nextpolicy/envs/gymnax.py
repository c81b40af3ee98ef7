"""Gymnax 1.x environments: terminated and truncated kept apart, and the true successor kept at the end of an episode.

Gymnax's own `step` restarts finished environments itself; here its `step_env` and `is_truncated` are called and the
restart is ours, so that every adapter restarts alike.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nextpolicy.envs.base import Box, Discrete, EnvSpec, auto_reset, check_options, strong
from nextpolicy.types import Array, PyTree, Step

# Registered in gymnax but not offered, with the reason.
EXCLUDED = {"MNISTBandit-bsuite": "downloads a data set whenever it is made"}


def import_gymnax() -> Any:
    """The gymnax package, imported when an environment of it is first asked for."""
    import gymnax

    return gymnax


def names() -> list[str]:
    """The environments offered, without the suite's prefix."""
    return [name for name in import_gymnax().registered_envs if name not in EXCLUDED]


def make(name: str, *, env_params: Any = None, **options: Any) -> GymnaxEnv:
    """The registered environment `name`; options are its constructor's arguments or fields of its parameters."""
    gymnax = import_gymnax()
    env_id = f"gymnax/{name}"
    if name in EXCLUDED:
        raise ValueError(f"{env_id}: not offered, it {EXCLUDED[name]}")
    env, params = gymnax.make(name)
    constructor = _constructor_options(env)
    if constructor & options.keys():
        env, params = gymnax.make(name, **{k: v for k, v in options.items() if k in constructor})
    params = params if env_params is None else env_params
    fields = {field.name for field in dataclasses.fields(params)}
    check_options(env_id, options, constructor | fields | {"env_params"})
    params = params.replace(**{k: _typed_like(getattr(params, k), v) for k, v in options.items() if k in fields})
    return GymnaxEnv(env, params, env_id, binary_obs=name.endswith("-MinAtar"))


def wrap(env: Any, *, env_params: Any = None, **options: Any) -> GymnaxEnv:
    """A user's own environment object of gymnax's shape; `env_params` default to its `default_params`."""
    env_id = str(getattr(env, "name", type(env).__name__))
    check_options(env_id, options, {"env_params"})
    needed = ("step_env", "default_params", "action_space", "observation_space")
    missing = [name for name in needed if not hasattr(env, name)]
    if not (hasattr(env, "reset_env") or hasattr(env, "reset")):
        missing.insert(0, "reset_env")
    if missing:
        hint = "; one of Gymnasium's is made by env_fn=..., a callable" if callable(env) or hasattr(env, "step") else ""
        raise ValueError(
            f"environment: got {env_id} without {', '.join(missing)}, takes a gymnax-style environment{hint}"
        )
    return GymnaxEnv(env, env.default_params if env_params is None else env_params, env_id)


class GymnaxEnv:
    """A gymnax-style environment as a `DeviceEnv`.

    An observation space that is one number out of n becomes a table of n one-hot rows. `binary_obs` stores
    observations that are only ever 0 or 1 in one byte instead of four. An environment without `is_truncated` whose
    state counts its steps in `time` is truncated at its parameters' `max_steps_in_episode`.
    """

    unroll = 4  # a step is a few small kernels

    def __init__(self, env: Any, params: Any, env_id: str, *, binary_obs: bool = False):
        self.env, self.params = env, params
        self._binary_obs = binary_obs
        obs = jax.eval_shape(self._reset_one, jax.random.key(0))[1]
        if not hasattr(obs, "shape"):
            raise ValueError(f"{env_id}: got an observation of type {type(obs).__name__}, takes one array")
        categories = getattr(env.observation_space(params), "n", None)
        table = np.eye(categories, dtype=np.float32) if categories is not None and obs.shape == () else None
        self.spec = EnvSpec(
            id=env_id,
            obs_shape=obs.shape if table is None else table.shape[1:],
            action=_action_space(env_id, env.action_space(params)),
            obs_dtype=np.dtype(obs.dtype if table is None else np.float32),
            time_limit=_time_limit(params),
            obs_table=table,
        )

    def _observe(self, obs: Array) -> Array:
        return obs.astype(bool) if self._binary_obs else obs

    def _reset_one(self, key: Array) -> tuple[PyTree, Array]:
        reset = getattr(self.env, "reset_env", None) or self.env.reset
        obs, state = reset(key, self.params)
        return strong(state), self._observe(obs)

    def _step_one(self, key: Array, state: PyTree, action: Array) -> tuple[PyTree, Array, Array, Array, Array]:
        if isinstance(self.spec.action, Box):
            action = self.spec.action.clip(action)
        obs, state, reward, terminated, _ = self.env.step_env(key, state, action, self.params)
        return strong(state), self._observe(obs), reward, terminated, self._truncated(state)

    def _truncated(self, state: PyTree) -> Array:
        if hasattr(self.env, "is_truncated"):
            return jnp.asarray(self.env.is_truncated(state, self.params))
        if self.spec.time_limit is not None and hasattr(state, "time"):
            return state.time >= self.spec.time_limit
        return jnp.array(False)

    def reset(self, key: Array, num_envs: int) -> tuple[PyTree, Array]:
        return jax.vmap(self._reset_one)(jax.random.split(key, num_envs))

    def step(self, key: Array, state: PyTree, action: Array) -> tuple[PyTree, Step[Array]]:
        key_step, key_reset = jax.random.split(key)
        keys = jax.random.split(key_step, action.shape[0])
        state, next_obs, reward, terminated, truncated = jax.vmap(self._step_one)(keys, state, action)
        return auto_reset(
            key_reset, self._reset_one, state, next_obs, reward, terminated.astype(bool), truncated.astype(bool)
        )


def _constructor_options(env: Any) -> set[str]:
    init = type(env).__init__
    return set() if init is object.__init__ else set(inspect.signature(init).parameters) - {"self", "args", "kwargs"}


def _typed_like(default: Any, value: Any) -> Any:
    """A whole number for a field that holds a float becomes one: some environments select between the two types."""
    return float(value) if isinstance(default, float) and isinstance(value, int) else value


def _action_space(env_id: str, space: Any) -> Discrete | Box:
    if hasattr(space, "n"):
        return Discrete(int(space.n))
    if not hasattr(space, "low"):
        raise ValueError(f"{env_id}: got actions of type {type(space).__name__}, takes Discrete or Box")
    return Box(shape=tuple(space.shape), low=_bound(space.low), high=_bound(space.high))


def _bound(bound: Any) -> float | np.ndarray:
    """One number where all elements agree: a spec of plain numbers can be compared and hashed."""
    array = np.asarray(bound, np.float32)
    return float(array.flat[0]) if np.all(array == array.flat[0]) else array


def _time_limit(params: Any) -> int | None:
    limit = getattr(params, "max_steps_in_episode", None)
    if limit is None or not math.isfinite(limit) or limit >= np.iinfo(np.int32).max:
        return None
    return int(limit)
