"""Curves thinned for the page: every bucket of rounds keeps its lowest and its highest point, so no peak is lost."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from nextpolicy.report.runs import Run

Points = tuple[np.ndarray, np.ndarray]  # x (rounds) and y


def _returns(frame: pd.DataFrame) -> Points:
    return frame["round"].to_numpy(), frame["episode_return"].to_numpy(np.float64)


def _diff(frame: pd.DataFrame) -> Points:
    """Nothing for members without a threshold, whose diff is recorded as 0."""
    rounds, diff = frame["round"].to_numpy(), frame["diff_over_threshold"].to_numpy(np.float64)
    return (rounds, np.where(diff > 0, diff, np.nan)) if np.any(diff > 0) else (rounds[:0], diff[:0])


def _lifespan(frame: pd.DataFrame) -> Points:
    ended = frame[frame["accepted"].to_numpy(bool)]
    return ended["round"].to_numpy(), ended["rounds_held"].to_numpy(np.float64)


def _updates(frame: pd.DataFrame) -> Points:
    return frame["round"].to_numpy(), np.cumsum(frame["accepted"].to_numpy(bool)).astype(np.float64)


@dataclass(frozen=True)
class Panel:
    """One chart of each environment."""

    label: str
    points: int  # kept of each curve
    reads: tuple[str, ...]  # metrics
    values: Callable[[pd.DataFrame], Points]  # of one member
    options: dict[str, Any]  # for page.js: log, line, line_label, dots

    @property
    def is_line(self) -> bool:
        return not self.options.get("dots")


PANELS = {
    "return": Panel("return", 200, ("episode_return",), _returns, {}),
    "diff": Panel(
        "diff / threshold",
        160,
        ("diff_over_threshold",),
        _diff,
        {"log": True, "line": 1, "line_label": "stable below"},
    ),
    "lifespan": Panel("rounds the target lived", 120, ("accepted", "rounds_held"), _lifespan, {"dots": True}),
    "updates": Panel("target updates so far", 60, ("accepted",), _updates, {}),
}


def thin(x: np.ndarray, y: np.ndarray, points: int, *, line: bool = True) -> Points:
    """At most `points` of the points (x, y), in order: the first, the last and each bucket's extremes.

    Points whose y is not finite are dropped first. Of a constant line only the ends are kept.
    """
    finite = np.isfinite(y)
    x, y = x[finite], y[finite]
    if len(y) <= points:
        return x, y
    if line and np.all(y == y[0]):
        return x[[0, -1]], y[[0, -1]]
    edges = np.linspace(1, len(y) - 1, (points - 2) // 2 + 1).astype(int)
    keep = {0, len(y) - 1}
    for start, end in itertools.pairwise(edges):
        part = y[start:end]
        keep |= {start + int(part.argmin()), start + int(part.argmax())}
    chosen = sorted(keep)
    return x[chosen], y[chosen]


def series(runs: Sequence[Run], variants: Sequence[str], name: str) -> list[dict[str, Any]]:
    """Thinned curves of one panel on one environment: every member's, and each variant's mean over seeds (`m` is -1).

    `p` is the number of steps per round. Runs that did not record the panel's metrics have none.
    """
    panel = PANELS[name]
    drawn: list[dict[str, Any]] = []
    by_variant: dict[str, list[pd.Series]] = {}
    of = {m.variant: {"v": variants.index(m.variant), "p": run.steps_per_round} for run in runs for m in run.members}
    for run in runs:
        if not set(panel.reads) <= set(run.frame):
            continue
        for index, frame in run.frame.groupby("member"):
            member = run.members[int(index)]
            x, y = panel.values(frame)
            if len(x):
                by_variant.setdefault(member.variant, []).append(pd.Series(y, index=x))
                points = _numbers(*thin(x, y, panel.points, line=panel.is_line))
                drawn.append({**of[member.variant], "m": int(index), "s": member.seed, **points})
    if not panel.is_line:  # targets of different seeds end in different rounds: there is nothing to average
        return drawn
    for variant, curves in by_variant.items():
        mean = pd.concat(curves, axis=1).mean(axis=1).sort_index()
        points = _numbers(*thin(mean.index.to_numpy(), mean.to_numpy(), panel.points))
        drawn.append({**of[variant], "m": -1, "s": len(curves), **points})
    return drawn


def _numbers(x: np.ndarray, y: np.ndarray) -> dict[str, list[float]]:
    return {"x": [int(v) for v in x], "y": [float(f"{v:.4g}") for v in y]}
