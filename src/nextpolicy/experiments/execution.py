"""Run one task: train, evaluate, and record a failure. All state is in the run folder.

A finished run is skipped, an interrupted one is resumed from its newest intact checkpoint, and a failed one is retried
once. The process may therefore be killed at any time; the same call continues the task.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nextpolicy.experiments.deadline import Deadline
from nextpolicy.experiments.task import Task, hold, is_evaluated, is_trained, open_folder
from nextpolicy.run.folder import RunError, RunFolder, is_held
from nextpolicy.runfiles import EVALUATION, read_manifest, write_manifest

if TYPE_CHECKING:
    import numpy as np

ATTEMPTS = 2
PART = "evaluation.part.json"  # in a run folder: the members evaluated so far

Tell = Callable[[Task, str], None]
"""(task, text): show a task's progress."""


class Outcome(NamedTuple):
    """done | stopped | failed | running (in another process) | left (not started); `reason` explains it."""

    state: str
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.state}: {self.reason}" if self.reason else self.state


def run_task(task: Task, deadline: Deadline, tell: Tell) -> Outcome:
    """Run a task until it is done, the deadline is near, or it has failed twice. Errors become the outcome."""
    for attempt in range(1, ATTEMPTS + 1):
        if is_held(Path(task.path)):
            return Outcome("running", "in another process")
        try:
            if not is_trained(task):
                _train(task, deadline, tell)
            if not is_trained(task):
                return Outcome("stopped", "out of time; the next call resumes it")
            if not is_evaluated(task) and not _evaluate(task, deadline, tell):
                return Outcome("stopped", "trained, but no time left to evaluate; the next call evaluates it")
            return Outcome("done")
        except Exception as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            _record_failure(task, reason)
            if attempt == ATTEMPTS or not deadline.allows_start():
                break
            tell(task, f"failed, trying once more: {reason}")
    return Outcome("failed", reason)


def _train(task: Task, stop: Callable[[], bool], tell: Tell) -> None:
    from nextpolicy.run import job as jobs
    from nextpolicy.run import program_cache, progress, training

    tell(task, "starting")
    program_cache.enable_cache()
    job = jobs.make_job(task.config)
    job.check_population()
    folder, resume = open_folder(task)

    def show(first: int, block: dict[str, np.ndarray], observed: object) -> None:
        done = first + block["accepted"].shape[1]
        standings = progress.standings(block, [member.algo for member in task.config.members()])
        ended = any(math.isfinite(each.mean_return) for each in standings)
        returns = progress.described(standings, accepted=False) if ended else "no episode ended in these rounds"
        tell(task, f"round {done}/{task.config.num_rounds}, {returns}")

    try:
        training.run_job(job, folder, resume=resume, quiet=True, on_block=show, stop=stop)
    finally:
        folder.unlock()


def _evaluate(task: Task, deadline: Deadline, tell: Tell) -> bool:
    """Evaluate the target policy of every member; returns whether all members are done.

    Each member's row is saved immediately, so that an evaluation can be split over several calls.
    """
    from nextpolicy.run import api

    if not deadline.allows_evaluation():
        return False
    tell(task, "evaluating the target policy")
    folder = hold(Path(task.path))
    try:
        part, count = folder.path / PART, len(task.config.members())
        rows = _rows_so_far(part, task)
        evaluations = api.load(task.path, trust=True).evaluations(range(len(rows), count), task.evaluate_episodes)
        while len(rows) < count and deadline.allows_evaluation():
            began = time.time()
            rows.append(next(evaluations))
            deadline.evaluation = max(deadline.evaluation, time.time() - began)
            write_manifest(part, {"evaluate_episodes": task.evaluate_episodes, "rows": rows})
        if len(rows) < count:
            return False
        write_manifest(folder.path / EVALUATION, {"env": task.env, "rows": rows})
        part.unlink(missing_ok=True)
        if "reason" in folder.status():  # from an earlier evaluation that failed
            _set_status(folder, "finished")
        return True
    finally:
        folder.unlock()


def _rows_so_far(part: Path, task: Task) -> list[dict[str, Any]]:
    """The rows of earlier calls, from the first member on; empty if the file is damaged or does not match the task."""
    try:
        kept = read_manifest(part)
        rows = kept["rows"]
        expected = [(i, member.variant, member.seed) for i, member in enumerate(task.config.members())][: len(rows)]
        same = [(row["member"], row["variant"], row["seed"]) for row in rows] == expected
        return rows if same and kept["evaluate_episodes"] == task.evaluate_episodes else []
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return []


def _record_failure(task: Task, reason: str) -> None:
    """Write the reason to the folder. Training records its own failures, but not those before or after it."""
    try:
        folder, _ = open_folder(task)
    except (OSError, RunError):
        return  # the folder is unusable or locked, which the outcome reports
    try:
        state = "finished" if is_trained(task) else "failed"
        _set_status(folder, state, rounds=task.config.num_rounds, reason=reason)
    finally:
        folder.unlock()


def _set_status(folder: RunFolder, state: str, **facts: int | str) -> None:
    """Replace the status but keep its counters. An earlier reason is dropped."""
    kept = {k: v for k, v in folder.status().items() if k in ("rounds_done", "rounds", "env_steps")}
    folder.set_status(state, **{"rounds_done": 0, **kept, **facts})
