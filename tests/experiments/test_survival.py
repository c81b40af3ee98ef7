"""The whole `smoke` suite, killed again and again or spread over Ray: its tables are those of a run left alone."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from nextpolicy.experiments import engines
from nextpolicy.experiments.catalogue import SUITES
from nextpolicy.experiments.task import Task, state_of, tasks
from nextpolicy.report.comparable import load_all
from nextpolicy.report.members import member_table
from nextpolicy.report.tables import all_tables
from nextpolicy.run.folder import RunFolder
from nextpolicy.runfiles import EVALUATION

pytestmark = pytest.mark.slow


def command(out: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "nextpolicy", "suite", "run", "smoke", "--out", str(out), "--quiet", *more]


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
    began = time.monotonic()
    subprocess.run(command(out), check=True, timeout=600, env=environment())
    print(f"the suite left alone took {time.monotonic() - began:.0f} s")
    return out


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


def names(path: Path, pattern: str) -> set[str]:
    return {p.name for p in path.glob(pattern)}


def new(pattern: str, count: int = 1) -> Callable[[Path], Callable[[], bool]]:
    """A moment: so many files of this kind have come since it was asked for."""

    def moment(path: Path) -> Callable[[], bool]:
        before = names(path, pattern)
        return lambda: len(names(path, pattern) - before) >= count

    return moment


def is_trained(path: Path) -> Callable[[], bool]:
    return lambda: RunFolder(path).status().get("state") == "finished"


# When an environment's run is cut off, each with up to so many seconds more.
MOMENTS: dict[str, tuple[Callable[[Path], Callable[[], bool]], float]] = {
    "the folder is being made": (new(".lock"), 0.02),
    "it has begun": (new("config.json"), 3.0),
    "a block's metrics are there": (new("metrics/part-*"), 0.05),
    "a checkpoint is there or half there": (new("checkpoints/*"), 0.1),
    "half of its blocks are done": (new("metrics/part-*", 3), 0.1),
    "it is trained, not evaluated": (is_trained, 1.0),
}
FROM_THE_START = ("the folder is being made", "it has begun", "half of its blocks are done")


def kill_at(name: str, path: Path, out: Path, rng: np.random.Generator) -> bool | None:
    """Start the suite and kill it at this moment of this environment; whether it was at work on it just then.

    None if the suite came to its end first.
    """
    moment, more = MOMENTS[name]
    reached = moment(path)
    process = subprocess.Popen(command(out), env=environment(), stderr=subprocess.DEVNULL)
    until = time.monotonic() + 180
    while not reached() and process.poll() is None:
        assert time.monotonic() < until, f"never came to pass: {name}"
        time.sleep(0.002)
    time.sleep(float(rng.uniform(0, more)))
    at_work = lock_holder(path) == process.pid
    ended = process.poll() is not None
    if not ended:
        process.send_signal(signal.SIGKILL)
    process.wait()
    return None if ended else at_work


def test_twenty_kills_change_nothing(tmp_path, uninterrupted):
    """Six moments of each of the three environments, in an order of chance, and two kills while it starts."""
    rng = np.random.default_rng(0)
    began, hits, kills = time.monotonic(), Counter(), 0
    for _ in range(2):
        process = subprocess.Popen(command(tmp_path), env=environment(), stderr=subprocess.DEVNULL)
        time.sleep(float(rng.uniform(0.2, 3)))
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
    for task in tasks(SUITES["smoke"], tmp_path):
        path, todo = Path(task.path), [str(name) for name in rng.permutation(list(MOMENTS))]
        while todo:
            name = todo[0]
            if path.exists() and (name in FROM_THE_START or state_of(task).rounds_done == state_of(task).rounds):
                shutil.rmtree(path)  # so that there is something to cut off
            at_work = kill_at(name, path, tmp_path, rng)
            if at_work is None:
                continue
            kills, hits[task.env] = kills + 1, hits[task.env] + at_work
            print(f"{task.env}: {name} -> {' '.join(map(str, state_of(task)))}{'' if at_work else ' (not at work)'}")
            todo.pop(0)
    subprocess.run(command(tmp_path), check=True, timeout=600, env=environment())
    print(f"{kills} kills and the end took {time.monotonic() - began:.0f} s; while at work on it: {dict(hits)}")
    assert kills == 20
    assert len(hits) == 3
    assert min(hits.values()) >= 4, "the kills missed an environment"
    assert_same_tables(tmp_path, uninterrupted)


def files_of(path: Path) -> dict[str, tuple[int, int]]:
    """What a finished environment's folder holds, and since when."""
    found = (p for p in path.rglob("*") if p.is_file() and p.name != ".lock")
    return {str(p): (p.stat().st_size, p.stat().st_mtime_ns) for p in found}


@pytest.mark.filterwarnings("ignore")
def test_two_ray_workers_give_the_same_tables_and_one_may_die(tmp_path, uninterrupted, monkeypatch):
    ray = pytest.importorskip("ray", reason="needs the extra `ray`")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(engines, "POLL_SECONDS", 0.02)
    ours = tasks(SUITES["smoke"], "out")  # a relative path, wherever workers work
    victim = Path(ours[1].path)
    # One environment is finished before: losing a worker must not touch it.
    subprocess.run(command(Path("out"), "--only", ours[0].env), check=True, timeout=600, env=environment())
    finished = files_of(Path(ours[0].path))
    killed: list[int] = []

    def kill_one(task: Task, text: str) -> None:
        """Once the second environment has a checkpoint and is at work, end its worker."""
        status = RunFolder(victim).status() if victim.exists() else {}
        holder = lock_holder(victim)
        if not killed and holder and holder != os.getpid() and 8 <= status.get("rounds_done", 0) < 48:
            os.kill(holder, signal.SIGKILL)
            killed.append(int(status["rounds_done"]))

    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        outcomes = engines.RayEngine(cpus=1, gpus=0).run(ours, None, kill_one)
    finally:
        ray.shutdown()
    assert [o.state for o in outcomes] == ["done"] * 3
    assert killed, "no worker was killed"
    print(f"a worker was killed after {killed[0]} of 48 rounds")
    assert json.loads((victim / "status.json").read_text())["rounds_done"] == 48
    assert all((Path(task.path) / EVALUATION).is_file() for task in ours)
    assert files_of(Path(ours[0].path)) == finished
    assert_same_tables(tmp_path / "out", uninterrupted)
