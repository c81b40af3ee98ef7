"""Progress display: a bar on a terminal, plain lines elsewhere, nothing if quiet."""

from __future__ import annotations

import sys
import time
from typing import Any, Protocol

import numpy as np


class Progress(Protocol):
    """A progress display. `update` is called after every block."""

    def update(self, rounds_done: int, facts: dict[str, float]) -> None: ...

    def say(self, message: str) -> None: ...

    def close(self) -> None: ...


def facts_of(metrics: dict[str, np.ndarray], steps_per_second: float) -> dict[str, float]:
    """Mean return of the block's finished episodes, fraction of accepted updates, and speed."""
    episodes = metrics["episodes"]
    total = np.nansum(np.where(episodes > 0, metrics["episode_return"] * episodes, 0.0))
    mean = float(total / episodes.sum()) if episodes.sum() else float("nan")
    return {"return": mean, "accepted": float(metrics["accepted"].mean()), "steps_per_second": steps_per_second}


def make(total_rounds: int, title: str, quiet: bool) -> Progress:
    """Choose the display: none if quiet, a bar on a terminal, else lines."""
    if quiet:
        return Quiet()
    return Bar(total_rounds, title) if sys.stderr.isatty() else Lines(total_rounds, title)


def human(number: float) -> str:
    """Format a number with a unit: 12.3k, 4.5M."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= limit:
            return f"{number / limit:.3g}{unit}"
    return f"{number:.3g}"


class Quiet:
    """Prints messages but no progress."""

    def update(self, rounds_done: int, facts: dict[str, float]) -> None:
        return

    def say(self, message: str) -> None:
        print(message, file=sys.stderr, flush=True)

    def close(self) -> None:
        return


class Lines(Quiet):
    """Prints a line for the first block, for the last, and every ten seconds."""

    def __init__(self, total: int, title: str, every: float = 10.0) -> None:
        self.total, self.title, self.every = total, title, every
        self.started, self.last = time.monotonic(), 0.0
        self.first_rounds: int | None = None

    def update(self, rounds_done: int, facts: dict[str, float]) -> None:
        now = time.monotonic()
        if self.first_rounds is None:
            self.first_rounds, self.started = rounds_done, now
        if self.last and now - self.last < self.every and rounds_done < self.total:
            return
        self.last = now
        rate = (rounds_done - self.first_rounds) / max(now - self.started, 1e-9)
        left = f"{(self.total - rounds_done) / rate:.0f}s left" if rate > 0 else "time left unknown"
        print(
            f"{self.title}: round {rounds_done}/{self.total}, {human(facts['steps_per_second'])} steps/s, "
            f"return {facts['return']:.4g}, accepted {facts['accepted']:.0%}, {left}",
            file=sys.stderr,
            flush=True,
        )


class Bar(Quiet):
    """A rich progress bar."""

    def __init__(self, total: int, title: str) -> None:
        from rich import progress
        from rich.console import Console

        self.bar: Any = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.TextColumn("round {task.completed}/{task.total}"),
            progress.TextColumn("{task.fields[facts]}"),
            progress.TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self.bar.start()
        self.task = self.bar.add_task(title, total=total, facts="compiling")

    def update(self, rounds_done: int, facts: dict[str, float]) -> None:
        speed = f"{human(facts['steps_per_second'])} steps/s"
        text = f"{speed}  return {facts['return']:.4g}  accepted {facts['accepted']:.0%}"
        self.bar.update(self.task, completed=rounds_done, facts=text)

    def say(self, message: str) -> None:
        self.bar.console.print(message, highlight=False, markup=False)

    def close(self) -> None:
        self.bar.stop()
