"""Navix: MiniGrid's mazes, keys and doors in JAX (Pignatelli et al., 2024).

Navix's `step` resets finished environments in the step after; this adapter calls `_step`, which does not. Its step type
tells truncation, after `max_steps` steps, from termination.
"""

from __future__ import annotations

import importlib.util
import warnings
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from nextpolicy.envs.base import (
    Discrete,
    EnvSpec,
    at_least_one,
    auto_reset,
    check_options,
    strip_weak_types,
    take_options,
)
from nextpolicy.envs.registry import Backend
from nextpolicy.types import Array, PyTree, Step

if TYPE_CHECKING:
    from navix import Environment

NAMES = (
    *(f"Navix-Empty-{size}-v0" for size in ("5x5", "6x6", "8x8", "16x16")),
    *(f"Navix-Empty-Random-{size}-v0" for size in ("5x5", "6x6", "8x8", "16x16")),
    *(f"Navix-DoorKey-{size}-v0" for size in ("5x5", "6x6", "8x8", "16x16")),
    *(f"Navix-DoorKey-Random-{size}-v0" for size in ("5x5", "6x6", "8x8", "16x16")),
    "Navix-FourRooms-v0",
    *(f"Navix-KeyCorridor{size}-v0" for size in ("S3R1", "S3R2", "S3R3", "S4R3", "S5R3", "S6R3")),
    *(f"Navix-LavaGap{size}-v0" for size in ("S5", "S6", "S7")),
    *(f"Navix-SimpleCrossing{size}-v0" for size in ("S9N1", "S9N2", "S9N3", "S11N5")),
    *(f"Navix-Dynamic-Obstacles-{size}-v0" for size in ("5x5", "5x5-Random", "6x6", "6x6-Random", "8x8", "16x16")),
    *(f"Navix-DistShift{number}-v0" for number in (1, 2)),
    *(f"Navix-GoToDoor-{size}-v0" for size in ("5x5", "6x6", "8x8")),
)
OBSERVATIONS = (  # functions of `navix.observations`
    "symbolic",
    "symbolic_first_person",
    "categorical",
    "categorical_first_person",
    "rgb",
    "rgb_first_person",
)
_DEFAULTS = {"max_steps": 100, "observation": "symbolic", "penality_coeff": 0.0}  # as in `navix.make`


class Current(NamedTuple):
    """The part of a Navix time step that the next step reads."""

    state: PyTree
    t: Array  # int32, steps taken in this episode


def import_navix() -> ModuleType:
    """The package, imported on first use."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of TensorFlow Probability, which its agents import
        import navix
    return cast(ModuleType, navix)


def names() -> list[str]:
    """The names of all environments."""
    if importlib.util.find_spec("navix") is None:  # importing it takes seconds
        raise ModuleNotFoundError("No module named 'navix'", name="navix")
    return list(NAMES)


def make(name: str, **options: object) -> NavixEnv:
    """The environment `name`."""
    env_id = f"navix/{name}"
    check_options(env_id, options, _DEFAULTS)
    chosen = take_options(env_id, options, _DEFAULTS, observation=OBSERVATIONS)
    at_least_one(env_id, "max_steps", chosen["max_steps"])
    navix = import_navix()
    observation = chosen.pop("observation")
    env = navix.make(name, observation_fn=getattr(navix.observations, observation), **chosen)
    return NavixEnv(env, env_id, pixels=observation.startswith("rgb"))


class NavixEnv:
    """A Navix environment as a `DeviceEnv`.

    Observations other than pixels are int32: they count kinds of objects, so they are normalised like numbers rather
    than divided by 255 like bytes.
    """

    unroll = 4  # steps are few small kernels, so the loop's overhead matters

    def __init__(self, env: Environment, env_id: str, *, pixels: bool):
        self.env, self._pixels = env, pixels
        obs = jax.eval_shape(self._start_one, jax.random.key(0))[1]
        self.spec = EnvSpec(
            id=env_id,
            obs_shape=obs.shape,
            action=Discrete(len(env.action_set)),
            obs_dtype=np.dtype(obs.dtype),
            time_limit=int(env.max_steps),
        )

    def render(self, state: Current) -> np.ndarray:
        """The grid of one environment, uint8 [H, W, 3]."""
        navix = import_navix()
        tiles = navix.rendering.cache.RenderingCache.init(state.state.grid)
        return np.asarray(navix.observations.rgb(state.state.replace(cache=tiles)))

    def _seen(self, step: PyTree) -> tuple[Current, Array]:
        """What the next step reads, and the observation."""
        # The background's pixels are kilobytes that only images read.
        state = step.state if self._pixels else step.state.replace(cache=None)
        obs = step.observation if self._pixels else step.observation.astype(jnp.int32)
        return strip_weak_types((Current(state, step.t), obs))

    def _start_one(self, key: Array) -> tuple[Current, Array]:
        return self._seen(self.env.reset(key))

    def _step_one(self, current: Current, action: Array) -> tuple[Current, Array, Array, Array, Array]:
        from navix import Timestep

        zero = jnp.zeros((), jnp.int32)
        before = Timestep(current.t, None, zero, zero, zero, current.state)  # `_step` reads time and state only
        after = self.env._step(before, action)
        return *self._seen(after), after.reward, after.is_termination(), after.is_truncation()

    def reset(self, key: Array, num_envs: int) -> tuple[Current, Array]:
        return jax.vmap(self._start_one)(jax.random.split(key, num_envs))

    def step(self, key: Array, state: Current, action: Array) -> tuple[Current, Step[Array]]:
        after = jax.vmap(self._step_one)(state, action)
        return auto_reset(self.reset(key, action.shape[0]), *after)


BACKEND = Backend(
    prefix="navix",
    make=make,
    names=names,
    checks_options=True,
    extra="navix",
    packages=("navix",),
    traced_modules=("navix",),
)
