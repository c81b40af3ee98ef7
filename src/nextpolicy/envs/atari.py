"""Atari games by ale-py's vector environment: emulators in C++ threads, observations as bytes.

A lost life ends the episode for the estimators (`episodic_life`), the game goes on, and the score is that of the whole
game. ale-py's own `episodic_life` starts a new game at every lost life, which changes the task, so lives are counted
here. Its auto-reset takes a step of its own; that step is marked as not valid. A thread waits for the emulators, so
that one that never answers is noticed.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from nextpolicy.envs.base import Discrete, EnvSpec, check_options, own_actions, take_option
from nextpolicy.envs.driver import SECONDS_PER_ENV, Driver, check_timeout, drive
from nextpolicy.types import Array, Step

# The 16 games of the paper's main table.
PAPER_GAMES = (
    "Amidar",
    "Asterix",
    "BattleZone",
    "Bowling",
    "Breakout",
    "DoubleDunk",
    "Freeway",
    "Frostbite",
    "KungFuMaster",
    "MsPacman",
    "NameThisGame",
    "Phoenix",
    "Qbert",
    "Riverraid",
    "Seaquest",
    "SpaceInvaders",
)

# Shipped by ale-py but not offered: its emulator ends the whole process when it is given one of these.
EXCLUDED = dict.fromkeys(
    ("Combat", "Joust", "MazeCraze", "Warlords"), "is not for one player, and ale-py cannot run it"
)

OPTIONS: dict[str, Any] = {
    "sticky": 0.25,  # probability that the emulator repeats the previous action
    "frame_skip": 4,
    "noop_max": 30,  # random no-ops at the start of a game
    "fire_reset": True,  # whether a game that starts by FIRE is started by the reset
    "frame_stack": 4,
    "image_size": 84,
    "episodic_life": True,  # a lost life is an end to the estimators; scores are of whole games all the same
    "clip_reward": False,  # learn from the sign of the reward; scores are unclipped all the same
    "full_action_space": False,
    "max_frames": 108_000,  # of a game, after which it is truncated
    "threads": 0,  # emulator threads of one pool; 0 is as many as there are cores
    "groups": 2,
    "worker_timeout": 60.0,  # seconds a step may take; the start and a reset, one more for each environment
}

# A picture is a second emulator in the console's own size and colours: equal seeds and actions give equal games.
SCREEN = {"img_height": 210, "img_width": 160, "grayscale": False, "stack_num": 1}


def games() -> dict[str, str]:
    """Every game ale-py ships and can run: our name to its own, `MsPacman` to `ms_pacman`."""
    from ale_py import roms

    named = {rom.title().replace("_", ""): rom for rom in sorted(roms.get_all_rom_ids())}
    return {name: rom for name, rom in named.items() if name not in EXCLUDED}


def names() -> list[str]:
    """Games, in alphabetical order."""
    return list(games())


def make(name: str, **options: Any) -> AtariEnv:
    """A game by its name."""
    if name in EXCLUDED:
        raise ValueError(f"atari/{name}: not offered, it {EXCLUDED[name]}")
    importlib.import_module("ale_py.vector_env")  # not there without Gymnasium, which ale-py does without
    return AtariEnv(name, options)


class AtariEnv:
    """A game and how it is played."""

    resets_in_step = False

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        env_id = f"atari/{name}"
        check_options(env_id, options, OPTIONS)
        given = dict(options)
        self.options = {k: take_option(env_id, given, k, default) for k, default in OPTIONS.items()}
        for option in ("frame_skip", "frame_stack", "image_size", "max_frames", "groups"):
            if self.options[option] < 1:
                raise ValueError(f"{env_id} {option}: got {self.options[option]}, takes a whole number of at least 1")
        if self.options["sticky"] > 1:
            raise ValueError(f"{env_id} sticky: got {self.options['sticky']:g}, takes a number in [0, 1]")
        self.rom, self.groups = games()[name], self.options["groups"]
        self.timeout = check_timeout(env_id, self.options["worker_timeout"])
        actions = drive(env_id, self.timeout, lambda: int(self.emulator(1).single_action_space.n))
        size, stack = self.options["image_size"], self.options["frame_stack"]
        limit = -(-self.options["max_frames"] // self.options["frame_skip"])
        shape, own_shape = (size, size, stack), (stack, size, size)
        self.spec = EnvSpec(env_id, shape, Discrete(actions), np.uint8, limit, own_obs_shape=own_shape)

    def emulator(self, num_envs: int, **changes: Any) -> Any:
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
        self._thread = Driver(env.spec.id, env.timeout)
        self._patience = env.timeout + SECONDS_PER_ENV * num_envs
        kinds: list[dict[str, Any]] = [{}, SCREEN] if render else [{}]
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
        self._lives, self._over = info["lives"].copy(), np.zeros(self.num_envs, bool)
        self._draw(screen)
        return obs

    def send(self, action: np.ndarray) -> None:
        action, emulators = own_actions(self._actions, np.asarray(action)), self._emulators
        for emulator in emulators:
            emulator.send(action)
        self._thread.submit(lambda: [emulator.recv() for emulator in emulators])

    def recv(self) -> Step[np.ndarray]:
        (obs, score, game_over, timed_out, info), *screen = self._thread.wait("step")
        self._draw(screen)
        valid = ~self._over  # the step after the end of a game only starts the next one
        lost_life = (info["lives"] < self._lives) & valid
        terminated = game_over | (lost_life if self._episodic_life else False)
        score = score.astype(np.float32)
        step = Step(
            obs=obs,
            reward=np.sign(score) if self._clip else score,
            terminated=terminated,
            truncated=timed_out & ~terminated,
            valid=valid,
            score=score,
            episode_over=game_over | timed_out,
            final_index=np.zeros(0, np.int32),
        )
        self._lives, self._over = info["lives"].copy(), step.episode_over
        return step

    def _draw(self, screen: list[Any]) -> None:
        if screen:
            self._drawn = screen[0][0][0, 0]

    def render(self) -> np.ndarray:
        return np.asarray(self._drawn)

    def close(self) -> None:
        """Let go of the emulators; their threads end with them, or are left behind where one never answered."""
        self._emulators = []
        self._thread.stop()
