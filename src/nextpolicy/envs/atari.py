"""Atari games in ale-py's vector environment: emulators in C++ threads, observations as bytes.

With `episodic_life`, losing a life is a termination for learning, but the game continues, and the score is that of the
whole game. ale-py's own `episodic_life` starts a new game at every lost life, which changes the task, so lives are
counted here. ale-py resets in an extra step, which is marked as invalid. A thread waits for the emulators, so that a
hanging one is noticed.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from nextpolicy.envs.base import Discrete, EnvSpec, at_least_one, check_options, own_actions, take_options
from nextpolicy.envs.driver import SECONDS_PER_ENV, Driver, check_timeout, drive
from nextpolicy.envs.registry import Backend
from nextpolicy.envs.returned import array_of, step_of
from nextpolicy.types import Array, Step

OPTIONS: dict[str, bool | int | float] = {
    "sticky": 0.25,  # probability that the emulator repeats the previous action
    "frame_skip": 4,
    "noop_max": 30,  # random no-ops at the start of a game
    "fire_reset": True,  # whether reset presses FIRE in games that need it to start
    "frame_stack": 4,
    "image_size": 84,
    "episodic_life": True,  # whether a lost life terminates the episode for learning; scores are of whole games
    "clip_reward": False,  # whether to learn from the sign of the reward; scores are unclipped
    "full_action_space": False,
    "max_frames": 108_000,  # after which a game is truncated
    "threads": 0,  # emulator threads of one pool; 0 is one per core
    "groups": 2,
    "worker_timeout": 60.0,  # seconds for a step; starting and resetting get one more for each environment
}

# Pictures come from a second emulator with the console's size and colours: equal seeds and actions give equal games.
SCREEN = {"img_height": 210, "img_width": 160, "grayscale": False, "stack_num": 1}


def games() -> dict[str, str]:
    """Every game that ale-py ships, in alphabetical order: our name to its own, `MsPacman` to `ms_pacman`."""
    from ale_py import roms

    return {rom.title().replace("_", ""): rom for rom in sorted(roms.get_all_rom_ids())}


def make(name: str, **options: object) -> AtariEnv:
    """The game `name`."""
    importlib.import_module("ale_py.vector_env")  # needs Gymnasium, which ale-py does not install
    return AtariEnv(name, options)


class AtariEnv:
    """A game and its options, as a `HostEnv`."""

    resets_in_step = False

    def __init__(self, name: str, options: Mapping[str, object]) -> None:
        env_id = f"atari/{name}"
        check_options(env_id, options, OPTIONS)
        self.options = take_options(env_id, options, OPTIONS)
        for option in ("frame_skip", "frame_stack", "image_size", "max_frames", "groups"):
            at_least_one(env_id, option, self.options[option])
        if self.options["sticky"] > 1:
            raise ValueError(f"{env_id} sticky: expected a number in [0, 1], got {self.options['sticky']:g}")
        self.rom, self.groups = games()[name], self.options["groups"]
        self.timeout = check_timeout(env_id, self.options["worker_timeout"])
        actions = drive(env_id, self.timeout, lambda: int(self.emulator(1).single_action_space.n))
        size, stack = self.options["image_size"], self.options["frame_stack"]
        limit = -(-self.options["max_frames"] // self.options["frame_skip"])
        shape, own_shape = (size, size, stack), (stack, size, size)
        self.spec = EnvSpec(env_id, shape, Discrete(actions), np.uint8, limit, own_obs_shape=own_shape)

    def emulator(self, num_envs: int, **changes: bool | int) -> Any:
        """ale-py's vector environment with these options."""
        from ale_py.vector_env import AtariVectorEnv

        o = self.options
        arguments = {
            "num_threads": o["threads"],
            "max_num_frames_per_episode": o["max_frames"],
            "repeat_action_probability": o["sticky"],
            "full_action_space": o["full_action_space"],
            "img_height": o["image_size"],
            "img_width": o["image_size"],
            "stack_num": o["frame_stack"],
            "frameskip": o["frame_skip"],
            "noop_max": o["noop_max"],
            "use_fire_reset": o["fire_reset"],
            "reward_clipping": False,
            "episodic_life": False,
        }
        return AtariVectorEnv(self.rom, num_envs, **{**arguments, **changes})

    def start(self, num_envs: int, render: bool = False) -> AtariPool:
        return AtariPool(self, num_envs, render)

    def arrange(self, obs: Array) -> Array:
        """[N, stack, H, W] to [N, H, W, stack]."""
        return jnp.moveaxis(obs, 1, -1)


