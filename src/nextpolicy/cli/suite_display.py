"""Display of a suite: its status as a table, and its progress as bars on a terminal or as lines elsewhere."""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import pandas as pd
from rich import progress
from rich.console import Console

from nextpolicy import runfiles
from nextpolicy.experiments.task import Task, state_of
from nextpolicy.run.progress import duration


def status_table(tasks: Sequence[Task]) -> str:
    """One line per environment, then one for all of them."""
    states = [state_of(task) for task in tasks]
    rates = [_rate(task) for task in tasks]
    known = [r for r in rates if r is not None]
    mean_rate = sum(known) / len(known) if known else None
    rows = [("environment", "state", "rounds", "time left", "reason")]
    total = 0.0
    for task, state, rate in zip(tasks, states, rates, strict=True):
        rate = rate or mean_rate  # mean of the others if it has not started
        steps = (state.rounds - state.rounds_done) * task.config.batch_size * len(task.config.members())
        left = 0.0 if state.state == "done" else steps / rate if rate else math.nan
        total += left
        rows.append((task.env, state.state, f"{state.rounds_done}/{state.rounds}", time_left(left), state.reason))
    done = sum(s.state == "done" for s in states)
    rows.append(("all", f"{done} of {len(tasks)} done", "", time_left(total), ""))
    widths = [max(len(r[i]) for r in rows) for i in range(4)]
    return "\n".join("  ".join([*(c.ljust(w) for c, w in zip(r, widths)), r[4]]).rstrip() for r in rows)


def _rate(task: Task) -> float | None:
    """Steps per second over all members, from the newest block."""
    parts = runfiles.parts(Path(task.path) / "metrics")
    try:
        return float(pd.read_parquet(parts[-1][2], columns=["steps_per_second"]).iloc[0, 0]) if parts else None
    except (OSError, ValueError, KeyError):
        return None


def time_left(seconds: float) -> str:
    """A duration; `-` for zero, `unknown` for NaN."""
    if math.isnan(seconds):
        return "unknown"
    return duration(seconds) if seconds else "-"


class Silent:
    """Shows only failures."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        return

    def tell(self, task: Task, text: str) -> None:
        if text.startswith("failed"):
            print(f"{task.env}: {text}", file=sys.stderr, flush=True)


class Lines(Silent):
    """Prints every change of state, and the rounds of a task at most twice a minute."""

    every = 30.0

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.last: dict[str, float] = {}  # when a round was last shown
        self.width = max(len(task.env) for task in tasks)

    def tell(self, task: Task, text: str) -> None:
        if text.startswith("round"):
            now = time.monotonic()
            if now - self.last.get(task.env, now - self.every) < self.every:
                return
            self.last[task.env] = now
        print(f"{task.env:<{self.width}}  {text}", file=sys.stderr, flush=True)


class Bars(Silent):
    """One progress bar per environment, for a terminal."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.bars = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(bar_width=24),
            progress.TextColumn("{task.fields[text]}", markup=False),
            console=Console(stderr=True),
        )
        states = [state_of(task) for task in tasks]
        self.rows = {
            task.env: self.bars.add_task(task.env, total=s.rounds, completed=s.rounds_done, text=s.state)
            for task, s in zip(tasks, states, strict=True)
        }

    def __enter__(self) -> Self:
        self.bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.bars.stop()

    def tell(self, task: Task, text: str) -> None:
        done = re.match(r"round (\d+)/", text)
        completed = int(done[1]) if done else state_of(task).rounds_done
        self.bars.update(self.rows[task.env], completed=completed, text=text)


def display(tasks: Sequence[Task], quiet: bool) -> Silent:
    """Choose the display: silent if quiet, bars on a terminal, else lines."""
    if quiet:
        return Silent()
    return Bars(tasks) if sys.stderr.isatty() else Lines(tasks)
