"""`nextpolicy suite list|run|status`: what there is, run it, how far it is."""

from __future__ import annotations

import re
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nextpolicy.config import nearest
from nextpolicy.run import suite as suites
from nextpolicy.run.suite import State, Suite, SuiteError, Task, state_of

COMMANDS = ("list", "run", "status")
MOST_SECONDS = 366 * 24 * 3600  # of a budget


def main(arguments: Sequence[str], make_parser: Callable[..., Any], parse: Callable[..., Any]) -> None:
    """Run one of the three; a suite that did not come to its end raises, so that scripts notice."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"usage: nextpolicy suite {{{','.join(COMMANDS)}}} ...   (--help after the word explains it)")
        return
    word, rest = arguments[0], arguments[1:]
    if word not in COMMANDS:
        raise SuiteError(f"unknown word {word!r}{nearest(word, list(COMMANDS)) or f'; takes one of {COMMANDS}'}")
    {"list": _list, "run": _run, "status": _status}[word](rest, make_parser, parse)


def _list(arguments: Sequence[str], make_parser: Callable[..., Any], parse: Callable[..., Any]) -> None:
    parser = make_parser(prog="nextpolicy suite list", description="List suites, or the environments of one.")
    parser.add_argument("name", nargs="?", help="A suite, or a TOML file.")
    options = parse(parser, arguments)
    if options.name is not None:
        print("\n".join(suites.load(options.name).environments))
        return
    for suite in suites.SUITES.values():
        members = len(suite.config(suite.environments[0]).members())
        print(f"{suite.name:<15} {len(suite.environments):>2} environments x {members:>2} members  {suite.about}")


def _run(arguments: Sequence[str], make_parser: Callable[..., Any], parse: Callable[..., Any]) -> None:
    parser = make_parser(
        prog="nextpolicy suite run",
        description="Run a suite: the finished is skipped, what was cut off goes on, what failed is tried once more.",
    )
    _common(parser)
    parser.add_argument("--engine", default="local", help="local (one environment after another) or ray.")
    parser.add_argument("--budget", help="Stop at a checkpoint within this time, e.g. 25m; call again to go on.")
    parser.add_argument("--only", action="append", default=[], metavar="ENV", help="Only this one; may be repeated.")
    parser.add_argument("--quiet", action="store_true", help="Say only what failed.")
    words = "Module that an environment id of a TOML file may import, which runs its code; may be repeated."
    parser.add_argument("--trust-module", action="append", default=[], metavar="MODULE", help=words)
    parser.add_argument("--ray-address", help="Address of a Ray cluster; default: RAY_ADDRESS, or one started here.")
    parser.add_argument("--cpus", type=float, default=1, help="ray: CPUs of each environment.")
    parser.add_argument("--gpus", type=float, help="ray: GPUs of each environment; default 1 if there are any.")
    options = parse(parser, arguments)
    until = None if options.budget is None else time.time() + seconds(options.budget)
    suite = suites.load(options.name)
    tasks = _tasks(suite, options, tuple(options.only))
    from nextpolicy.run import api, engines, interrupt

    for task in tasks:
        api.check_trust(task.config, options.trust_module)

    engine = engines.make(options.engine, address=options.ray_address, cpus=options.cpus, gpus=options.gpus)
    suites.check_environments(suite)
    with _display(tasks, options.quiet) as display:
        try:
            outcomes = engine.run(tasks, until, display.tell)
        except KeyboardInterrupt as stop:
            signum = getattr(stop, "signum", signal.SIGINT)
            raise interrupt.Stopped("suite stopped; the same command continues it", signum) from None
    _conclude(tasks, outcomes, options)


def _conclude(tasks: list[Task], outcomes: Sequence[Any], options: Any) -> None:
    failed = [(t, o) for t, o in zip(tasks, outcomes, strict=True) if o.state == "failed"]
    done = sum(o.state == "done" for o in outcomes)
    if failed:
        task, outcome = failed[0]
        raise SuiteError(
            f"suite: {len(failed)} of {len(tasks)} environments failed, {done} are done; {task.env}: {outcome.reason}"
        )
    if not options.quiet:
        more = "" if done == len(tasks) else "; the same command goes on"
        print(f"{done} of {len(tasks)} environments done in {_out(options)}{more}")


def _status(arguments: Sequence[str], make_parser: Callable[..., Any], parse: Callable[..., Any]) -> None:
    parser = make_parser(prog="nextpolicy suite status", description="How far a suite is, from its folder.")
    _common(parser)
    options = parse(parser, arguments)
    print(status_table(_tasks(suites.load(options.name), options)))


def _common(parser: Any) -> None:
    parser.add_argument("name", help="A suite (`nextpolicy suite list`), or a TOML file.")
    parser.add_argument("--out", help="Folder of the suite; default runs/<name>.")
    parser.add_argument("--seeds", type=int, help="Seeds of each variant, instead of the suite's own.")


def _out(options: Any) -> Path:
    return Path(options.out or Path("runs") / suites.load(options.name).name)


def _tasks(suite: Suite, options: Any, only: tuple[str, ...] = ()) -> list[Task]:
    out = _out(options)
    if out.exists() and not out.is_dir():
        raise SuiteError(f"out: {out} is a file, takes a folder")
    return suites.tasks(suite, out, seeds=options.seeds, only=only)


def seconds(text: str) -> float:
    """`25m`, `90s`, `1h30m`, `1.5h` in seconds."""
    number = r"(\d+(?:\.\d+)?)"
    parts = re.fullmatch(f"(?:{number}h)?(?:{number}m)?(?:{number}s)?", text)
    total = sum(float(n) * unit for n, unit in zip(parts.groups(), (3600, 60, 1), strict=True) if n) if parts else 0.0
    if not 0 < total < MOST_SECONDS:
        raise SuiteError(f"budget: got {text!r}, takes a time such as 25m, 90s or 1h30m")
    return total


def status_table(tasks: list[Task]) -> str:
    """One line per environment and one for all of them."""
    states = [state_of(task) for task in tasks]
    rates = [_rate(task) for task in tasks]
    known = [r for r in rates if r is not None]
    usual = sum(known) / len(known) if known else None
    rows = [("environment", "state", "rounds", "time left", "reason")]
    total = 0.0
    for task, state, rate in zip(tasks, states, rates, strict=True):
        rate = rate or usual
        steps = (state.rounds - state.rounds_done) * task.config.batch_size * len(task.config.members())
        left = 0.0 if state.state == "done" else steps / rate if rate else float("nan")
        total += left
        rows.append((task.env, state.state, f"{state.rounds_done}/{state.rounds}", _duration(left), state.reason))
    done = sum(s.state == "done" for s in states)
    rows.append(("all", f"{done} of {len(tasks)} done", "", _duration(total), ""))
    widths = [max(len(r[i]) for r in rows) for i in range(4)]
    return "\n".join("  ".join([*(c.ljust(w) for c, w in zip(r, widths)), r[4]]).rstrip() for r in rows)


def _rate(task: Task) -> float | None:
    """Steps per second over all members, from the newest block."""
    import pandas as pd

    from nextpolicy import runfiles

    parts = runfiles.parts(Path(task.path) / "metrics")
    try:
        return float(pd.read_parquet(parts[-1][2], columns=["steps_per_second"]).iloc[0, 0]) if parts else None
    except (OSError, ValueError, KeyError):
        return None


def _duration(left: float) -> str:
    if left != left:
        return "unknown"
    if left == 0:
        return "-"
    return f"{left / 3600:.1f} h" if left >= 3600 else f"{left / 60:.0f} min" if left >= 60 else f"{left:.0f} s"


def _display(tasks: list[Task], quiet: bool) -> Any:
    if quiet:
        return Silent()
    return Bars(tasks) if sys.stderr.isatty() else Lines(tasks)


class Silent:
    """Failures only."""

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *details: Any) -> None:
        return

    def tell(self, task: Task, text: str) -> None:
        if text.startswith("failed"):
            print(f"{task.env}: {text}", file=sys.stderr, flush=True)


class Lines(Silent):
    """Plain text: what changes, and every half minute a sign of life."""

    every = 30.0

    def __init__(self, tasks: list[Task]) -> None:
        self.last: dict[str, float] = {}  # when a round was last told
        self.width = max(len(task.env) for task in tasks)

    def tell(self, task: Task, text: str) -> None:
        if text.startswith("round"):
            now = time.monotonic()
            if now - self.last.get(task.env, now - self.every) < self.every:
                return
            self.last[task.env] = now
        print(f"{task.env:<{self.width}}  {text}", file=sys.stderr, flush=True)


class Bars(Silent):
    """A terminal: one bar per environment."""

    def __init__(self, tasks: list[Task]) -> None:
        from rich import progress
        from rich.console import Console

        self.bars = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(bar_width=24),
            progress.TextColumn("{task.fields[text]}", markup=False),
            console=Console(stderr=True),
        )
        states: list[State] = [state_of(task) for task in tasks]
        self.rows = {
            task.env: self.bars.add_task(task.env, total=s.rounds, completed=s.rounds_done, text=s.state)
            for task, s in zip(tasks, states, strict=True)
        }

    def __enter__(self) -> Any:
        self.bars.start()
        return self

    def __exit__(self, *details: Any) -> None:
        self.bars.stop()

    def tell(self, task: Task, text: str) -> None:
        done = re.match(r"round (\d+)/", text)
        completed = int(done[1]) if done else state_of(task).rounds_done
        self.bars.update(self.rows[task.env], completed=completed, text=text)
