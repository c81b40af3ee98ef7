"""What every input must do: end in time and in little memory, with exit code 0, or 2 and one line; harm nothing."""

from __future__ import annotations

import contextlib
import io
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import pytest

from nextpolicy.experiments import engines
from nextpolicy.report import html
from nextpolicy.run import api, job, processes, run

SECONDS = 20.0  # of one input; most take milliseconds, but the machine may be busy
MOST_ROUNDS = 10_000  # that one compiled call may hold the metrics of
MOST_BYTES = 1 << 30  # that one input may allocate


class WouldRun(BaseException):
    """Everything was understood, and the work itself would begin now. Not an Exception: nothing may swallow it."""


class TooLong(BaseException):
    """The time of one input is up."""


def _would_run(*_: Any, **__: Any) -> Any:
    raise WouldRun


def _would_train(job: Any, *_: Any, **__: Any) -> Any:
    """A job that was let through must be one that can be run."""
    odd = [name for name, value in job.config.flat().items() if value != value]
    assert not odd, f"would train with {odd[0]} = nan"
    job.program()
    raise WouldRun


def _would_compile(*_: Any, capacity: int, **__: Any) -> Any:
    assert capacity <= MOST_ROUNDS, "would make room for the metrics of as many rounds as were asked for"
    raise WouldRun


@contextlib.contextmanager
def no_work() -> Iterator[None]:
    """Parsing, configuration, validation and messages as they are; training, evaluating and drawing only pretended."""
    from nextpolicy.bench import comparison
    from nextpolicy.report import watch, write
    from nextpolicy.run import video
    from nextpolicy.studies.four_rooms import study as four_rooms_study
    from nextpolicy.studies.theory import study as theory_study

    work = [
        (run, "evaluator"),
        (video, "record"),
        (comparison, "_prepared"),
        (four_rooms_study, "run"),
        (theory_study, "run"),
        (write, "write_own"),
        (watch.ThreadingHTTPServer, "serve_forever"),
        (jax.distributed, "initialize"),
    ]
    done = lambda *_: engines.Outcome("done")  # noqa: E731
    with pytest.MonkeyPatch.context() as patch:
        for where, name in work:
            patch.setattr(where, name, _would_run)
        patch.setattr(api, "run_job", _would_train)
        for name in ("build_program", "build_host_program"):
            patch.setattr(job, name, _would_compile)
        patch.setattr(engines, "run_task", done)
        patch.setattr(engines.RayEngine, "run", lambda self, tasks, *_: [done() for _ in tasks])
        patch.setattr(html, "page", lambda *_, **__: "")
        patch.setattr(processes, "use_all_cores", lambda: None)
        yield


@contextlib.contextmanager
def _limits() -> Iterator[None]:
    """A time limit, and as little memory to spare as makes a needless allocation an error instead of a dead machine."""

    def stop(*_: Any) -> None:
        raise TooLong(f"still running after {SECONDS:g} s")

    words = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    used = next(int(w[1]) * 1024 for w in words if w[0] == "VmData:")
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    before = signal.signal(signal.SIGALRM, stop)
    resource.setrlimit(resource.RLIMIT_DATA, (used + MOST_BYTES, hard))
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
        signal.signal(signal.SIGALRM, before)


def fault_of(call: Callable[[], int]) -> str | None:
    """What is wrong with how this input was answered; None if nothing is."""
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), _limits():
            code: Any = call()
    except WouldRun:
        code = 0
    except SystemExit as end:  # argparse after --help
        code = end.code or 0
    except BaseException as error:
        return f"{type(error).__name__} escaped: {' '.join(str(error).split())[:200]}"
    said = err.getvalue()
    if "Traceback" in said:
        return f"a traceback on stderr: {said[-200:]!r}"
    if code not in (0, 2):
        return f"exit code {code!r}"
    if code == 2 and (len(said.splitlines()) != 1 or not said.startswith("nextpolicy: ")):
        return f"exit code 2 with {len(said.splitlines())} lines: {said[:200]!r}"
    return None


def state_of(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of every file in a folder; a lock is touched by whoever looks at it."""
    files = (p for p in folder.rglob("*") if p.is_file() and p.name != ".lock")
    return {str(p.relative_to(folder)): (p.stat().st_size, p.stat().st_mtime_ns) for p in files}


def report(faults: list[tuple[str, str]], count: int) -> str:
    """Faults by kind, each with one input that has it."""
    kinds: dict[str, list[str]] = {}
    for fault, given in faults:
        kinds.setdefault(fault[:60], []).append(f"{fault}\n      {given[:300]}")
    lines = [f"  {len(each):>4} x {each[0]}" for each in sorted(kinds.values(), key=len, reverse=True)]
    return "\n".join([f"{len(faults)} of {count} inputs are answered wrongly:", *lines])
