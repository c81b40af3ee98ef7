"""Curves thin enough for a page: every bucket of rounds keeps its lowest and its highest point, so no peak is lost."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from nextpolicy.report.runs import Run

# What is drawn for each environment: name -> points kept of each curve, axis label, logarithmic axis, line to draw and
# what it says, and whether points stand alone (what lies between two targets' ends is no value).
PANELS: dict[str, dict[str, Any]] = {
    "return": {"points": 200, "label": "return"},
    "diff": {"points": 160, "label": "diff / threshold", "log": True, "line": 1, "line_label": "stable below"},
    "lifespan": {"points": 120, "label": "rounds a target lived", "dots": True},
    "updates": {"points": 60, "label": "target updates so far"},
}


def thin(x: np.ndarray, y: np.ndarray, points: int, *, line: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """At most `points` of the points (x, y), the first, the last and each bucket's extremes among them, in order.

    Points whose y is not finite are left out first. A line that is constant needs only its ends.
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


def panel_values(frame: pd.DataFrame, panel: str) -> tuple[np.ndarray, np.ndarray]:
    """(round, value) of one member for one panel; nothing where the panel does not apply."""
    rounds = frame["round"].to_numpy()
    accepted = frame["accepted"].to_numpy(bool)
    if panel == "return":
        return rounds, frame["episode_return"].to_numpy(np.float64)
    if panel == "diff":
        diff = frame["diff_over_threshold"].to_numpy(np.float64)
        return (rounds, np.where(diff > 0, diff, np.nan)) if np.any(diff > 0) else (rounds[:0], diff[:0])
    if panel == "lifespan":
        return rounds[accepted], frame["rounds_held"].to_numpy(np.float64)[accepted]
    return rounds, np.cumsum(accepted).astype(np.float64)


def series(runs: Sequence[Run], variants: Sequence[str], panel: str) -> list[dict[str, Any]]:
    """Every member's thinned curve on one environment, and the mean over seeds of each variant (member -1)."""
    points = PANELS[panel]["points"]
    curves, whole = [], {}
    for run in runs:
        for index, frame in run.frame.groupby("member"):
            member = run.members[int(index)]
            x, y = panel_values(frame, panel)
            if len(x):
                whole.setdefault(member.variant, []).append(pd.Series(y, index=x))
                ident = {"v": variants.index(member.variant), "m": int(index), "s": member.seed}
                curves.append(ident | _numbers(*thin(x, y, points, line=not PANELS[panel].get("dots"))))
    if panel != "lifespan":  # targets of different seeds end in different rounds: their mean would be of one seed each
        for variant, many in whole.items():
            mean = pd.concat(many, axis=1).mean(axis=1).sort_index()
            ident = {"v": variants.index(variant), "m": -1, "s": len(many)}
            curves.append(ident | _numbers(*thin(mean.index.to_numpy(), mean.to_numpy(), points)))
    return curves


def _numbers(x: np.ndarray, y: np.ndarray) -> dict[str, list[float]]:
    return {"x": [int(v) for v in x], "y": [float(f"{v:.4g}") for v in y]}
