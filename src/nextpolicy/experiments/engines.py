"""Engines that run the tasks of a suite: one after another in this process, or on a Ray cluster.

Both call `run_task`. All state is in the run folders, so a worker or the whole engine may be killed at any time.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from nextpolicy import extras
from nextpolicy.experiments.deadline import Deadline
from nextpolicy.experiments.execution import Outcome, Tell, run_task
from nextpolicy.experiments.suite import SuiteError
from nextpolicy.experiments.task import Task, state_of

if TYPE_CHECKING:
    from ray import ObjectRef

LOST_WORKERS = 3  # how often Ray restarts a task whose worker died
POLL_SECONDS = 0.5
REACH_SECONDS = 10.0
MAX_DEVICES = 100_000  # CPUs or GPUs per task


class Engine(Protocol):
    """Runs tasks until they are done or `until` (Unix time) is near; returns their outcomes in the same order."""

    def run(self, tasks: Sequence[Task], until: float | None, tell: Tell) -> list[Outcome]: ...


class LocalEngine:
    """One task after another in this process, each on all local devices."""

    def run(self, tasks: Sequence[Task], until: float | None, tell: Tell) -> list[Outcome]:
        deadline = Deadline(until)
        outcomes = []
        for task in tasks:
            outcomes.append(_run_in_time(task, deadline, tell))
            tell(task, str(outcomes[-1]))
        return outcomes


def _run_in_time(task: Task, deadline: Deadline, tell: Tell) -> Outcome:
    """Run a task unless it would not reach its first checkpoint in time."""
    if state_of(task).state != "done" and not deadline.allows_start():
        return Outcome("left", "no time left; the next call starts it")
    return run_task(task, deadline, tell)


class RayEngine:
    """Each task is a Ray task with its own CPUs and GPUs. All workers must see the folder under the same path."""

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
        """Raise if the cluster is too small: otherwise Ray would wait for resources indefinitely."""
        have = self.ray.cluster_resources()
        if self.gpus is None:
            self.gpus = 1 if have.get("GPU", 0) >= 1 else 0
        for name, wanted in (("CPU", self.cpus), ("GPU", self.gpus)):
            if wanted > have.get(name, 0):
                raise SuiteError(f"engine: expected at most {have.get(name, 0):g} {name}s per task, got {wanted:g}")

    def _run(self, tasks: Sequence[Task], until: float | None, tell: Tell) -> list[Outcome]:
        ray = self.ray
        remote = ray.remote(num_cpus=self.cpus, num_gpus=self.gpus, max_retries=LOST_WORKERS)(_on_worker)
        outcomes: dict[str, Outcome] = {}
        waiting: dict[ObjectRef, Task] = {}
        for task in tasks:
            if state_of(task).state == "done":
                outcomes[task.env] = Outcome("done")
                tell(task, "done")
            else:  # a worker may have a different working directory
                on_worker = replace(task, path=os.path.abspath(task.path))
                waiting[remote.remote(on_worker, until, max(1, int(self.cpus)))] = task
        while waiting:
            ready, _ = ray.wait(list(waiting), timeout=POLL_SECONDS)
            for reference in ready:
                task = waiting.pop(reference)
                outcomes[task.env] = self._result(reference)
                tell(task, str(outcomes[task.env]))
            for task in waiting.values():
                state = state_of(task)
                if state.state == "running":
                    tell(task, f"round {state.rounds_done}/{state.rounds}")
        return [outcomes[task.env] for task in tasks]

    def _result(self, reference: ObjectRef) -> Outcome:
        try:
            return Outcome(*self.ray.get(reference))
        except self.ray.exceptions.RayError as error:
            return Outcome("failed", f"its worker was lost {LOST_WORKERS + 1} times ({type(error).__name__})")


def _check_address(address: str | None) -> None:
    """Raise if nothing listens at the address: Ray itself would retry for ten minutes."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():  # none given, `auto` or `local`
        return
    try:
        socket.create_connection((host, int(port)), timeout=REACH_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise SuiteError(f"engine: no Ray cluster at {address} ({error})") from None


def _on_worker(task: Task, until: float | None, cpus: int) -> tuple[str, str]:
    """Run a task on a Ray worker with `cpus` CPU devices; returns the fields of its `Outcome` as a plain tuple."""
    import jax

    with contextlib.suppress(RuntimeError):  # a worker that has run a task before keeps its devices
        jax.config.update("jax_num_cpu_devices", cpus)
    outcome = _run_in_time(task, Deadline(until), lambda task, text: None)
    return outcome.state, outcome.reason


def make(name: str, *, address: str | None = None, cpus: float = 1, gpus: float | None = None) -> Engine:
    """Create the engine `local` or `ray`. The other arguments apply to Ray only."""
    for what, amount in (("cpus", cpus), ("gpus", gpus)):
        if amount is not None and not 0 <= amount <= MAX_DEVICES:
            raise SuiteError(f"{what}: expected a number from 0 to {MAX_DEVICES}, got {amount}")
    if name == "local":
        return LocalEngine()
    if name == "ray":
        return RayEngine(address, cpus, gpus)
    raise SuiteError(f"engine: expected local or ray, got {name!r}")
