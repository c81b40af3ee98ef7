"""A suite's budget: what an opening takes is not forgotten, and evaluation goes member by member until time is up."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nextpolicy.experiments import execution
from nextpolicy.experiments.deadline import Deadline
from nextpolicy.experiments.engines import LocalEngine
from nextpolicy.experiments.execution import Outcome, run_task
from nextpolicy.experiments.suite import Suite, slug
from nextpolicy.experiments.task import Task, open_folder, state_of
from nextpolicy.run import api
from nextpolicy.runfiles import EVALUATION, read_evaluation

pytestmark = pytest.mark.quick_compilation
TINY = {"total_env_steps": 64, "num_envs": 4, "rollout_length": 8, "minibatch_size": 32, "hidden": (8,)}


class Clock:
    """A clock that moves only when something takes time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(execution.time, "time", lambda: self.now)

    def pass_by(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def tasks_of(out: Path, *envs: str, seeds: int = 4, episodes: int = 3) -> list[Task]:
    made = Suite("mine", "", envs, preset="default", algo=("ppo",), seeds=seeds, fields=TINY)
    return [Task(env, made.config(env), str(out / slug(env)), episodes) for env in envs]


def silent(task: Task, text: str) -> None:
    return


def test_a_refused_environment_does_not_make_the_next_look_cheap(clock: Clock) -> None:
    deadline = Deadline(clock.now + 30)
    assert deadline.allows_start()
    clock.pass_by(12)  # compilation and the first block
    assert not deadline()
    clock.pass_by(8)  # now 20 s are gone, and 10 are left
    assert [deadline.allows_start() for _ in range(3)] == [False] * 3


def test_the_longest_opening_counts_not_the_last(clock: Clock) -> None:
    deadline = Deadline(clock.now + 100)
    for seconds in (40, 5):
        assert deadline.allows_start()
        clock.pass_by(seconds)
        deadline()
    assert deadline.allows_start()  # 45 + 40 < 100
    clock.pass_by(20)
    assert not deadline.allows_start()  # 65 + 40 > 100


class SlowWork:
    """Training and evaluation that take the clock's time and do nothing else."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, clock: Clock, opening: float, member: float) -> None:
        self.clock, self.opening, self.member, self.evaluated = clock, opening, member, []
        monkeypatch.setattr(execution, "_train", self.train)
        monkeypatch.setattr(api, "load", lambda path, trust: self)

    def train(self, task: Task, stop: Any, tell: Any) -> None:
        folder, _ = open_folder(task)
        self.clock.pass_by(self.opening)
        stop()
        folder.set_status("finished", rounds_done=2, rounds=2, env_steps=64)
        folder.unlock()

    def row(self, i: int, episodes: int) -> dict[str, Any]:
        self.clock.pass_by(self.member)
        self.evaluated.append(i)
        return {"member": i, "variant": "ppo", "seed": i, "mean": float(episodes)}

    def evaluations(self, members: range, episodes: int) -> Iterator[dict[str, Any]]:
        return (self.row(i, episodes) for i in members)


def test_a_suite_does_not_run_past_its_budget_by_an_opening(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    SlowWork(monkeypatch, clock, opening=20, member=0)
    until = clock.now + 30
    outcomes = LocalEngine().run(tasks_of(tmp_path, "probe/action", "probe/constant", "four-rooms"), until, silent)
    assert [o.state for o in outcomes] == ["done", "left", "left"]
    assert clock.now <= until


def test_evaluation_stops_at_the_deadline_and_short_budgets_come_to_its_end(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    (task,), work = tasks_of(tmp_path, "probe/action"), SlowWork(monkeypatch, clock, opening=1, member=10)
    until = clock.now + 25  # room for two members
    assert run_task(task, Deadline(until), silent).state == "stopped"
    assert clock.now <= until
    assert work.evaluated == [0, 1]
    assert state_of(task).reason == "trained, not evaluated yet"
    assert not (Path(task.path) / EVALUATION).exists()
    for members in ([0, 1, 2], [0, 1, 2, 3]):  # too short for one, but it is begun: no call is in vain
        outcome = run_task(task, Deadline(clock.now + 1), silent)
        assert work.evaluated == members
    assert outcome == Outcome("done")
    rows = read_evaluation(Path(task.path))
    assert rows == [{"member": i, "variant": "ppo", "seed": i, "mean": 3.0} for i in range(4)]
    assert not (Path(task.path) / execution.PART).exists()


def test_the_longest_member_counts(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    (task,), work = tasks_of(tmp_path, "probe/action"), SlowWork(monkeypatch, clock, opening=0, member=0)
    lengths = iter((30.0, 1.0, 1.0, 1.0))
    row = work.row

    def unequal(i: int, episodes: int) -> dict[str, Any]:
        work.member = next(lengths)
        return row(i, episodes)

    work.row = unequal
    assert run_task(task, Deadline(clock.now + 60.5), silent).state == "stopped"
    assert work.evaluated == [0, 1]  # 31 s are gone: one as long as the longest would end at 61


def test_no_member_is_begun_after_the_deadline(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    (task,), work = tasks_of(tmp_path, "probe/action"), SlowWork(monkeypatch, clock, opening=10, member=1)
    assert "no time left to evaluate" in run_task(task, Deadline(clock.now + 10), silent).reason
    assert work.evaluated == []


@pytest.mark.parametrize(
    "content", ["", "[", "[]", "3", '{"rows": []}', '{"evaluate_episodes": 3, "rows": {"a": 1}}', "[" * 100_000]
)
def test_a_damaged_part_is_evaluated_again(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    (task,), work = tasks_of(tmp_path, "probe/action"), SlowWork(monkeypatch, clock, opening=0, member=10)
    run_task(task, Deadline(clock.now + 15), silent)
    assert work.evaluated == [0]
    (Path(task.path) / execution.PART).write_text(content)
    assert run_task(task, Deadline(None), silent) == Outcome("done")
    assert work.evaluated == [0, 0, 1, 2, 3]


def test_members_evaluated_over_other_episodes_do_not_count(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    (task,), work = tasks_of(tmp_path, "probe/action"), SlowWork(monkeypatch, clock, opening=0, member=10)
    run_task(task, Deadline(clock.now + 15), silent)
    assert run_task(replace(task, evaluate_episodes=5), Deadline(None), silent) == Outcome("done")
    assert work.evaluated == [0, 0, 1, 2, 3]
    assert {row["mean"] for row in read_evaluation(Path(task.path))} == {5.0}


@pytest.mark.allow_rank_promotion
@pytest.mark.allow_key_reuse
@pytest.mark.parametrize("env", ["probe/action", "gym/CartPole-v1"])
def test_an_evaluation_in_pieces_is_the_undisturbed_one(
    tmp_path: Path, env: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For real, on the device and on the host."""
    (whole,) = tasks_of(tmp_path / "whole", env, seeds=2)
    assert run_task(whole, Deadline(None), silent) == Outcome("done")
    expected = (Path(whole.path) / EVALUATION).read_bytes()
    assert read_evaluation(Path(whole.path)) == api.load(whole.path).evaluate(3).to_dict("records")
    (Path(whole.path) / EVALUATION).unlink()
    deadline = Deadline(None)
    allowed = iter((True, True, False))
    monkeypatch.setattr(Deadline, "allows_evaluation", lambda self: next(allowed, True))
    assert run_task(whole, deadline, silent).state == "stopped"
    assert len(json.loads((Path(whole.path) / execution.PART).read_text())["rows"]) == 1
    assert run_task(whole, deadline, silent) == Outcome("done")
    assert (Path(whole.path) / EVALUATION).read_bytes() == expected
