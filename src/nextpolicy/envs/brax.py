"""Brax environments."""

from __future__ import annotations

import importlib.util
import inspect
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from nextpolicy.core import check
from nextpolicy.envs import pictures
from nextpolicy.envs.base import at_least_one, check_options, strip_weak_types
from nextpolicy.envs.registry import Backend
from nextpolicy.envs.robots import RESETS, RobotEnv, RobotState, quiet_import, quiet_models, quiet_tracing
from nextpolicy.types import Array, PyTree

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


class Start(NamedTuple):
    """The part of a Brax state that a step reads; observation, reward, done and metrics are outputs only."""

    pipeline_state: PyTree
    info: PyTree


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
    with quiet_import():
        import brax.envs
        from brax import fluid
    if not isinstance(fluid.jp, _OldClip):
        fluid.jp = _OldClip()  # brax 0.14.2 calls jnp.clip(a_min=), which newer JAX has removed
    return cast(ModuleType, brax.envs)


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
    check.one_of(f"{env_id} reset", reset, RESETS)
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
    with quiet_models():
        return envs.get_environment(name, **({} if backend == "none" else {"backend": backend}), **options)


class BraxEnv(RobotEnv):
    """A Brax environment as a `DeviceEnv`."""

    def __init__(self, env: Env, env_id: str, episode_length: int, *, cached: bool, random_start: bool):
        self.env = env
        self._view = pictures.VIEWS.get(env_id.partition("/")[2])  # None for `fast`, which has no bodies
        self.can_render = self._view is not None
        self.seconds_per_step = float(env.dt) if self.can_render else None
        super().__init__(env_id, int(env.action_size), episode_length, cached=cached, random_start=random_start)

    def render(self, state: RobotState) -> np.ndarray:
        """The bodies of one environment, uint8 [240, 320, 3]."""
        assert self._view is not None
        bodies = state.current.pipeline_state.x
        return pictures.body(self.env.sys.mj_model, np.asarray(bodies.pos), np.asarray(bodies.rot), self._view)

    def _start_one(self, key: Array) -> tuple[Start, Array]:
        with quiet_tracing():
            state = self.env.reset(key)
        return strip_weak_types((Start(state.pipeline_state, state.info), state.obs))

    def _step_one(self, current: Start, action: Array) -> tuple[Start, Array, Array, Array]:
        from brax.envs.base import State

        zero = jnp.zeros(())
        # Brax writes `metrics` and never reads them, so an empty dict is enough.
        state = State(current.pipeline_state, None, zero, zero, metrics={}, info=current.info)
        with quiet_tracing():
            state = self.env.step(state, self._actions.clip(action))
        successor = strip_weak_types(Start(state.pipeline_state, state.info))
        return successor, state.obs, state.reward, state.done.astype(bool)


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
