"""Gymnax 1.x environments, with termination separate from truncation and the true successor kept.

Gymnax's own `step` resets finished environments. This adapter calls `step_env` and `is_truncated` instead and resets
with `auto_reset`.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import math
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any, Protocol, cast

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from nextpolicy.envs import pictures
from nextpolicy.envs.base import ActionSpace, Box, Discrete, EnvSpec, auto_reset, check_options, strip_weak_types
from nextpolicy.envs.nested import MultiDiscrete, flatten, unflatten
from nextpolicy.envs.registry import Backend
from nextpolicy.envs.space_trees import is_nested, nested_actions, observation_tree
from nextpolicy.envs.straight_line import straight_line
from nextpolicy.types import Array, PyTree, Step


class GymnaxStyle(Protocol):
    """The interface of an environment object.

    It also has `reset_env(key, params)`, or `reset` with the same signature. `is_truncated(state, params)` is optional.
    """

    @property
    def default_params(self) -> PyTree: ...

    def step_env(
        self, key: Array, state: PyTree, action: Array, params: PyTree
    ) -> tuple[Array, PyTree, Array, Array, PyTree]:
        """Observation, state, reward, whether the episode terminated, and an info dict, which is ignored."""
        ...

    def action_space(self, params: PyTree) -> object: ...

    def observation_space(self, params: PyTree) -> object: ...


def import_gymnax() -> ModuleType:
    """The gymnax package, imported on first use."""
    import gymnax

    return cast(ModuleType, gymnax)


def names() -> list[str]:
    """All environments that gymnax registers."""
    return list(import_gymnax().registered_envs)


def make(name: str, *, env_params: PyTree = None, **options: object) -> GymnaxEnv:
    """The registered environment `name`; options are its constructor's arguments or fields of its parameters."""
    gymnax = import_gymnax()
    env_id = f"gymnax/{name}"
    env, params = gymnax.make(name)
    constructor = _constructor_options(env)
    if constructor & options.keys():
        env, params = gymnax.make(name, **{k: v for k, v in options.items() if k in constructor})
    params = params if env_params is None else env_params
    fields = {field.name for field in dataclasses.fields(params)}
    check_options(env_id, options, constructor | fields | {"env_params"})
    params = params.replace(**{k: _typed_like(getattr(params, k), v) for k, v in options.items() if k in fields})
    return GymnaxEnv(env, params, env_id, binary_obs=name.endswith("-MinAtar"))


def wrap(env: object, *, env_params: PyTree = None, **options: object) -> GymnaxEnv:
    """A user's own gymnax-style environment object; `env_params` default to its `default_params`."""
    env_id = str(getattr(env, "name", type(env).__name__))
    check_options(env_id, options, {"env_params"})
    needed = ("step_env", "default_params", "action_space", "observation_space")
    missing = [name for name in needed if not hasattr(env, name)]
    if not (hasattr(env, "reset_env") or hasattr(env, "reset")):
        missing.insert(0, "reset_env")
    if missing:
        hint = "; pass a Gymnasium environment as env_fn, a callable" if callable(env) or hasattr(env, "step") else ""
        raise ValueError(
            f"environment: expected a gymnax-style environment, got {env_id} without {', '.join(missing)}{hint}"
        )
    own = cast(GymnaxStyle, env)
    return GymnaxEnv(own, own.default_params if env_params is None else env_params, env_id)


