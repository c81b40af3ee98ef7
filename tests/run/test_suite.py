"""Suites: data that is checked, folders that say how far they are, and runs that end as they should however they go."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from nextpolicy.report.runs import load_all, member_table
from nextpolicy.report.tables import all_tables
from nextpolicy.run import cli, engines, metrics, suite, suite_cli
from nextpolicy.run.engines import Deadline, LocalEngine, Outcome, run_task
from nextpolicy.run.folder import RunFolder
from nextpolicy.run.suite import SUITES, State, Suite, SuiteError, Task, state_of

TINY = {"total_env_steps": 6 * 32, "num_envs": 4, "rollout_length": 8, "minibatch_size": 32, "hidden": (8,)}


def tiny(env: str, out: Path, **fields) -> Task:
    made = Suite("tiny", "", (env,), preset="default", algo=("ppo",), seeds=1, evaluate_episodes=0)
    config = made.config(env).replace(**TINY, block_rounds=2, **fields)
    return Task(env, config, str(out / suite.slug(env)), 0)


def never() -> bool:
    return False


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
        ('environments = ["a/b", "a/b"]', "environments: got one twice"),
        ('environments = ["a/b"]\nenvironmets = 1', "unknown key 'environmets'; did you mean 'environments'"),
        ('environments = ["a/b"]\nseeds = 0', "seeds: got 0, takes a number of seeds"),
        ('environments = ["a/b"]\nalgo = "pppo"', "algo: got 'pppo', takes one or several of ppo"),
        ('environments = ["a/b"]\npreset = "papr"', "preset: got 'papr'.*did you mean 'paper'"),
        ('environments = ["a/b"]\n[fields]\nlearning_rat = 1', "unknown field 'learning_rat'.*learning_rate"),
        ('environments = ["a/b"]\n[fields]\nseeds = 1', "seeds: is a key of the suite itself"),
        ('environments = ["a/b"]\n[fields]\ngamma = 2', "gamma: got 2, takes a number in"),
        ('environments = ["a/b"]\nfields = 3', "fields: got 3, takes a table"),
        ('environments = ["a/b"]\nevaluate_episodes = -1', "evaluate_episodes: got -1"),
        ('environments = ["a/b"]\n[environment."a/c"]\ngamma = 0.9', "'a/c': not among the environments"),
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
    return metrics.read(Path(task.path) / "metrics").drop(columns="steps_per_second")


def test_a_stopped_environment_goes_on_as_if_it_had_not_stopped(tmp_path):
    stopped, whole = tiny("probe/action", tmp_path / "a"), tiny("probe/action", tmp_path / "b")
    assert run_task(stopped, lambda: True, silent).state == "stopped"
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
    assert state_of(bad).state == "failed"
    assert "not finite in round" in state_of(bad).reason
    table = suite_cli.status_table([bad, good])
    assert "failed" in table
    assert "not finite" in table
    assert "1 of 2 done" in table.splitlines()[-1]


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


# Slow: the whole suite, killed and spread


def command(out: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "nextpolicy.run.cli", "suite", "run", "smoke", "--out", str(out), "--quiet", *more]


def environment() -> dict[str, str]:
    return {**os.environ, "JAX_PLATFORMS": "cpu"}


def tables_of(out: Path) -> tuple[pd.DataFrame, dict, pd.DataFrame]:
    members = member_table(load_all([out]))
    return members, *all_tables(members)


def assert_same_tables(ours: Path, theirs: Path) -> None:
    (a, many_a, total_a), (b, many_b, total_b) = tables_of(ours), tables_of(theirs)
    pd.testing.assert_frame_equal(a, b, check_exact=True)
    assert list(many_a) == list(many_b)
    for key, table in many_a.items():
        pd.testing.assert_frame_equal(table, many_b[key], check_exact=True)
    pd.testing.assert_frame_equal(total_a, total_b, check_exact=True)
    assert (a["state"] == "finished").all()
    assert a["target_score"].notna().all()


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("uninterrupted")
    subprocess.run(command(out), check=True, timeout=600, env=environment())
    return out


def files_of(out: Path) -> set[tuple[str, int]]:
    """Every file with its time: whatever the runner does next changes this."""
    found = set()
    for folder, _, names in os.walk(out):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                found.add((f"{folder}/{name}", os.stat(f"{folder}/{name}").st_mtime_ns))
    return found


def wait_for_a_moment(kill: int, out: Path, process: subprocess.Popen, rng: np.random.Generator) -> None:
    """One kill in five at a blind moment, start-up included, one soon after the first file that is written, and three
    soon after the first part of metrics or checkpoint, so that however slow the machine is, the suite comes forward."""
    if kill % 5 == 0:
        time.sleep(float(rng.uniform(0.2, 6)))
        return
    seen = lambda: {f for f in files_of(out) if kill % 5 == 1 or "metrics" in f[0] or "checkpoints" in f[0]}  # noqa: E731
    before, until = seen(), time.monotonic() + 120
    while seen() <= before and process.poll() is None and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(float(rng.uniform(0, 1.5)))


@pytest.mark.slow
def test_twenty_kills_change_nothing(tmp_path, uninterrupted):
    rng = np.random.default_rng(0)
    began, kills, states = time.monotonic(), 0, []
    while kills < 20:
        process = subprocess.Popen(command(tmp_path), env=environment(), stderr=subprocess.DEVNULL)
        wait_for_a_moment(kills, tmp_path, process, rng)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.wait()
        mine = suite.tasks(SUITES["smoke"], tmp_path)
        states.append(", ".join(f"{state_of(t).state} {state_of(t).rounds_done}" for t in mine))
        if all(state_of(t).state == "done" for t in mine):  # so that there is work left to cut off
            shutil.rmtree(mine[kills % 3].path)
    print(*states, sep="\n")
    subprocess.run(command(tmp_path), check=True, timeout=600, env=environment())
    print(f"20 kills and the end took {time.monotonic() - began:.0f} s")
    assert len(set(states)) > 5, "the kills hit the same moment again and again"
    assert_same_tables(tmp_path, uninterrupted)


def lock_holder(path: Path) -> int | None:
    """The process that holds a folder's lock."""
    try:
        inode = (path / ".lock").stat().st_ino
    except FileNotFoundError:
        return None
    for line in Path("/proc/locks").read_text().splitlines():
        fields = line.split()
        if fields[1] == "FLOCK" and int(fields[5].split(":")[-1]) == inode:
            return int(fields[4])
    return None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_two_ray_workers_give_the_same_tables_and_one_may_die(tmp_path, uninterrupted):
    ray = pytest.importorskip("ray", reason="needs the extra `ray`")
    victim = tmp_path / suite.slug(SUITES["smoke"].environments[0])
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    killed: list[int] = []

    def kill_one(task: Task, text: str) -> None:
        """Once the first environment has a checkpoint and is at work, end its worker."""
        status = RunFolder(victim).status() if victim.exists() else {}
        holder = lock_holder(victim)
        if not killed and holder and holder != os.getpid() and 8 <= status.get("rounds_done", 0) < 48:
            os.kill(holder, signal.SIGKILL)
            killed.append(int(status["rounds_done"]))

    engines.POLL_SECONDS = 0.02
    try:
        tasks = suite.tasks(SUITES["smoke"], tmp_path)
        outcomes = engines.RayEngine(cpus=1, gpus=0).run(tasks, None, kill_one)
    finally:
        engines.POLL_SECONDS = 0.5
        ray.shutdown()
    assert [o.state for o in outcomes] == ["done"] * 3
    assert killed, "no worker was killed"
    print(f"a worker was killed after {killed[0]} of 48 rounds")
    assert json.loads((victim / "status.json").read_text())["rounds_done"] == 48
    assert_same_tables(tmp_path, uninterrupted)
