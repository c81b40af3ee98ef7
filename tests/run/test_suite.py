"""Suites: data that is checked, folders that say how far they are, and runs that end as they should however they go."""

from __future__ import annotations

import fcntl
import json
import re
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from nextpolicy import runfiles
from nextpolicy.run import api, cli, engines, metrics, suite, suite_cli, training
from nextpolicy.run.engines import Deadline, LocalEngine, Outcome, run_task
from nextpolicy.run.folder import RunError, RunFolder
from nextpolicy.run.suite import SUITES, State, Suite, SuiteError, Task, state_of

pytestmark = pytest.mark.quick_compilation

TINY = {"total_env_steps": 6 * 32, "num_envs": 4, "rollout_length": 8, "minibatch_size": 32, "hidden": (8,)}


def tiny(env: str, out: Path, **fields) -> Task:
    made = Suite("tiny", "", (env,), preset="default", algo=("ppo",), seeds=1, evaluate_episodes=0)
    config = made.config(env).replace(**TINY, block_rounds=2, **fields)
    return Task(env, config, str(out / suite.slug(env)), 0)


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


never = Deadline(None)


def silent(task, text) -> None:
    return


# Data


def test_the_suites_are_those_of_the_paper():
    assert {n: len(s.environments) for n, s in SUITES.items()} == {
        "minatar": 5,
        "minatar-tuning": 5,
        "brax": 12,
        "atari": 16,
        "classic": 4,
        "smoke": 3,
    }
    members = {n: len(s.config(s.environments[0]).members()) for n, s in SUITES.items()}
    assert (members["brax"], members["atari"], members["minatar"]) == (36, 15, 24)
    assert members["minatar-tuning"] == 36  # 4 thresholds x 3 bounds x 3 seeds
    assert SUITES["brax"].config("brax/ant").run.total_env_steps == 50_000_000
    assert SUITES["minatar"].config("gymnax/Asterix-MinAtar").ppo.clip == 0.1


@pytest.mark.parametrize("name", SUITES)
def test_every_environment_of_a_suite_is_known(name):
    suite.check_environments(SUITES[name])


def write_toml(tmp_path: Path, content: str) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(content)
    return str(path)


