"""The folder of a task says how far it is, and is never taken from anybody else."""

from __future__ import annotations

import fcntl
import threading
from pathlib import Path

import pytest

from nextpolicy.experiments.execution import Outcome, run_task
from nextpolicy.experiments.suite import Suite, SuiteError
from nextpolicy.experiments.task import State, hold, open_folder, state_of, tasks
from nextpolicy.run.folder import RunError, RunFolder

from .helpers import never, silent, tiny

pytestmark = pytest.mark.quick_compilation


def test_the_state_of_a_folder(tmp_path):
    task = tiny("probe/action", tmp_path)
    assert state_of(task) == State("left", 0, 6)
    folder = RunFolder.create(task.path, task.config, {"custom": []})
    assert state_of(task) == State("running", 0, 6)
    folder.unlock()
    assert state_of(task) == State("cut off", 0, 6)
    folder.set_status("stopped", rounds_done=2)
    assert state_of(task) == State("stopped", 2, 6)
    folder.set_status("failed", rounds_done=4, reason="why")
    assert state_of(task) == State("failed", 4, 6, "why")
    folder.set_status("finished", rounds_done=6)
    assert state_of(task) == State("done", 6, 6)


def test_a_folder_of_another_configuration_is_refused(tmp_path):
    mine = Suite("mine", "", ("probe/action",), preset="default", seeds=1)
    (task,) = tasks(mine, tmp_path)
    RunFolder.create(task.path, task.config, {"custom": []}).unlock()
    assert tasks(mine, tmp_path) == [task]
    with pytest.raises(SuiteError, match=r"expected seeds = \(0, 1\) in .*, got a run with seeds = \(0,\)"):
        tasks(mine, tmp_path, seeds=2)


def test_a_start_cut_short_before_the_configuration_was_written_is_begun_again(tmp_path):
    task = tiny("probe/action", tmp_path)
    for part in ("metrics", "checkpoints"):
        (Path(task.path) / part).mkdir(parents=True)
    (Path(task.path) / ".lock").touch()
    (Path(task.path) / ".config.json.77.tmp").write_text('{"en')
    folder, resume = open_folder(task)
    assert not resume
    assert folder.config() == task.config
    folder.unlock()
    folder, resume = open_folder(task)
    folder.unlock()
    assert resume


def test_a_damaged_status_is_read_as_cut_off(tmp_path):
    task = tiny("probe/action", tmp_path)
    RunFolder.create(task.path, task.config, {"custom": []}).unlock()
    for content in ("", "[]", '{"rounds_done": "x"}'):
        (Path(task.path) / "status.json").write_text(content)
        assert state_of(task) == State("cut off", 0, 6)


def test_a_glance_at_the_lock_does_not_fail_who_wants_to_hold_it(tmp_path):
    task = tiny("probe/action", tmp_path)
    RunFolder.create(task.path, task.config, {"custom": []}).unlock()
    glance = open(Path(task.path) / ".lock")  # noqa: SIM115 - closed by the timer
    fcntl.flock(glance, fcntl.LOCK_SH)
    threading.Timer(0.1, glance.close).start()
    hold(Path(task.path)).unlock()
    with open(Path(task.path) / ".lock") as handle:
        fcntl.flock(handle, fcntl.LOCK_SH)
        with pytest.raises(RunError, match="is being written by another process"):
            hold(Path(task.path))


def test_somebody_elses_files_are_left_alone(tmp_path):
    task = tiny("probe/action", tmp_path)
    Path(task.path).mkdir()
    (Path(task.path) / "thesis.txt").write_text("mine")
    assert run_task(task, never, silent).state == "failed"
    assert (Path(task.path) / "thesis.txt").read_text() == "mine"


def test_a_folder_that_another_process_holds_is_left_to_it(tmp_path):
    task = tiny("probe/action", tmp_path)
    RunFolder.create(task.path, task.config, {"custom": []}).unlock()
    with open(Path(task.path) / ".lock") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        assert run_task(task, never, silent) == Outcome("running", "in another process")
