"""Small tasks, and training and evaluation that are only pretended."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nextpolicy.experiments import execution
from nextpolicy.experiments.deadline import Deadline
from nextpolicy.experiments.suite import Suite, slug
from nextpolicy.experiments.task import Task, open_folder
from nextpolicy.run import api

TINY = {"total_env_steps": 6 * 32, "num_envs": 4, "rollout_length": 8, "minibatch_size": 32, "hidden": (8,)}


def tiny(env: str, out: Path, **fields: Any) -> Task:
    made = Suite("tiny", "", (env,), preset="default", algo=("ppo",), seeds=1, evaluate_episodes=0)
    config = made.config(env).replace(**TINY, block_rounds=2, **fields)
    return Task(env, config, str(out / slug(env)), 0)


never = Deadline(None)


def silent(task: Task, text: str) -> None:
    return


def write_toml(tmp_path: Path, content: str) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(content)
    return str(path)


class Pretence:
    """Training and evaluation that do nothing but what they are told, in no time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.trained, self.evaluated = 0, 0
        self.faults: list[str] = []
        monkeypatch.setattr(execution, "_train", self.train)
        monkeypatch.setattr(api, "load", lambda path, trust: self)

    def train(self, task: Task, stop: Any, tell: Any) -> None:
        self.trained += 1
        folder, _ = open_folder(task)
        folder.set_status("finished", rounds_done=6, rounds=6, env_steps=192)
        folder.unlock()

    def evaluations(self, members: range, episodes: int) -> Iterator[dict[str, float]]:
        self.evaluated += 1
        if self.faults:
            raise ValueError(self.faults.pop())
        yield from ({"member": i, "mean": float(episodes)} for i in members)
