"""Where the environments of a suite run: one after another here, or as tasks of a Ray cluster.

Both run `run_task`, and all they share is the folder: what is finished is skipped, what was cut off is resumed from its
newest whole checkpoint, what failed is tried once more. So a worker, or the whole runner, may be lost at any moment.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from nextpolicy import extras
from nextpolicy.run.deadline import Deadline
from nextpolicy.run.folder import RunError, RunFolder, is_held
from nextpolicy.run.suite import (
    EVALUATION,
    SuiteError,
    Task,
    hold,
    is_evaluated,
    is_trained,
    open_folder,
    state_of,
)
from nextpolicy.runfiles import write_json

ATTEMPTS = 2  # a failed environment is tried once more
LOST_WORKERS = 3  # how often Ray starts a task again whose worker died
POLL_SECONDS = 0.5
REACH_SECONDS = 10.0
PART = "evaluation.part.json"  # in a run folder: the members evaluated so far

Tell = Callable[[Task, str], None]  # (task, what to show on its line)


class Outcome(NamedTuple):
    """done | stopped | failed (reason) | running (another process has it) | left (no time)."""

    state: str
    reason: str = ""


class Engine(Protocol):
    """Runs tasks; gives back how each ended, in order."""

    def run(self, tasks: Sequence[Task], until: float | None, tell: Tell) -> list[Outcome]: ...


def run_task(task: Task, deadline: Deadline, tell: Tell) -> Outcome:
    """One environment to its end, to the deadline, or to its second failure. Never raises for what a run can raise."""
    for attempt in range(1, ATTEMPTS + 1):
        if is_held(Path(task.path)):
            return Outcome("running", "another process has it")
        try:
            if not is_trained(task):
                _train(task, deadline, tell)
            if not is_trained(task):
                return Outcome("stopped", "time is up; the next call goes on from here")
            if not is_evaluated(task) and not _evaluate(task, deadline, tell):
                return Outcome("stopped", "trained, but no time left to evaluate; the next call does it")
            return Outcome("done")
        except Exception as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            _note_failure(task, reason)
            if attempt == ATTEMPTS or not deadline.allows_start():
                break
            tell(task, f"failed, trying once more: {reason}")
    return Outcome("failed", reason)


def _train(task: Task, stop: Callable[[], bool], tell: Tell) -> None:
    from nextpolicy.run import program_cache, progress, training

    tell(task, "starting")
    program_cache.enable_cache()
    job = training.make_job(task.config)
    job.check_population()
    folder, resume = open_folder(task)

    def show(first: int, block: dict[str, Any], observed: Any) -> None:
        done = first + block["accepted"].shape[1]
        mean = progress.facts_of(block, 0.0)["return"]
        returns = f"return {mean:.4g}" if math.isfinite(mean) else "no episode has ended yet"
        tell(task, f"round {done}/{task.config.num_rounds}, {returns}")

    try:
        training.run_job(job, folder, resume=resume, quiet=True, on_block=show, stop=stop)
    finally:
        folder.unlock()


def _evaluate(task: Task, deadline: Deadline, tell: Tell) -> bool:
    """The target policy over whole episodes, once; the score of a run is that of the policy that collects.

    Member by member, each kept on disk as soon as it is there, so that any number of short calls comes to an end;
    whether all of them are there.
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
            write_json(part, {"evaluate_episodes": task.evaluate_episodes, "rows": rows})
        if len(rows) < count:
            return False
        write_json(folder.path / EVALUATION, rows)
        part.unlink(missing_ok=True)
        if "reason" in folder.status():  # of an evaluation that failed before
            _set_status(folder, "finished")
        return True
    finally:
        folder.unlock()


def _rows_so_far(part: Path, task: Task) -> list[dict[str, Any]]:
    """What earlier calls have evaluated, from the first member on; nothing where that is damaged or differs."""
    try:
        kept = json.loads(part.read_text())
        rows = kept["rows"]
        told = [(i, member.variant, member.seed) for i, member in enumerate(task.config.members())][: len(rows)]
        same = [(row["member"], row["variant"], row["seed"]) for row in rows] == told
        return rows if same and kept["evaluate_episodes"] == task.evaluate_episodes else []
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return []


def _note_failure(task: Task, reason: str) -> None:
    """Training notes its own failures; what failed before it (an extra that is not there, say) or after it is not yet
    in the folder."""
    try:
        folder, _ = open_folder(task)
    except (OSError, RunError):
        return  # the folder itself is the fault, or another process has it; the outcome says so
    try:
        state = "finished" if is_trained(task) else "failed"
        _set_status(folder, state, rounds=task.config.num_rounds, reason=reason)
    finally:
        folder.unlock()


def _set_status(folder: RunFolder, state: str, **facts: Any) -> None:
    """The status with these facts changed; a reason only if it is among them."""
    kept = {k: v for k, v in folder.status().items() if k in ("rounds_done", "rounds", "env_steps")}
    folder.set_status(state, **{"rounds_done": 0, **kept, **facts})


