"""Engines: tasks end as they should however they go, here and on Ray."""

from __future__ import annotations

import re
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from nextpolicy import runfiles
from nextpolicy.cli import suite_display as display
from nextpolicy.experiments import deadline as deadline_module
from nextpolicy.experiments import engines, execution
from nextpolicy.experiments.deadline import Deadline
from nextpolicy.experiments.engines import LocalEngine
from nextpolicy.experiments.execution import Outcome, run_task
from nextpolicy.experiments.suite import SuiteError
from nextpolicy.experiments.task import State, Task, state_of
from nextpolicy.run import training
from nextpolicy.run.folder import RunFolder
from nextpolicy.runfiles import read_evaluation

from .helpers import Pretence, never, silent, tiny

pytestmark = pytest.mark.quick_compilation


@pytest.fixture(scope="module", autouse=True)
def _one_program_per_configuration():
    """Tracing takes seconds each time; what these tests are about is what lies around the program."""
    made: dict[str, Any] = {}
    build = training.Job.program

    def program(job: training.Job) -> Any:
        key = job.config.to_json()
        made[key] = made[key] if key in made else build(job)
        return made[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training.Job, "program", program)
        yield


@pytest.fixture
def pretence(monkeypatch) -> Pretence:
    return Pretence(monkeypatch)


def rows(task: Task) -> pd.DataFrame:
    return runfiles.read_metrics(Path(task.path)).drop(columns="steps_per_second")


def test_a_stopped_environment_goes_on_as_if_it_had_not_stopped(tmp_path):
    stopped, whole = tiny("probe/action", tmp_path / "a"), tiny("probe/action", tmp_path / "b")
    assert run_task(stopped, Deadline(0.0), silent).state == "stopped"
    assert state_of(stopped) == State("stopped", 2, 6)
    assert run_task(stopped, never, silent) == Outcome("done")
    assert run_task(whole, never, silent) == Outcome("done")
    pd.testing.assert_frame_equal(rows(stopped), rows(whole), check_exact=True)
    before = {p: p.stat().st_mtime_ns for p in Path(stopped.path).rglob("*") if p.name != ".lock"}
    assert run_task(stopped, never, silent) == Outcome("done")  # finished: skipped
    assert before == {p: p.stat().st_mtime_ns for p in Path(stopped.path).rglob("*") if p.name != ".lock"}


def test_a_failed_environment_is_tried_once_more_and_the_rest_goes_on(tmp_path):
    bad, good = tiny("probe/nan", tmp_path, env_options={"after": 20}), tiny("probe/action", tmp_path)
    told: list[tuple[str, str]] = []
    outcomes = LocalEngine().run([bad, good], None, lambda task, text: told.append((task.env, text)))
    assert [o.state for o in outcomes] == ["failed", "done"]
    assert "not finite in round" in outcomes[0].reason
    assert sum(env == "probe/nan" and text == "starting" for env, text in told) == 2
    assert [text for _, text in told if text.startswith("failed, trying once more")]
    assert ("probe/nan", f"failed: {outcomes[0].reason}") in told
    assert told[-1] == ("probe/action", "done")
    rounds = [text for env, text in told if env == "probe/action" and text.startswith("round")]
    assert [text.partition(",")[0] for text in rounds] == ["round 2/6", "round 4/6", "round 6/6"]
    assert all(re.fullmatch(r"round ./6, return -?[0-9.e-]+", text) for text in rounds)
    assert state_of(bad).state == "failed"
    assert "not finite in round" in state_of(bad).reason
    table = display.status_table([bad, good])
    assert "failed" in table
    assert "not finite" in table
    assert "1 of 2 done" in table.splitlines()[-1]


@pytest.fixture
def evaluated_task(tmp_path) -> Task:
    return replace(tiny("probe/action", tmp_path), evaluate_episodes=7)