def test_a_suite_of_ones_own(tmp_path):
    mine = suite.load(
        write_toml(
            tmp_path,
            """
            about = "two of them"
            environments = ["gymnax/CartPole-v1", "probe/action"]
            algo = ["ppo", "sv-dynamic"]
            seeds = [3, 5]
            preset = "default"
            [fields]
            total_env_steps = 100_000
            [environment."probe/action"]
            total_env_steps = 20_000
            """,
        )
    )
    assert mine.name == "mine"
    assert mine.config("gymnax/CartPole-v1").run.total_env_steps == 100_000
    assert mine.config("probe/action").run.total_env_steps == 20_000
    assert mine.config("probe/action").run.seeds == (3, 5)
    assert [m.variant for m in mine.config("probe/action").members()] == ["ppo"] * 2 + ["sv-dynamic"] * 2


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("environments = [", "is not TOML"),
        ("", "environments: got None, takes a list"),
        ("environments = []", r"environments: got \[\], takes a list"),
        ('environments = ["probe/a", "probe/a"]', "environments: got one twice"),
        ('environments = ["probe/a"]\nenvironmets = 1', "unknown key 'environmets'; did you mean 'environments'"),
        ('environments = ["probe/a"]\nseeds = 0', "seeds: got 0, takes a number of seeds"),
        ('environments = ["probe/a"]\nalgo = "pppo"', "algo: got 'pppo', takes one or several of ppo"),
        ('environments = ["probe/a"]\npreset = "papr"', "preset: got 'papr'.*did you mean 'paper'"),
        ('environments = ["probe/a"]\n[fields]\nlearning_rat = 1', "unknown field 'learning_rat'.*learning_rate"),
        ('environments = ["probe/a"]\n[fields]\nseeds = 1', "seeds: is a key of the suite itself"),
        ('environments = ["probe/a"]\n[fields]\ngamma = 2', "gamma: got 2, takes a number in"),
        ('environments = ["probe/a"]\nfields = 3', "fields: got 3, takes a table"),
        ('environments = ["probe/a"]\nevaluate_episodes = -1', "evaluate_episodes: got -1"),
        ('environments = ["probe/a"]\nevaluate_episodes = true', "evaluate_episodes: got True"),
        ('environments = ["probe/a"]\nalgo = 5', "algo: got 5, takes one or a list of ppo"),
        ('environments = ["probe/a"]\nalgo = []', r"algo: got \[\], takes one or a list of ppo"),
        ('environments = ["probe/a"]\npreset = ["paper"]', r"preset: got \['paper'\], takes a name"),
        ('environments = ["probe/a"]\nname = "../up"', "name: got '../up', takes a word that can be a folder's name"),
        ('environments = ["probe/a"]\nname = ".."', "name: got '..', takes a word"),
        ('environments = ["probe/a"]\nname = ""', "name: got '', takes a word"),
        ('environments = ["probe/a"]\nname = 3', "name: got 3, takes a word"),
        ('environments = ["cartpole"]', "environments: got 'cartpole', takes ids such as four-rooms, gymnax/"),
        ('environments = ["foo/bar"]', "environments: got 'foo/bar', takes ids such as"),
        ('environments = ["gym/.."]', r"environments: got 'gym/\.\.', takes ids such as"),
        ('environments = ["four-rooms/x"]', "environments: got 'four-rooms/x', takes ids such as"),
        ('environments = ["probe/a"]\n[environment]\n"probe/a" = 3', "'probe/a': got 3, takes a table of fields"),
        ('environments = ["probe/a"]\n[environment."probe/c"]\ngamma = 0.9', "'probe/c': not among the environments"),
    ],
)
def test_a_wrong_suite_is_one_line(tmp_path, content, complaint, capsys):
    path = write_toml(tmp_path, content)
    assert cli.main(["suite", "run", path, "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err.strip()
    assert len(said.splitlines()) == 1
    with pytest.raises(SuiteError, match=complaint):
        suite.load(path)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["run", "smok"], "unknown suite 'smok'; did you mean 'smoke'"),
        (["run", "nowhere.toml"], "nowhere.toml cannot be read"),
        (["run", "smoke", "--engine", "rai"], "engine: got 'rai', takes local or ray"),
        (["run", "smoke", "--budget", "soon"], "budget: got 'soon', takes a time such as 25m"),
        (["run", "smoke", "--budget=-5m"], "budget: got '-5m', takes a time such as 25m"),
        (["run", "smoke", "--budget", "0s"], "budget: got '0s', takes a time such as 25m"),
        (["run", "smoke", "--budget", "5m1h"], "budget: got '5m1h', takes a time such as 25m"),
        (["run", "smoke", "--budget", "25"], "budget: got '25', takes a time such as 25m"),
        (["run", "smoke", "--budget", "9" * 400 + "h"], "takes a time such as 25m"),
        (["run", "smoke", "--engine", "ray", "--cpus", "-1"], "cpus: got -1.0, takes a number of at least 0"),
        (["run", "smoke", "--engine", "ray", "--gpus", "nan"], "gpus: got nan, takes a number of at least 0"),
        (["run", "smoke", "--seeds", "0"], "seeds: got 0"),
        (["run", "smoke", "--only", "brax/ant"], "only: got 'brax/ant'"),
        (["ran", "smoke"], "unknown word 'ran'; did you mean 'run'"),
    ],
)
def test_a_wrong_command_is_one_line(tmp_path, arguments, complaint, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["suite", *arguments]) == 2
    said = capsys.readouterr().err.strip()
    assert complaint in said
    assert len(said.splitlines()) == 1


def test_an_unknown_environment_is_found_before_anything_runs(tmp_path, capsys):
    path = write_toml(tmp_path, 'environments = ["probe/action", "probe/acton"]\npreset = "default"')
    assert cli.main(["suite", "run", path, "--out", str(tmp_path / "out")]) == 2
    assert "environments: got 'probe/acton', takes a known id; did you mean 'probe/action'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("text", "seconds"), [("25m", 1500), ("90s", 90), ("1h30m", 5400), ("1.5h", 5400)])
def test_times(text, seconds):
    assert suite_cli.seconds(text) == seconds


# Folders


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
    (task,) = suite.tasks(mine, tmp_path)
    RunFolder.create(task.path, task.config, {"custom": []}).unlock()
    assert suite.tasks(mine, tmp_path) == [task]
    with pytest.raises(SuiteError, match=r"holds a run with seeds = \(0,\), this suite asks for \(0, 1\)"):
        suite.tasks(mine, tmp_path, seeds=2)


