"""A share of the catalogue in every run of the tests, all of it with `make test-slow`: no run lost, none changed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.run.helpers import environment

import nextpolicy
from nextpolicy.run.block import TrainingError
from nextpolicy.run.folder import RunError, RunFolder
from nextpolicy.run.job import Job

from . import damage, environments, interruptions, processes, works
from .injector import Change, watched
from .outcomes import REFUSED, SAME, Result, complaint

pytestmark = [
    pytest.mark.allow_rank_promotion,
    pytest.mark.allow_key_reuse,
    pytest.mark.quick_compilation,
    pytest.mark.no_cover,
]


@pytest.fixture(autouse=True, scope="module")
def _quickly() -> Iterator[None]:
    with works.programs_kept():
        yield


def survived(results: list[Result], at_least: int) -> None:
    assert len(results) >= at_least
    assert not complaint(results), complaint(results)


SLOW = ("training with evaluations", "extending a run", "a suite")
BY_SPEED = [pytest.param(w, id=w.name, marks=[pytest.mark.slow] * (w.name in SLOW)) for w in works.WORKS]


@pytest.mark.parametrize("work", BY_SPEED)
def test_an_interruption_at_some_changes_is_survived(work: works.Work, tmp_path: Path) -> None:
    whole = interruptions.undisturbed(work, tmp_path)
    results: list[Result] = []
    for offset, inject in enumerate((interruptions.kills, interruptions.errors, interruptions.full_disks)):
        results += inject(whole, range(3 * offset + 1, len(whole.changes), len(whole.changes) // 2))
    survived(results, 4)


def test_a_process_killed_in_a_checkpoint_is_continued(tmp_path: Path) -> None:
    whole = interruptions.undisturbed(works.WORKS[0], tmp_path)
    (moment,) = (m for m in processes.MOMENTS if m.name == "while a checkpoint is written")
    survived([processes.killed(moment, whole, tmp_path / "killed")], 1)


@pytest.mark.slow
@pytest.mark.parametrize("work", works.WORKS, ids=lambda work: work.name)
def test_processes_killed_at_every_moment_are_continued(work: works.Work, tmp_path: Path) -> None:
    survived(list(processes.kills(interruptions.undisturbed(work, tmp_path), tmp_path)), 1)


def test_a_moment_that_never_comes_is_no_kill(tmp_path: Path) -> None:
    """The suite itself: a process that ends well has not been killed."""
    whole = interruptions.undisturbed(works.WORKS[0], tmp_path)
    late = processes.MOMENTS[2]._replace(call=99)
    assert "ended by itself with 0" in processes.killed(late, whole, tmp_path / "killed").why


@pytest.mark.parametrize("victim", damage.VICTIMS, ids=lambda victim: victim.name)
def test_damage_is_noticed_or_harmless(victim: damage.Victim, tmp_path: Path) -> None:
    survived(list(damage.damages(victim, tmp_path, flips=1, most=1)), 2)


SOME = ("NaN in an observation", "an observation of another shape", "infinity as reward", "text as reward", "raises")


def test_an_environment_that_goes_wrong_is_one_line(tmp_path: Path) -> None:
    kinds = ("sync", "native")
    results = list(
        environments.faults(tmp_path, lambda kind, where, what: kind in kinds and where == "step" and what in SOME)
    )
    survived(results, len(kinds) * len(SOME))
    assert {result.outcome for result in results} == {REFUSED}


@pytest.mark.slow
def test_the_whole_catalogue() -> None:
    """As `python -m tests.faults.count` does."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.count"], env=environment(), capture_output=True, text=True, check=False
    )
    print(done.stdout)
    assert done.returncode == 0, done.stderr[-4000:]


def test_a_changed_number_is_seen(tmp_path: Path) -> None:
    """The suite itself: a run that ends in other numbers is no recovery, and one that cannot go on is lost."""
    whole = interruptions.undisturbed(works.WORKS[0], tmp_path)
    other = whole._replace(prints={**whole.prints, "array 0": b"x"})
    (result,) = interruptions.kills(other, range(40, 41))
    assert result.bad
    assert "array 0" in result.why
    place = whole.copies / "00050"
    (place / "run" / "config.json").write_text("{")
    (result,) = interruptions.kills(whole, range(50, 51))
    assert result.outcome == "LOST"
    (result,) = interruptions.kills(whole, range(60, 61))
    assert result.outcome == SAME


def test_a_kill_between_a_checkpoint_and_its_evaluation_skips_no_evaluation(tmp_path: Path) -> None:
    whole = interruptions.undisturbed(works.WORKS[1], tmp_path)
    at = [change.number for change in whole.changes if "run/best/" in change.path]
    survived(list(interruptions.kills(whole, range(at[0], at[0] + 1))), 1)


def test_a_start_that_fails_gives_its_folder_back(tmp_path: Path) -> None:
    def act(change: Change) -> None:
        if change.call == "replace" and "status.json" in change.path:
            raise OSError(5, "Input/output error")

    with watched(tmp_path, act), pytest.raises(OSError, match="Input/output"):
        works.train(tmp_path)
    nextpolicy.resume(tmp_path / "run", quiet=True)


def test_two_on_one_run_are_one_line(tmp_path: Path) -> None:
    works.train(tmp_path)
    before = works.of_run(tmp_path / "run")
    holder = RunFolder.open(tmp_path / "run").locked()
    try:
        with pytest.raises(RunError, match=r"^run: .* is being written by another process; wait for it or end it$"):
            nextpolicy.resume(tmp_path / "run", quiet=True)
    finally:
        holder.unlock()
    assert works.of_run(tmp_path / "run") == before


def test_a_device_without_memory_is_one_line_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = Job.program

    def block(*_: Any) -> Any:
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes.\nBufferAssignment: ...")

    monkeypatch.setattr(Job, "program", lambda job: build(job)._replace(block=block))
    with pytest.raises(TrainingError, match=r"ran out of memory \(RESOURCE.*\); use fewer seeds or num_envs") as caught:
        works.train(tmp_path)
    assert "\n" not in str(caught.value)
    assert "ran out of memory" in RunFolder(tmp_path / "run").status()["reason"]
    monkeypatch.setattr(Job, "program", build)
    assert nextpolicy.resume(tmp_path / "run", quiet=True).status["state"] == "finished"
