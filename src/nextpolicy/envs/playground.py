"""MuJoCo Playground environments: DeepMind's control suite, and locomotion and manipulation robots, on MJX.

An option is an entry of the environment's own config, nested ones with dots: `episode_length`, `ctrl_dt` or
`reward_config.scales.termination`. Playground's `done` is termination: a fall, or a simulation that has diverged.
Episodes are truncated after `episode_length` physical control steps, as by Playground's wrapper, that is after
ceil(episode_length / action_repeat) steps of ours; the reward of a step is the sum over its repeats.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import jax
import jax.numpy as jnp

from nextpolicy.core import check
from nextpolicy.envs.base import at_least_one, check_options, strip_weak_types
from nextpolicy.envs.registry import Backend
from nextpolicy.envs.robots import RESETS, RobotEnv, quiet_import, quiet_models, quiet_tracing
from nextpolicy.types import Array, PyTree

if TYPE_CHECKING:
    from mujoco_playground import MjxEnv

CONTROL_SUITE = (
    "AcrobotSwingup",
    "AcrobotSwingupSparse",
    "BallInCup",
    "CartpoleBalance",
    "CartpoleBalanceSparse",
    "CartpoleSwingup",
    "CartpoleSwingupSparse",
    "CheetahRun",
    "FingerSpin",
    "FingerTurnEasy",
    "FingerTurnHard",
    "FishSwim",
    "HopperHop",
    "HopperStand",
    "HumanoidStand",
    "HumanoidWalk",
    "HumanoidRun",
    "PendulumSwingup",
    "PointMass",
    "ReacherEasy",
    "ReacherHard",
    "SwimmerSwimmer6",
    "WalkerRun",
    "WalkerStand",
    "WalkerWalk",
)
# Their models are downloaded at first use.
ROBOTS = (
    "ApolloJoystickFlatTerrain",
    "BarkourJoystick",
    "BerkeleyHumanoidJoystickFlatTerrain",
    "BerkeleyHumanoidJoystickRoughTerrain",
    "G1JoystickFlatTerrain",
    "G1JoystickRoughTerrain",
    "Go1JoystickFlatTerrain",
    "Go1JoystickRoughTerrain",
    "Go1Getup",
    "Go1Handstand",
    "Go1Footstand",
    "H1InplaceGaitTracking",
    "H1JoystickGaitTracking",
    "Op3Joystick",
    "SpotFlatTerrainJoystick",
    "SpotGetup",
    "SpotJoystickGaitTracking",
    "T1JoystickFlatTerrain",
    "T1JoystickRoughTerrain",
    "AlohaHandOver",
    "AlohaSinglePegInsertion",
    "PandaPickCube",
    "PandaPickCubeOrientation",
    "PandaPickCubeCartesian",
    "PandaOpenCabinet",
    "PandaRobotiqPushCube",
    "LeapCubeReorient",
    "LeapCubeRotateZAxis",
    "AeroCubeRotateZAxis",
)
IMPLEMENTATIONS = ("jax", "warp")  # of MJX


class Start(NamedTuple):
    """The part of a Playground state that a step reads; some robots keep a history in the observation."""

    data: tuple[Array, ...]  # see `_Physics`
    obs: PyTree
    info: PyTree


def import_playground() -> ModuleType:
    """The package, imported on first use."""
    with quiet_import():
        import mujoco_playground
    return cast(ModuleType, mujoco_playground)


def names() -> list[str]:
    """The names of all environments."""
    if importlib.util.find_spec("mujoco_playground") is None:  # importing it takes seconds
        raise ModuleNotFoundError("No module named 'mujoco_playground'", name="mujoco_playground")
    return [*CONTROL_SUITE, *ROBOTS]


def make(
    name: str, *, impl: str = "jax", reset: str = "fresh", random_start: bool = False, **options: object
) -> PlaygroundEnv:
    """The environment `name`; further options are entries of its config."""
    env_id = f"playground/{name}"
    registry = import_playground().registry
    check.one_of(f"{env_id} reset", reset, RESETS)
    _check_impl(env_id, impl)
    config = registry.get_default_config(name)
    check_options(env_id, options, {*_entries(config), "impl", "reset", "random_start"})
    _check_time_steps(env_id, options.get("ctrl_dt", config.ctrl_dt), options.get("sim_dt", config.sim_dt))
    with _models(env_id, impl), quiet_models():
        env = registry.load(name, config, config_overrides={**options, "impl": impl})
    for counter in ("episode_length", "action_repeat"):
        at_least_one(env_id, counter, config[counter])
    counters = int(config.episode_length), int(config.action_repeat)
    return PlaygroundEnv(env, env_id, *counters, cached=reset == "cached", random_start=random_start)


def _entries(config: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """The names of a config's entries, except for those about images, which the networks here do not read."""
    for name, value in config.items():
        if isinstance(value, Mapping) or hasattr(value, "items"):
            yield from _entries(value, f"{prefix}{name}.") if name != "vision_config" else ()
        elif name != "vision":
            yield prefix + name


def _check_time_steps(env_id: str, control: object, simulation: object) -> None:
    """A control step is a whole number of simulation steps; Playground would round it, to none if need be."""
    numbers = [x for x in (control, simulation) if isinstance(x, (int, float)) and not isinstance(x, bool)]
    steps = numbers[0] / numbers[1] if len(numbers) == 2 and numbers[1] > 0 else 0
    if not 0.5 < steps < math.inf or abs(steps - round(steps)) > 1e-6 * steps:
        raise ValueError(
            f"{env_id} ctrl_dt, sim_dt: expected ctrl_dt to be a multiple of sim_dt, both above 0, got {control!r} and "
            f"{simulation!r}"
        )


