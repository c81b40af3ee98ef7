"""Environments that return nonsense, raise, hang or die: each ends the training with one line."""

from __future__ import annotations

import multiprocessing
import os
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from tests.run.helpers import SMALL

import nextpolicy

from .outcomes import CHANGED, LOST, REFUSED, Result, answer

FIELDS: dict[str, Any] = {**SMALL, "total_env_steps": 3 * 32, "quiet": True}
AT = 3  # the step that goes wrong


class Broken(gymnasium.Env):
    """An environment whose third step goes wrong in the way of its name."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, fault: str, where: str = "step") -> None:
        self.fault, self.where, self.steps = fault, where, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return (self._obs() if self.where == "reset" else np.zeros(2, np.float32)), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        wrong = self.where == "step" and self.steps == AT
        reward = REWARDS.get(self.fault, 0.0) if wrong else 0.0
        obs = self._obs() if wrong else np.zeros(2, np.float32)
        if wrong and self.fault == "three values":
            return obs, reward, False
        return obs, reward, False, False, {}

    def _obs(self) -> Any:
        if self.fault == "raises":
            raise ValueError("the motor is on fire\nsecond line")
        if self.fault == "hangs":
            time.sleep(60)
        if self.fault == "dies":
            os._exit(3)
        return OBSERVATIONS.get(self.fault, np.zeros(2, np.float32))


OBSERVATIONS: dict[str, Any] = {
    "NaN in an observation": np.full(2, np.nan, np.float32),
    "infinity in an observation": np.full(2, np.inf, np.float32),
    "an observation of another shape": np.zeros(3, np.float32),
    "an observation of text": np.asarray(["a", "b"]),
    "no observation": None,
}
REWARDS: dict[str, Any] = {
    "NaN as reward": float("nan"),
    "infinity as reward": float("inf"),
    "a reward of another shape": np.zeros(2),
    "text as reward": "much",
    "no reward": None,
}
IN_STEP = (*OBSERVATIONS, *REWARDS, "three values", "raises", "hangs")
IN_RESET = (*OBSERVATIONS, "raises", "hangs")


def cases() -> Iterator[tuple[str, str, str]]:
    """(vectorization, where, what goes wrong)."""
    for vectorization in ("sync", "async"):
        deadly = ("dies",) if vectorization == "async" else ()
        yield from ((vectorization, "step", fault) for fault in IN_STEP + deadly)
        yield from ((vectorization, "reset", fault) for fault in IN_RESET + deadly)


def faults(root: Path, chosen: Callable[[str, str, str], bool] = lambda *_: True) -> Iterator[Result]:
    """Train on each; a training that comes to its end has taken nonsense for data."""
    for number, case in enumerate(cases()):
        if not chosen(*case):
            continue
        vectorization, where, fault = case
        options = {"vectorization": vectorization, "worker_timeout": 3.0 if fault == "hangs" else 30.0, "groups": 1}
        fields = {**FIELDS, "env_options": options, "normalise_obs": True, "out": root / str(number)}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Gymnasium repeats a worker's traceback as warnings
            said = answer(
                lambda fields=fields, case=case: nextpolicy.train(env_fn=partial(Broken, *case[:0:-1]), **fields)
            )
        kind, name = f"environment: {vectorization}", f"{fault} in {where}"
        if said.wrong or multiprocessing.active_children():
            yield Result(kind, name, LOST, said.wrong or "a process was left")
        elif said.refusal:
            yield Result(kind, name, REFUSED, said.refusal)
        else:
            yield Result(kind, name, CHANGED, "training went on")