class GymnaxEnv:
    """A gymnax-style environment as a `DeviceEnv`.

    A discrete observation space of size n becomes a table of n one-hot rows. Observations of a Dict or Tuple space
    become vectors. `binary_obs` stores observations that are always 0 or 1 in one byte instead of four. An environment
    without `is_truncated` whose state counts its steps in `time` is truncated at its parameters'
    `max_steps_in_episode`.
    """

    unroll = 4  # steps are few small kernels, so the loop's overhead matters

    def __init__(self, env: GymnaxStyle, params: PyTree, env_id: str, *, binary_obs: bool = False):
        self.env, self.params = env, params
        self._canvas: Any = None  # Gymnasium's picture of the environment
        self._binary_obs, self._name = binary_obs, f"{env_id} obs"
        space = env.observation_space(params)
        self._tree = observation_tree(env_id, space) if is_nested(space) else None
        state, obs = jax.eval_shape(self._reset_one, jax.random.key(0))
        # A start state that a step reads back from memory must be small to be cheaper than making it in the step.
        self._small = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves((state, obs))) <= 128
        if not hasattr(obs, "shape"):
            got = f"{type(obs).__name__} for a space {type(space).__name__}"
            raise ValueError(f"{env_id}: expected observations that are one array, or a Dict or Tuple space, got {got}")
        categories = getattr(space, "n", None)
        table = np.eye(categories, dtype=np.float32) if categories is not None and obs.shape == () else None
        self.spec = EnvSpec(
            id=env_id,
            obs_shape=obs.shape if table is None else table.shape[1:],
            action=_action_space(env_id, env.action_space(params)),
            obs_dtype=np.dtype(obs.dtype if table is None else np.float32),
            time_limit=_time_limit(params),
            obs_table=table,
            obs_tree=self._tree,
        )

    @property
    def can_render(self) -> bool:
        """Whether we draw it (MinAtar), or gymnax does (classic control, by Gymnasium and pygame)."""
        return self._binary_obs or (_by_gymnasium(self.env) and not self.needs_pygame)

    @property
    def needs_pygame(self) -> bool:
        """Whether it could be drawn if Gymnasium and pygame were installed."""
        missing = any(importlib.util.find_spec(name) is None for name in ("gymnasium", "pygame"))
        return missing and _by_gymnasium(self.env)

    def render(self, state: PyTree) -> np.ndarray:
        """An image of one environment, uint8 [H, W, 3]."""
        if self._binary_obs:
            return pictures.screen(np.asarray(self.env.get_obs(state)))  # type: ignore[attr-defined]
        from gymnax.visualize import vis_gym

        name = self.env.name  # type: ignore[attr-defined]
        if self._canvas is None:  # gymnax makes one for each frame, which takes longer than drawing
            os.environ.setdefault("SDL_AUDIODRIVER", "dummy")  # or pygame complains where there is no sound
            os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
            import gymnasium

            self._canvas = gymnasium.make(name, render_mode="rgb_array").unwrapped
            self._canvas.reset()
            vis_gym.set_gym_params(self._canvas, name, self.params)
        self._canvas.state = vis_gym.get_gym_state(state, name)
        self._canvas.last_u = getattr(state, "last_u", None)  # Pendulum's arrow
        return np.asarray(self._canvas.render())

    def _observe(self, obs: PyTree) -> Array:
        if self._tree is not None:
            return cast(Array, flatten(self._tree, obs, jnp, self._name))
        return obs.astype(bool) if self._binary_obs else obs

    def _reset_one(self, key: Array) -> tuple[PyTree, Array]:
        reset = "reset_env" if hasattr(self.env, "reset_env") else "reset"
        obs, state = getattr(self.env, reset)(key, self.params)
        return strip_weak_types(state), self._observe(obs)

    def _step_one(self, key: Array, state: PyTree, action: Array) -> tuple[PyTree, Array, Array, Array, Array]:
        if isinstance(self.spec.action, Box):
            action = self.spec.action.clip(action)
        if isinstance(self.spec.action, MultiDiscrete):
            action = self.spec.action.legal(action)
        if self.spec.action.tree is not None:
            action = unflatten(self.spec.action.tree, action, own_dtypes=False)
        obs, state, reward, terminated, _ = self.env.step_env(key, state, action, self.params)
        return strip_weak_types(state), self._observe(obs), reward, terminated, self._truncated(state)

    def _truncated(self, state: PyTree) -> Array:
        if hasattr(self.env, "is_truncated"):
            return jnp.asarray(self.env.is_truncated(state, self.params))
        if self.spec.time_limit is not None and hasattr(state, "time"):
            return state.time >= self.spec.time_limit
        return jnp.array(False)

    def reset(self, key: Array, num_envs: int) -> tuple[PyTree, Array]:
        return self._start(jax.random.split(key, num_envs))

    def _start(self, keys: Array) -> tuple[PyTree, Array]:
        """Start states and observations for N keys."""
        return jax.vmap(_few_kernels(self._reset_one))(keys)

    def step(self, key: Array, state: PyTree, action: Array) -> tuple[PyTree, Step[Array]]:
        return self.step_drawn(self.draw(key, action.shape[0]), state, action)

    def draw(self, key: Array, num_envs: int) -> PyTree:
        """The randomness of one step of all N: a key for each environment, and start states or keys for them."""
        key_step, key_reset = jax.random.split(key)
        keys = jax.random.split(key_reset, num_envs)
        return jax.random.split(key_step, num_envs), (self._start(keys) if self._small else keys)

    def step_drawn(self, drawn: PyTree, state: PyTree, action: Array) -> tuple[PyTree, Step[Array]]:
        """`step` with the outputs of `draw`."""
        keys, start = drawn
        fresh = start if self._small else self._start(start)
        state, next_obs, reward, terminated, truncated = jax.vmap(_few_kernels(self._step_one))(keys, state, action)
        return auto_reset(fresh, state, next_obs, reward, terminated.astype(bool), truncated.astype(bool))


def _by_gymnasium(env: object) -> bool:
    """Whether gymnax draws this environment with Gymnasium's own picture of it."""
    return type(env).__module__.startswith("gymnax.environments.classic_control.")


def _few_kernels(function: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """`function` for a GPU; on a CPU, where kernels cost nothing, a write is faster than a selection."""
    return straight_line(function) if jax.default_backend() == "gpu" else function


def _constructor_options(env: object) -> set[str]:
    init = type(env).__init__
    return set() if init is object.__init__ else set(inspect.signature(init).parameters) - {"self", "args", "kwargs"}


def _typed_like(default: object, value: object) -> object:
    """An integer for a field that holds a float becomes a float: some environments branch on the type."""
    return float(value) if isinstance(default, float) and isinstance(value, int) else value


def _action_space(env_id: str, space: object) -> ActionSpace:
    if is_nested(space):
        return nested_actions(env_id, space, "change the environment's action_space")
    if hasattr(space, "n"):
        return Discrete(int(space.n))
    if not (hasattr(space, "low") and hasattr(space, "high") and hasattr(space, "shape")):
        raise ValueError(f"{env_id}: expected actions of Discrete or Box, got {type(space).__name__}")
    return Box(shape=tuple(space.shape), low=_bound(space.low), high=_bound(space.high))


def _bound(bound: npt.ArrayLike) -> float | np.ndarray:
    """One number if all elements are equal: a spec of plain numbers can be compared and hashed."""
    array = np.asarray(bound, np.float32)
    return float(array.flat[0]) if np.all(array == array.flat[0]) else array


def _time_limit(params: PyTree) -> int | None:
    limit = getattr(params, "max_steps_in_episode", None)
    if limit is None or not math.isfinite(limit) or limit >= np.iinfo(np.int32).max:
        return None
    return int(limit)


BACKEND = Backend(
    prefix="gymnax",
    make=make,
    names=names,
    excluded={"MNISTBandit-bsuite": "downloads a data set whenever it is made"},
    extra="gymnax",
    packages=("gymnax",),
    traced_modules=("gymnax",),
    presets={"*-MinAtar": "minatar"},
)
