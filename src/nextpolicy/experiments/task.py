"""One environment of a suite: its configuration, its run folder and its state."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from nextpolicy.config import TrainConfig, nearest
from nextpolicy.experiments.suite import Suite, SuiteError, slug
from nextpolicy.run.folder import RunError, RunFolder, is_held
from nextpolicy.runfiles import read_evaluation
from nextpolicy.settings import printable


@dataclass(frozen=True)
class Task:
    """One environment's population and its run folder."""

    env: str
    config: TrainConfig
    path: str
    evaluate_episodes: int


def tasks(suite: Suite, out: str | Path, *, seeds: int | None = None, only: tuple[str, ...] = ()) -> list[Task]:
    """The tasks in the suite's order; raises if a folder holds a run with a different configuration."""
    for env in only:
        if env not in suite.environments:
            hint = nearest(env, suite.environments)
            raise SuiteError(f"only: expected an environment of {suite.name}, got {env!r}{hint}")
    chosen = [env for env in suite.environments if not only or env in only]
    made = [Task(e, suite.config(e, seeds), str(Path(out) / slug(e)), suite.evaluate_episodes) for e in chosen]
    for task in made:
        check_folder(task)
    return made


def check_folder(task: Task) -> None:
    """Raise if the task's folder holds a run with a different configuration."""
    if not (Path(task.path) / "config.json").is_file():
        return
    found, expected = RunFolder.open(task.path).config().flat(), task.config.flat()
    for name, value in expected.items():
        if found.get(name) != value:
            raise SuiteError(
                f"suite: expected {name} = {value} in {task.path}, got a run with {name} = {found.get(name)}; "
                f"choose another --out"
            )


class State(NamedTuple):
    """done | running | stopped (by a budget) | cut off | failed | left (not started); `reason` explains it."""

    state: str
    rounds_done: int
    rounds: int
    reason: str = ""


def state_of(task: Task) -> State:
    """The state of a task, read from its folder."""
    rounds = task.config.num_rounds
    folder = RunFolder(Path(task.path))
    if not (folder.path / "config.json").is_file():
        return State("left", 0, rounds)
    status = folder.status()
    state, reason, done = status.get("state"), printable(str(status.get("reason", ""))), status.get("rounds_done")
    done = done if isinstance(done, int) and 0 <= done <= rounds else 0
    if is_held(folder.path):
        return State("running", done, rounds)
    if state == "finished" and is_evaluated(task):
        return State("done", rounds, rounds)
    if state == "failed" or (state == "finished" and reason):  # finished with a reason: the evaluation failed
        return State("failed", done, rounds, reason)
    if state == "finished":
        return State("stopped", rounds, rounds, "trained, not evaluated yet")
    return State("stopped" if state == "stopped" else "cut off", done, rounds)


def is_trained(task: Task) -> bool:
    """Whether training has finished."""
    return RunFolder(Path(task.path)).status().get("state") == "finished"


def is_evaluated(task: Task) -> bool:
    """Whether the target policy has been evaluated, or the suite has no evaluation."""
    try:
        return not task.evaluate_episodes or bool(read_evaluation(Path(task.path)))
    except (OSError, ValueError, RecursionError):  # none yet, or damaged: it is computed again
        return False


def hold(path: Path) -> RunFolder:
    """Lock the run folder. Retries, because `is_held` briefly takes the lock itself."""
    for _ in range(4):
        try:
            return RunFolder.open(path).locked()
        except RunError:
            time.sleep(0.05)
    return RunFolder.open(path).locked()


def open_folder(task: Task) -> tuple[RunFolder, bool]:
    """The task's folder, locked, and whether it holds a run to resume."""
    path = Path(task.path)
    if (path / "config.json").is_file():
        return hold(path), True
    return RunFolder.create(path, task.config, {"custom": []}), False