def test_a_start_cut_short_before_the_configuration_was_written_is_begun_again(tmp_path):
    task = tiny("probe/action", tmp_path)
    for part in ("metrics", "checkpoints"):
        (Path(task.path) / part).mkdir(parents=True)
    (Path(task.path) / ".lock").touch()
    (Path(task.path) / ".config.json.77.tmp").write_text('{"en')
    folder, resume = suite.open_folder(task)
    assert not resume
    assert folder.config() == task.config
    folder.unlock()
    folder, resume = suite.open_folder(task)
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
    suite.hold(Path(task.path)).unlock()
    with open(Path(task.path) / ".lock") as handle:
        fcntl.flock(handle, fcntl.LOCK_SH)
        with pytest.raises(RunError, match="is being written by another process"):
            suite.hold(Path(task.path))


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
        assert run_task(task, never, silent) == Outcome("running", "another process has it")


# Running


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
    table = suite_cli.status_table([bad, good])
    assert "failed" in table
    assert "not finite" in table
    assert "1 of 2 done" in table.splitlines()[-1]


class Pretence:
    """Training and evaluation that do nothing but what they are told, in no time."""

    def __init__(self, monkeypatch) -> None:
        self.trained, self.evaluated, self.faults = 0, 0, []
        monkeypatch.setattr(engines, "_train", self.train)
        monkeypatch.setattr(api, "load", lambda path, trust: self)

    def train(self, task: Task, stop, tell) -> None:
        self.trained += 1
        folder, _ = suite.open_folder(task)
        folder.set_status("finished", rounds_done=6, rounds=6, env_steps=192)
        folder.unlock()

    def evaluations(self, members: range, episodes: int) -> Iterator[dict[str, float]]:
        self.evaluated += 1
        if self.faults:
            raise ValueError(self.faults.pop())
        yield from ({"member": i, "mean": float(episodes)} for i in members)


@pytest.fixture
def pretence(monkeypatch) -> Pretence:
    return Pretence(monkeypatch)


@pytest.fixture
def evaluated_task(tmp_path) -> Task:
    return replace(tiny("probe/action", tmp_path), evaluate_episodes=7)


def test_an_evaluation_is_made_once(pretence, evaluated_task):
    assert [run_task(evaluated_task, never, silent) for _ in range(2)] == [Outcome("done")] * 2
    assert (pretence.trained, pretence.evaluated) == (1, 1)
    assert json.loads((Path(evaluated_task.path) / "evaluation.json").read_text()) == [{"member": 0, "mean": 7.0}]
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
    assert "the cat again" in suite_cli.status_table([evaluated_task])
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

    monkeypatch.setattr(engines, "_train", fail)
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
    with pytest.raises(SuiteError, match="engine: got 2 GPU for each task, the cluster has 1"):
        engine._check_room()
    engine.cpus = 5
    with pytest.raises(SuiteError, match="engine: got 5 CPU for each task, the cluster has 4"):
        engine._check_room()


# What is shown


def test_lines_tell_what_changes_and_now_and_then_a_round(tmp_path, capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(suite_cli.time, "monotonic", lambda: now[0])
    a, b = tiny("probe/action", tmp_path), tiny("probe/constant", tmp_path)
    lines = suite_cli.Lines([a, b])
    lines.tell(a, "starting")
    for now[0] in (0.0, 10.0, 29.0, 31.0):
        lines.tell(a, f"round {now[0]:.0f}")
    lines.tell(b, "done")
    assert capsys.readouterr().err.splitlines() == [
        "probe/action    starting",
        "probe/action    round 0",
        "probe/action    round 31",
        "probe/constant  done",
    ]


def test_quiet_tells_failures_only(tmp_path, capsys):
    task = tiny("probe/action", tmp_path)
    for text in ("starting", "round 1/6", "failed, trying once more: the cat", "failed: the cat", "done"):
        suite_cli.Silent().tell(task, text)
    told = ["probe/action: failed, trying once more: the cat", "probe/action: failed: the cat"]
    assert capsys.readouterr().err.splitlines() == told


def test_bars_are_as_far_as_the_folders(tmp_path):
    a, b = tiny("probe/action", tmp_path), tiny("probe/constant", tmp_path)
    RunFolder.create(a.path, a.config, {"custom": []}).unlock()
    RunFolder.open(a.path).set_status("stopped", rounds_done=2)
    bars = suite_cli.Bars([a, b])
    shown = lambda: [(t.description, t.completed, t.total, t.fields["text"]) for t in bars.bars.tasks]  # noqa: E731
    assert shown() == [("probe/action", 2, 6, "stopped"), ("probe/constant", 0, 6, "left")]
    bars.tell(a, "round 4/6, return 1")
    bars.tell(b, "starting")
    assert shown() == [("probe/action", 4, 6, "round 4/6, return 1"), ("probe/constant", 0, 6, "starting")]


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0, "-"), (float("nan"), "unknown"), (59.4, "59 s"), (90, "2 min"), (5400, "1.5 h")]
)
def test_durations(seconds, shown):
    assert suite_cli._duration(seconds) == shown