def test_an_evaluation_is_made_once(pretence, evaluated_task):
    assert [run_task(evaluated_task, never, silent) for _ in range(2)] == [Outcome("done")] * 2
    assert (pretence.trained, pretence.evaluated) == (1, 1)
    assert read_evaluation(Path(evaluated_task.path)) == [{"member": 0, "mean": 7.0}]
    assert state_of(evaluated_task) == State("done", 6, 6)


def test_no_time_to_evaluate_leaves_it_to_the_next_call(pretence, evaluated_task):
    outcome = run_task(evaluated_task, Deadline(0.0), silent)
    assert outcome.state == "stopped"
    assert "no time left to evaluate" in outcome.reason
    assert state_of(evaluated_task) == State("stopped", 6, 6, "trained, not evaluated yet")
    assert pretence.evaluated == 0
    assert run_task(evaluated_task, never, silent) == Outcome("done")
    assert (pretence.trained, pretence.evaluated) == (1, 1)


def test_an_evaluation_that_fails_is_tried_once_more_and_then_shown_as_failed(pretence, evaluated_task):
    pretence.faults = ["the cat again", "the cat"]
    assert run_task(evaluated_task, never, silent) == Outcome("failed", "the cat again")
    assert (pretence.trained, pretence.evaluated) == (1, 2)
    assert state_of(evaluated_task) == State("failed", 6, 6, "the cat again")
    assert "the cat again" in display.status_table([evaluated_task])
    assert run_task(evaluated_task, never, silent) == Outcome("done")  # the next call
    assert state_of(evaluated_task) == State("done", 6, 6)
    assert "reason" not in RunFolder(Path(evaluated_task.path)).status()


def test_a_new_failure_takes_the_place_of_an_old_one_and_keeps_how_far_it_was(tmp_path, monkeypatch):
    task = tiny("probe/action", tmp_path)
    folder = RunFolder.create(task.path, task.config, {"custom": []})
    folder.set_status("failed", rounds_done=4, rounds=6, reason="old")
    folder.unlock()

    def fail(*arguments) -> None:
        raise RuntimeError("new\nand more")

    monkeypatch.setattr(execution, "_train", fail)
    assert run_task(task, never, silent) == Outcome("failed", "new")
    assert state_of(task) == State("failed", 4, 6, "new")


def test_while_it_evaluates_a_task_is_running(pretence, evaluated_task, monkeypatch):
    seen = []
    evaluations = pretence.evaluations
    pretence.evaluations = lambda *given: seen.append(state_of(evaluated_task)) or evaluations(*given)
    run_task(evaluated_task, never, silent)
    assert seen == [State("running", 6, 6)]


class PretendedRay:
    """As much of Ray as the engine uses; tasks run at once, here."""

    class exceptions:  # noqa: N801 - as in Ray
        class RayError(Exception):
            pass

    def __init__(self, lost: tuple[str, ...] = ()) -> None:
        self.lost, self.options, self.given, self.calls = lost, {}, [], {}

    def remote(self, **options):
        self.options = options

        def wrapped(function):
            def begin(task, until, cpus):
                self.given.append(task)
                self.calls[task.env] = lambda: function(task, until, cpus)
                return task.env

            return SimpleNamespace(remote=begin)

        return wrapped

    def wait(self, references, timeout):
        return references[:1], references[1:]

    def get(self, reference):
        if reference in self.lost:
            raise self.exceptions.RayError
        return self.calls[reference]()


def test_ray_tasks_ask_for_what_they_need_and_finished_ones_are_not_sent(tmp_path, pretence, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = ("probe/action", "probe/constant", "probe/action-observation")
    tasks = [tiny(name, Path("relative")) for name in names]
    run_task(tasks[1], never, silent)
    engine = engines.RayEngine.__new__(engines.RayEngine)
    engine.ray, engine.cpus, engine.gpus = PretendedRay(lost=(names[2],)), 2.0, 0.5
    told: list[tuple[str, str]] = []
    outcomes = engine._run(tasks, None, lambda task, text: told.append((task.env, text)))
    assert outcomes[:2] == [Outcome("done")] * 2
    assert outcomes[2] == Outcome("failed", "its worker was lost 4 times (RayError)")
    assert engine.ray.options == {"num_cpus": 2.0, "num_gpus": 0.5, "max_retries": 3}
    assert [t.env for t in engine.ray.given] == [names[0], names[2]]
    assert engine.ray.given[0].path == str(tmp_path / "relative" / "probe-action")  # workers may work elsewhere
    assert told[0] == (names[1], "done")
    assert {env for env, _ in told} == set(names)


def test_ray_is_an_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SuiteError, match=r"engine: ray is not installed; pip install -e '\.\[ray\]' in a checkout"):
        engines.make("ray")