def _check_impl(env_id: str, impl: str) -> None:
    check.one_of(f"{env_id} impl", impl, IMPLEMENTATIONS)
    if impl == "warp" and importlib.util.find_spec("warp") is None:
        raise ValueError(f"{env_id} impl: expected the package warp-lang for 'warp', got none; pip install warp-lang")
    if impl == "warp" and jax.default_backend() != "gpu":
        raise ValueError(f"{env_id} impl: expected a GPU for 'warp', got {jax.default_backend()}; use impl=jax")


@contextlib.contextmanager
def _models(env_id: str, impl: str) -> Iterator[None]:
    """Say in one line why an environment cannot be built; what Playground prints of a download is progress."""
    from mujoco_playground._src.mjx_env import MENAGERIE_COMMIT_SHA, MENAGERIE_PATH

    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except (subprocess.CalledProcessError, OSError) as error:
        reason = str(error).rstrip(".")
        raise ValueError(
            f"{env_id}: expected MuJoCo Menagerie's models, which git downloads at first use, got {reason}; "
            f"try again with a network, or copy commit {MENAGERIE_COMMIT_SHA[:7]} of "
            f"github.com/google-deepmind/mujoco_menagerie to {MENAGERIE_PATH}"
        ) from error
    except NotImplementedError as error:
        other = next(each for each in IMPLEMENTATIONS if each != impl)
        raise ValueError(f"{env_id}: expected a model that impl={impl} can run; try impl={other} ({error})") from error


class _Physics:
    """Which arrays of MJX's data belong to a single environment; only these are carried from step to step.

    Warp's contacts are one list for all environments, which every step makes anew, so zeros are enough to start from.
    """

    def __init__(self, reset: Callable[[Array], PyTree]):
        many = 7919  # no array has this size by chance
        data = jax.eval_shape(lambda key: jax.vmap(reset)(jax.random.split(key, many)), jax.random.key(0)).data
        leaves, self._structure = jax.tree.flatten(data)
        self._own = [leaf.shape[:1] == (many,) and leaf.size > 0 for leaf in leaves]
        self._shapes = [leaf.update(shape=leaf.shape[1:]) if leaf.shape[:1] == (many,) else leaf for leaf in leaves]

    def carried(self, data: PyTree) -> tuple[Array, ...]:
        return tuple(leaf for leaf, own in zip(jax.tree.leaves(data), self._own, strict=True) if own)

    def whole(self, carried: tuple[Array, ...]) -> PyTree:
        """The data whose `carried` these are."""
        rest = iter(carried)
        leaves = [
            next(rest) if own else jnp.zeros(like.shape, like.dtype)
            for like, own in zip(self._shapes, self._own, strict=True)
        ]
        return jax.tree.unflatten(self._structure, leaves)


class PlaygroundEnv(RobotEnv):
    """A Playground environment as a `DeviceEnv`; of observations with several parts, policies read `state`."""

    def __init__(
        self,
        env: MjxEnv,
        env_id: str,
        episode_length: int,
        action_repeat: int,
        *,
        cached: bool,
        random_start: bool,
    ):
        self.env, self._repeat = env, action_repeat
        self._reset = jax.jit(env.reset)
        with quiet_tracing():
            self._physics = _Physics(self._reset)
        limit = -(-episode_length // action_repeat)
        super().__init__(env_id, int(env.action_size), limit, cached=cached, random_start=random_start)

    def _start_one(self, key: Array) -> tuple[Start, Array]:
        with quiet_tracing():
            state = self._reset(key)
        start = strip_weak_types(Start(self._physics.carried(state.data), state.obs, state.info))
        return start, _seen(start)

    def _step_one(self, current: Start, action: Array) -> tuple[Start, Array, Array, Array]:
        action = self._actions.clip(action)

        def once(carry: tuple[Start, Array, Array], _: None) -> tuple[tuple[Start, Array, Array], None]:
            before, total, ended = carry
            after, reward, done = self._control_step(before, action)
            # The first `done` ends the episode, so later rewards of this step do not count.
            return (after, total + jnp.where(ended, 0.0, reward), ended | done), None

        carry = current, jnp.zeros((), jnp.float32), jnp.zeros((), bool)
        (successor, reward, done), _ = jax.lax.scan(once, carry, length=self._repeat, unroll=self._repeat == 1)
        # The observation before the step stands in for that of a simulation that has diverged.
        diverged = done & ~jnp.all(jnp.isfinite(_seen(successor)))
        return successor, jnp.where(diverged, _seen(current), _seen(successor)), reward, done

    def _control_step(self, before: Start, action: Array) -> tuple[Start, Array, Array]:
        from mujoco_playground import State

        zero = jnp.zeros(())
        # Playground writes `metrics` and never reads them, so an empty dict is enough.
        state = State(self._physics.whole(before.data), before.obs, zero, zero, metrics={}, info=before.info)
        with quiet_tracing():
            state = self.env.step(state, action)
        done = state.done.astype(bool)
        reward = jnp.where(done & ~jnp.isfinite(state.reward), 0.0, state.reward)  # not finite: it has diverged
        after = Start(self._physics.carried(state.data), state.obs, state.info)
        return strip_weak_types(after), reward, done


def _seen(start: Start) -> Array:
    """What policies read of the observation."""
    return cast(Array, start.obs["state"] if isinstance(start.obs, Mapping) else start.obs)


BACKEND = Backend(
    prefix="playground",
    make=make,
    names=names,
    extra="playground",
    packages=("playground", "mujoco", "mujoco-mjx", "warp-lang"),
    traced_modules=("mujoco_playground",),
    presets={"*": "playground"},
)
