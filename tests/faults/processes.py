"""Processes that are really killed: `kill -9` while a chosen function runs, then going on as a user would.

    python -m tests.faults.processes WORK FOLDER MODULE FUNCTION CALL SECONDS

does the work (by name) in the folder and kills itself with SIGKILL, SECONDS into the CALL-th call of `MODULE.FUNCTION`.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from tests.run.helpers import environment

from .interruptions import Whole, recovered
from .outcomes import LOST, Result
from .works import WORKS, fresh


class Moment(NamedTuple):
    """When a process is killed: `after` seconds into the `call`-th call of `module.function`."""

    name: str
    work: str
    module: str
    function: str
    call: int = 1
    after: float = 0.0


MOMENTS = (
    Moment("before compiling", "training", "jax.stages", "Lowered.compile"),
    Moment("while compiling", "training", "jax.stages", "Lowered.compile", 2, 0.02),
    Moment("between a block and its metrics", "training", "nextpolicy.run.metrics", "write_part", 2),
    Moment("while a checkpoint is written", "training", "nextpolicy.run.tensor_file", "_chunks", 2),
    Moment("before a checkpoint is read back", "training", "nextpolicy.run.tensor_file", "_read_back", 2),
    Moment("before an evaluation", "training with evaluations", "nextpolicy.run.callbacks", "EvaluateEvery._row"),
    Moment("in an evaluation", "training with evaluations", "nextpolicy.run.callbacks", "EvaluateEvery._row", 2, 0.01),
    Moment("while a resume recomputes", "resuming a damaged run", "nextpolicy.run.metrics", "write_part", 1),
    Moment("while an extension starts", "extending a run", "jax.stages", "Lowered.compile"),
    Moment("before a suite's second task", "a suite", "nextpolicy.experiments.engines", "run_task", 2),
    Moment("in a suite's evaluation", "a suite", "nextpolicy.experiments.execution", "write_manifest", 2),
    Moment("while figures are drawn", "a report", "nextpolicy.report.write", "_files", 1, 0.3),
    Moment("between a report's files", "a report", "os", "replace", 3),
    Moment("between an export's files", "an export", "os", "replace", 2),
    Moment("between a small copy's files", "a small copy", "shutil", "copyfile", 2),
)


def kill_in(module: str, function: str, call: int, after: float) -> None:
    """From now on, the `call`-th call of the function kills this process."""
    owner: Any = importlib.import_module(module)
    *path, last = function.split(".")
    owner = functools.reduce(getattr, path, owner)
    original, calls = getattr(owner, last), itertools.count(1)

    def kill() -> None:
        time.sleep(after)
        os.kill(os.getpid(), signal.SIGKILL)

    def deadly(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == call:
            if after:
                threading.Thread(target=kill, daemon=True).start()
            else:
                kill()
        return original(*args, **kwargs)

    setattr(owner, last, deadly)


def killed(moment: Moment, whole: Whole, place: Path) -> Result:
    """Kill a process that does the work, then go on in this one."""
    fresh(whole.start, place)
    words = (moment.work, str(place), moment.module, moment.function, str(moment.call), str(moment.after))
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.processes", *words],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    kind = "kill -9 of a process"
    if done.returncode != -signal.SIGKILL:
        return Result(kind, moment.name, LOST, f"it ended by itself with {done.returncode}: {done.stderr[-500:]}")
    return recovered(kind, whole, moment.name, place)


def kills(whole: Whole, root: Path) -> Iterator[Result]:
    """All moments of this work."""
    for number, moment in enumerate(MOMENTS):
        if moment.work == whole.work.name:
            yield killed(moment, whole, root / f"killed-{number}")


def main() -> None:
    name, place, module, function, call, after = sys.argv[1:]
    kill_in(module, function, int(call), float(after))
    next(work for work in WORKS if work.name == name).begin(Path(place))


if __name__ == "__main__":
    main()