class LocalEngine:
    """One environment after another in this process, each over all local devices."""

    def run(self, tasks: Sequence[Task], until: float | None, tell: Tell) -> list[Outcome]:
        deadline = Deadline(until)
        outcomes = []
        for task in tasks:
            if state_of(task).state != "done" and not deadline.allows_start():
                outcome = Outcome("left", "no time left; the next call begins it")
            else:
                outcome = run_task(task, deadline, tell)
            outcomes.append(outcome)
            tell(task, _words(outcome))
        return outcomes


class RayEngine:
    """Each environment a Ray task that asks for so many CPUs and GPUs; the folder must be seen by all workers."""

    def __init__(self, address: str | None = None, cpus: float = 1, gpus: float | None = None) -> None:
        try:
            import ray
        except ImportError:
            raise SuiteError(f"engine: ray is not installed; {extras.advice('ray')}") from None
        self.ray, self.address, self.cpus, self.gpus = ray, address, cpus, gpus

    def run(self, tasks: Sequence[Task], until: float | None, tell: Tell) -> list[Outcome]:
        ray = self.ray
        ours = not ray.is_initialized()
        if ours:
            _check_address(self.address or os.environ.get("RAY_ADDRESS"))
            try:
                ray.init(address=self.address, log_to_driver=False, logging_level="warning")
            except (ConnectionError, ValueError, RuntimeError) as error:
                reason = str(error).strip().splitlines()[0]
                raise SuiteError(f"engine: no Ray cluster at {self.address or 'this machine'} ({reason})") from None
        try:
            self._check_room()
            return self._run(tasks, until, tell)
        finally:
            if ours:
                ray.shutdown()

    def _check_room(self) -> None:
        """A task no node can hold would wait for ever."""
        have = self.ray.cluster_resources()
        if self.gpus is None:
            self.gpus = 1 if have.get("GPU", 0) >= 1 else 0
        for name, wanted in (("CPU", self.cpus), ("GPU", self.gpus)):
            if wanted > have.get(name, 0):
                raise SuiteError(f"engine: got {wanted:g} {name} for each task, the cluster has {have.get(name, 0):g}")

    def _run(self, tasks: Sequence[Task], until: float | None, tell: Tell) -> list[Outcome]:
        ray = self.ray
        remote = ray.remote(num_cpus=self.cpus, num_gpus=self.gpus, max_retries=LOST_WORKERS)(_on_worker)
        outcomes: dict[str, Outcome] = {}
        waiting: dict[Any, Task] = {}
        for task in tasks:
            if state_of(task).state == "done":
                outcomes[task.env] = Outcome("done")
                tell(task, "done")
            else:  # workers may have another working folder than this process
                theirs = replace(task, path=os.path.abspath(task.path))
                waiting[remote.remote(theirs, until, max(1, int(self.cpus)))] = task
        while waiting:
            ready, _ = ray.wait(list(waiting), timeout=POLL_SECONDS)
            for reference in ready:
                task = waiting.pop(reference)
                outcomes[task.env] = _result(ray, reference)
                tell(task, _words(outcomes[task.env]))
            for task in waiting.values():
                state = state_of(task)
                if state.state == "running":
                    tell(task, f"round {state.rounds_done}/{state.rounds}")
        return [outcomes[task.env] for task in tasks]


def _check_address(address: str | None) -> None:
    """Ray itself tries for ten minutes to reach a cluster that is not there."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():  # none given, `auto` or `local`
        return
    try:
        socket.create_connection((host, int(port)), timeout=REACH_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise SuiteError(f"engine: no Ray cluster at {address} ({error})") from None


def _on_worker(task: Task, until: float | None, cpus: int) -> tuple[str, str]:
    """On a worker: as many CPU devices as the task was given, then the same as here."""
    import jax

    with contextlib.suppress(RuntimeError):  # a worker that has run a task before keeps its devices
        jax.config.update("jax_num_cpu_devices", cpus)
    deadline = Deadline(until)
    if state_of(task).state != "done" and not deadline.allows_start():
        return "left", "no time left; the next call begins it"
    return tuple(run_task(task, deadline, lambda task, text: None))


def _result(ray: Any, reference: Any) -> Outcome:
    try:
        return Outcome(*ray.get(reference))
    except ray.exceptions.RayError as error:
        return Outcome("failed", f"its worker was lost {LOST_WORKERS + 1} times ({type(error).__name__})")


def _words(outcome: Outcome) -> str:
    return outcome.state if not outcome.reason else f"{outcome.state}: {outcome.reason}"


def make(name: str, *, address: str | None = None, cpus: float = 1, gpus: float | None = None) -> Engine:
    """The engine of this name."""
    for what, amount in (("cpus", cpus), ("gpus", gpus)):
        if amount is not None and not 0 <= amount <= 100_000:
            raise SuiteError(f"{what}: got {amount}, takes a number of at least 0 and at most 100000")
    if name == "local":
        return LocalEngine()
    if name == "ray":
        return RayEngine(address, cpus, gpus)
    raise SuiteError(f"engine: got {name!r}, takes local or ray")
