"""For tests that start many runs of one configuration."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import nextpolicy
from nextpolicy.loop.population import Program
from nextpolicy.run.job import Job

from .helpers import FOUR_ROOMS


@pytest.fixture(scope="module")
def _programs() -> dict[str, Program]:
    return {}


@pytest.fixture
def programs_kept(_programs: dict[str, Program], monkeypatch: pytest.MonkeyPatch) -> None:
    """A run or resume whose configuration has been compiled by this module takes that program, which saves a second."""
    build = Job.program

    def program(job: Job) -> Program:
        if not job.by_name or job.on_host:
            return build(job)
        name = job.config.to_json()
        if name not in _programs:
            _programs[name] = build(job)
        return _programs[name]

    monkeypatch.setattr(Job, "program", program)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> nextpolicy.Run:
    """Ten rounds, checkpoints of rounds 9 and 10."""
    return nextpolicy.train(**FOUR_ROOMS, out=tmp_path_factory.mktemp("runs") / "whole")


@pytest.fixture
def run(whole: nextpolicy.Run, tmp_path: Path) -> Path:
    """A copy of it to change."""
    return Path(shutil.copytree(whole.path, tmp_path / "run"))