def test_the_command_says_how_it_ended(tmp_path, pretence, capsys):
    path = write_toml(tmp_path, 'environments = ["probe/action", "probe/constant"]\npreset = "default"\nseeds = 1')
    command = ["suite", "run", path, "--out", str(tmp_path / "out")]
    pretence.faults = ["the cat"] * 2
    assert cli.main(command) == 2
    said = capsys.readouterr()
    assert said.err.splitlines()[-1].endswith("suite: 1 of 2 environments failed, 1 are done; probe/action: the cat")
    assert said.out == ""
    assert cli.main(["suite", "status", path, "--out", str(tmp_path / "out")]) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[1].split()[:2] == ["probe/action", "failed"]
    assert table[1].endswith("the cat")
    assert table[-1].split()[:5] == ["all", "1", "of", "2", "done"]
    assert cli.main([*command, "--only", "probe/action"]) == 0
    assert capsys.readouterr().out == f"1 of 1 environments done in {tmp_path / 'out'}\n"
    assert cli.main([*command, "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


def test_a_command_with_a_budget_says_that_there_is_more(tmp_path, monkeypatch, capsys):
    path = write_toml(tmp_path, 'environments = ["probe/action"]\npreset = "default"\nseeds = 1')
    given = []

    def run(self, tasks, until, tell):
        given.append(until - time.time())
        return [Outcome("stopped", "time is up")]

    monkeypatch.setattr(LocalEngine, "run", run)
    assert cli.main(["suite", "run", path, "--out", str(tmp_path / "out"), "--budget", "2m"]) == 0
    assert given[0] == pytest.approx(120, abs=20)
    assert capsys.readouterr().out == f"0 of 1 environments done in {tmp_path / 'out'}; the same command goes on\n"


def test_lists(capsys):
    assert cli.main(["suite", "list"]) == 0
    assert "smoke            3 environments x  9 members" in capsys.readouterr().out
    assert cli.main(["suite", "list", "smoke"]) == 0
    assert capsys.readouterr().out.splitlines() == list(SUITES["smoke"].environments)


def test_out_may_not_be_a_file(tmp_path, capsys):
    (tmp_path / "taken").write_text("mine")
    assert cli.main(["suite", "status", "smoke", "--out", str(tmp_path / "taken")]) == 2
    assert "taken is a file, takes a folder" in capsys.readouterr().err


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
    monkeypatch.setattr(engines.time, "time", lambda: now[0])
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


def test_status_estimates_the_time_left(tmp_path):
    task = tiny("probe/action", tmp_path)
    RunFolder.create(task.path, task.config, {"custom": []}).unlock()
    frame = pd.DataFrame({"round": [0, 1], "steps_per_second": [0.5, 0.5]})
    metrics.write_part(Path(task.path) / "metrics", frame)
    RunFolder.open(task.path).set_status("stopped", rounds_done=2)
    other = tiny("probe/constant", tmp_path)
    first, second, total = suite_cli.status_table([task, other]).splitlines()[1:]
    assert first.split() == ["probe/action", "stopped", "2/6", "4", "min"]  # 4 rounds x 32 steps at 0.5 a second
    assert second.split() == ["probe/constant", "left", "0/6", "6", "min"]  # 6 x 32 at the rate of the other
    assert total.split() == ["all", "0", "of", "2", "done", "11", "min"]
    faster = tiny("probe/action-observation", tmp_path)
    RunFolder.create(faster.path, faster.config, {"custom": []}).unlock()
    metrics.write_part(Path(faster.path) / "metrics", frame.assign(steps_per_second=3.5))
    second = suite_cli.status_table([task, other, faster]).splitlines()[2]
    assert second.split() == ["probe/constant", "left", "0/6", "2", "min"]  # 192 steps at the mean of 0.5 and 3.5: 96 s
