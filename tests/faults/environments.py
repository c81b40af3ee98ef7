"""Environments that return nonsense, raise, hang or die: each ends the training with one line."""

from __future__ import annotations

import multiprocessing
import os
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import gymnasium
import numpy as np
import pytest
from tests.run.helpers import SMALL

import nextpolicy
from nextpolicy.envs.atari import AtariEnv

from .outcomes import CHANGED, LOST, REFUSED, Result, answer

FIELDS: dict[str, Any] = {**SMALL, "total_env_steps": 3 * 32, "quiet": True}
AT = 3  # the step that goes wrong


# What goes wrong, as a function of the shape that was expected.
OBSERVATIONS: dict[str, Callable[..., Any]] = {
    "NaN in an observation": lambda *shape: np.full(shape, np.nan, np.float32),
    "infinity in an observation": lambda *shape: np.full(shape, np.inf, np.float32),
    "an observation of another shape": lambda *shape: np.zeros((*shape[:-1], shape[-1] + 1), np.float32),
    "an observation of text": lambda *shape: np.full(shape, "a"),
    "no observation": lambda *shape: None,
}
REWARDS: dict[str, Callable[..., Any]] = {
    "NaN as reward": lambda *shape: np.full(shape, np.nan),
    "infinity as reward": lambda *shape: np.full(shape, np.inf),
    "a reward of another shape": lambda *shape: np.zeros((*shape, 2)),
    "text as reward": lambda *shape: "much",
    "no reward": lambda *shape: None,
}


class Fault(NamedTuple):
    """What goes wrong in step number `AT`, or in reset."""

    what: str
    where: str

    def obs(self, where: str, right: np.ndarray) -> Any:
        """The observation `right`, or what is returned in its place."""
        if where != self.where:
            return right
        if self.what == "raises":
            raise ValueError("the motor is on fire\nsecond line")
        if self.what == "hangs":
            time.sleep(60)
        if self.what == "dies":
            os._exit(3)
        return OBSERVATIONS[self.what](*right.shape) if self.what in OBSERVATIONS else right

    def step(self, step: int, obs: np.ndarray, reward: Any, *rest: Any) -> Any:
        """What `step` returns."""
        if self.where != "step" or step != AT:
            return obs, reward, *rest
        obs = self.obs("step", obs)
        if self.what in REWARDS:
            reward = REWARDS[self.what](*np.shape(reward))
        return (obs, reward, False) if self.what == "three values" else (obs, reward, *rest)


class Broken(gymnasium.Env):
    """One environment."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, what: str, where: str = "step") -> None:
        self.fault, self.steps = Fault(what, where), 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.fault.obs("reset", np.zeros(2, np.float32)), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self.fault.step(self.steps, np.zeros(2, np.float32), 0.0, False, False, {})


class BrokenVector(gymnasium.vector.VectorEnv):
    """A vector environment of its own."""

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP}
    single_observation_space = Broken.observation_space
    single_action_space = Broken.action_space

    def __init__(self, num_envs: int, what: str, where: str = "step") -> None:
        self.num_envs, self.fault, self.steps = num_envs, Fault(what, where), 0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self.fault.obs("reset", np.zeros((self.num_envs, 2), np.float32)), {}

    def step(self, actions: Any) -> Any:
        self.steps += 1
        ended = np.zeros(self.num_envs, bool)
        return self.fault.step(
            self.steps, np.zeros((self.num_envs, 2), np.float32), np.zeros(self.num_envs), ended, ended, {}
        )


class BrokenEmulators:
    """ale-py's emulators, until one goes wrong."""

    def __init__(self, emulators: Any, what: str, where: str) -> None:
        self.emulators, self.fault, self.steps = emulators, Fault(what, where), 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.emulators, name)

    def reset(self, **how: Any) -> Any:
        obs, info = self.emulators.reset(**how)
        return self.fault.obs("reset", obs), info

    def recv(self) -> Any:
        self.steps += 1
        return self.fault.step(self.steps, *self.emulators.recv())


gymnasium.register("NextpolicyBroken-v0", entry_point=Broken, vector_entry_point=BrokenVector)


IN_STEP = (*OBSERVATIONS, *REWARDS, "three values", "raises", "hangs")
IN_RESET = (*OBSERVATIONS, "raises", "hangs")


KINDS = ("sync", "async", "native", "atari")


def cases() -> Iterator[tuple[str, str, str]]:
    """(vectorization, where, what goes wrong)."""
    for kind in KINDS:
        deadly = ("dies",) if kind == "async" else ()
        yield from ((kind, "step", what) for what in IN_STEP + deadly)
        yield from ((kind, "reset", what) for what in IN_RESET + deadly)


def train(kind: str, where: str, what: str, out: Path) -> None:
    """Train on such an environment."""
    options: dict[str, Any] = {"worker_timeout": 3.0 if what == "hangs" else 30.0, "groups": 1}
    fields: dict[str, Any] = {**FIELDS, "normalise_obs": True, "out": out}
    if kind == "atari":
        start = AtariEnv.emulator
        broken = lambda env, num_envs, **how: BrokenEmulators(start(env, num_envs, **how), what, where)  # noqa: E731
        fields |= {"env": "atari/Pong", "normalise_obs": False, "torso": "mlp"}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(AtariEnv, "emulator", broken)
            nextpolicy.train(**fields, env_options={**options, "image_size": 8, "threads": 1})
    elif kind == "native":
        arguments = {"what": what, "where": where}
        fields |= {"env": "gym/NextpolicyBroken-v0", "env_options": {**options, "vectorization": kind, **arguments}}
        nextpolicy.train(**fields)
    else:
        made = partial(Broken, what, where)
        nextpolicy.train(env_fn=made, **fields, env_options={**options, "vectorization": kind})


def faults(root: Path, chosen: Callable[[str, str, str], bool] = lambda *_: True) -> Iterator[Result]:
    """Train on each; a training that comes to its end has taken nonsense for data."""
    for number, case in enumerate(cases()):
        if not chosen(*case):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Gymnasium repeats a worker's traceback as warnings
            said = answer(lambda case=case, out=root / str(number): train(*case, out))
        kind, name = f"environment: {case[0]}", f"{case[2]} in {case[1]}"
        if said.wrong or multiprocessing.active_children():
            yield Result(kind, name, LOST, said.wrong or "a process was left")
        elif said.refusal:
            yield Result(kind, name, REFUSED, said.refusal)
        else:
            yield Result(kind, name, CHANGED, "training went on")