class AtariPool:
    """Running games."""

    def __init__(self, env: AtariEnv, num_envs: int, render: bool) -> None:
        self.num_envs, self._actions = num_envs, env.spec.action
        self._id, self._shape = env.spec.id, (num_envs, *(env.spec.own_obs_shape or ()))
        self._thread = Driver(env.spec.id, env.timeout)
        self._patience = env.timeout + SECONDS_PER_ENV * num_envs
        kinds: list[dict[str, bool | int]] = [{}, SCREEN] if render else [{}]
        start = lambda: [env.emulator(num_envs, **kind) for kind in kinds]  # noqa: E731
        try:
            self._emulators = self._thread.call("start", start, self._patience)
        except BaseException:
            self._thread.stop()
            raise
        self._episodic_life, self._clip = env.options["episodic_life"], env.options["clip_reward"]
        self._lives = np.zeros(num_envs, np.int32)
        self._over = np.zeros(num_envs, bool)
        self._drawn = np.zeros((210, 160, 3), np.uint8)

    def reset(self, seed: int) -> np.ndarray:
        emulators = self._emulators
        begin = lambda: [emulator.reset(seed=int(seed)) for emulator in emulators]  # noqa: E731
        (obs, info), *screen = self._thread.call("reset", begin, self._patience)
        obs = array_of(self._id, "obs", obs, self._shape, "integers")
        self._lives, self._over = info["lives"].copy(), np.zeros(self.num_envs, bool)
        self._draw(screen)
        return obs

    def send(self, action: np.ndarray) -> None:
        action, emulators = own_actions(self._actions, np.asarray(action)), self._emulators
        for emulator in emulators:
            emulator.send(action)
        self._thread.submit(lambda: [emulator.recv() for emulator in emulators])

    def recv(self) -> Step[np.ndarray]:
        returned, *screen = self._thread.wait("step")
        obs, score, game_over, timed_out, info = step_of(self._id, returned, self.num_envs)
        self._draw(screen)
        valid = ~self._over  # the step after the end of a game only resets it
        lost_life = (info["lives"] < self._lives) & valid
        terminated = game_over | (lost_life if self._episodic_life else False)
        step = Step(
            obs=array_of(self._id, "obs", obs, self._shape, "integers"),
            reward=np.sign(score) if self._clip else score,
            terminated=terminated,
            truncated=timed_out & ~terminated,
            valid=valid,
            score=score,
            episode_over=game_over | timed_out,
        )
        self._lives, self._over = info["lives"].copy(), game_over | timed_out
        return step

    def _draw(self, screen: list[Any]) -> None:
        if screen:
            self._drawn = screen[0][0][0, 0]

    def render(self) -> np.ndarray:
        return np.asarray(self._drawn)

    def close(self) -> None:
        """Release the emulators. Their threads end with them, unless one hangs."""
        self._emulators = []
        self._thread.stop()


BACKEND = Backend(
    prefix="atari",
    make=make,
    names=games,
    # Given one of these, ale-py's emulator ends the whole process.
    excluded=dict.fromkeys(
        ("Combat", "Joust", "MazeCraze", "Warlords"), "needs two players and cannot be run by ale-py"
    ),
    runs_on_host=True,
    extra="atari",
    packages=("ale-py", "gymnasium"),
    presets={"*": "atari"},
)
