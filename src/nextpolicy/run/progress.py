"""Progress display: a bar on a terminal, plain lines elsewhere, nothing if quiet."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from nextpolicy.settings import printable


class Standing(NamedTuple):
    """How one algorithm's members did in a block."""

    algo: str
    mean_return: float  # of the episodes that ended; NaN if there are none
    accepted: float  # fraction of the rounds that updated the target


class Speed(NamedTuple):
    """The speed of the last block, all members together."""

    steps_per_second: float
    rounds_per_second: float

    def left(self, rounds: int) -> str:
        """The time that this many rounds take: `40 s left`."""
        return f"{duration(rounds / self.rounds_per_second)} left"


class Progress(Protocol):
    """A progress display. `update` is called after every block."""

    def update(self, rounds_done: int, standings: Sequence[Standing], speed: Speed) -> None: ...

    def say(self, message: str) -> None: ...

    def close(self) -> None: ...


def standings(metrics: dict[str, np.ndarray], algos: Sequence[str]) -> list[Standing]:
    """One standing for each algorithm, from metrics [M, rounds]; `algos` [M] is the algorithm of each member."""
    found = []
    for algo in dict.fromkeys(algos):
        mine = np.asarray([each == algo for each in algos])
        returns, episodes = metrics["episode_return"][mine], metrics["episodes"][mine]
        total = np.nansum(np.where(episodes > 0, returns * episodes, 0.0))
        mean = float(total / episodes.sum()) if episodes.sum() else float("nan")
        found.append(Standing(algo, mean, float(metrics["accepted"][mine].mean())))
    return found


def described(standings: Sequence[Standing], *, accepted: bool = True) -> str:
    """`return 21.3, accepted 40%`, or `return ppo 21.3 (accepted 100%), sv-dynamic ...` if there are several."""
    if len(standings) == 1:
        only = standings[0]
        return f"return {only.mean_return:.4g}" + f", accepted {only.accepted:.0%}" * accepted
    each = (f"{s.algo} {s.mean_return:.4g}" + f" (accepted {s.accepted:.0%})" * accepted for s in standings)
    return f"return {', '.join(each)}"


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


def duration(seconds: float) -> str:
    """`40 s`, `12 min` or `3.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"


class Quiet:
    """Prints messages but no progress."""

    def update(self, rounds_done: int, standings: Sequence[Standing], speed: Speed) -> None:
        return

    def say(self, message: str) -> None:
        print(printable(message), file=sys.stderr, flush=True)

    def close(self) -> None:
        return


class Lines(Quiet):
    """Prints a line for the first block, for the last, and every ten seconds."""

    def __init__(self, total: int, title: str, every: float = 10.0) -> None:
        self.total, self.title, self.every = total, title, every
        self.last = -math.inf

    def update(self, rounds_done: int, standings: Sequence[Standing], speed: Speed) -> None:
        now = time.monotonic()
        if now - self.last < self.every and rounds_done < self.total:
            return
        self.last = now
        print(
            f"{self.title}: round {rounds_done}/{self.total}, {human(speed.steps_per_second)} steps/s, "
            f"{described(standings)}, {speed.left(self.total - rounds_done)}",
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
            console=Console(stderr=True),
        )
        self.bar.start()
        self.task = self.bar.add_task(title, total=total, facts="compiling")

    def update(self, rounds_done: int, standings: Sequence[Standing], speed: Speed) -> None:
        left = speed.left(int(self.bar.tasks[self.task].total) - rounds_done)
        text = f"{human(speed.steps_per_second)} steps/s  {described(standings)}  {left}"
        self.bar.update(self.task, completed=rounds_done, facts=text)

    def say(self, message: str) -> None:
        self.bar.console.print(printable(message), highlight=False, markup=False)

    def close(self) -> None:
        self.bar.stop()