@pytest.mark.parametrize("there", [False, True])
def test_a_cluster_is_joined_or_begun_and_left_unless_it_was_there(monkeypatch, there):
    calls: list[Any] = []
    fake = PretendedRay()
    fake.is_initialized = lambda: there
    fake.init = lambda **options: calls.append(options["address"])
    fake.shutdown = lambda: calls.append("left")
    fake.cluster_resources = lambda: {"CPU": 2.0}
    monkeypatch.setitem(sys.modules, "ray", fake)
    assert engines.make("ray", address="auto").run([], None, silent) == []
    assert calls == ([] if there else ["auto", "left"])


def test_a_cluster_that_refuses_is_said(monkeypatch):
    def refuse(**options) -> None:
        raise ConnectionError("no such cluster\nand a long explanation")

    fake = PretendedRay()
    fake.is_initialized, fake.init = lambda: False, refuse
    monkeypatch.setitem(sys.modules, "ray", fake)
    with pytest.raises(SuiteError, match=r"^engine: no Ray cluster at this machine \(no such cluster\)$"):
        engines.make("ray").run([], None, silent)


def test_no_time_left_begins_nothing_on_a_worker(tmp_path, pretence):
    state, _ = engines._on_worker(tiny("probe/action", tmp_path), time.time() - 1, 1)
    assert (state, pretence.trained) == ("left", 0)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "127.0.0.1:99999"])
def test_a_cluster_that_is_not_there_is_said_at_once(address):
    with pytest.raises(SuiteError, match=f"engine: no Ray cluster at {address} "):
        engines._check_address(address)


@pytest.mark.parametrize("address", [None, "auto", "local"])
def test_addresses_that_ray_finds_itself(address):
    engines._check_address(address)


def test_what_no_node_can_hold_is_refused():
    engine = engines.RayEngine.__new__(engines.RayEngine)
    engine.ray = SimpleNamespace(cluster_resources=lambda: {"CPU": 4.0, "GPU": 1.0})
    engine.cpus, engine.gpus = 4, None
    engine._check_room()
    assert engine.gpus == 1  # where there are any
    engine.gpus = 2
    with pytest.raises(SuiteError, match=r"engine: expected at most 1 GPUs per task.*, got 2"):
        engine._check_room()
    engine.cpus = 5
    with pytest.raises(SuiteError, match=r"engine: expected at most 4 CPUs per task.*, got 5"):
        engine._check_room()


def test_what_cannot_even_start_is_in_the_folder_as_failed(tmp_path):
    task = tiny("atari/NoSuchGame", tmp_path)
    assert run_task(task, never, silent).state == "failed"
    assert state_of(task).state == "failed"
    assert state_of(task).reason


def test_no_time_left_begins_nothing(tmp_path):
    task = tiny("probe/action", tmp_path)
    (outcome,) = LocalEngine().run([task], time.time() - 1, silent)
    assert outcome.state == "left"
    assert not Path(task.path).exists()


def test_a_deadline_stops_before_a_block_that_would_end_too_late(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(deadline_module.time, "time", lambda: now[0])
    deadline = Deadline(150.0)
    assert deadline.allows_start()
    now[0] = 120.0  # compilation and the first block: 20 s
    assert not deadline()
    now[0] = 125.0  # blocks take 5 s from here
    assert not deadline()
    now[0] = 146.0  # one took 21 s: another would end at 167
    assert deadline()
    assert not deadline.allows_start()  # the last start took 20 s
    assert Deadline(None).allows_start()
