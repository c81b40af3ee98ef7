"""Figure: is a variant worse where the baseline is nearly deterministic, or where importance ratios waste the data?"""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import rankdata, spearmanr

from nextpolicy.report.baseline import worded
from nextpolicy.report.drawing import colour_of, is_second, labelled, legend, literal, percent_scale, plain
from nextpolicy.report.text import MISSING, suite_name

PANELS = {
    "ppo_entropy_late": "entropy of PPO's policy, last 10 % of steps",
    "ratio_ess": "effective sample size of the variant, share of the batch",
}
LEAST = 5  # environments of a rank correlation; of fewer, chance alone often makes it 1
EXACT = 8  # environments up to which all permutations are counted for its p value
SIZE = 6.0  # of names, in points


def figure(suite: str, tables: dict[str, pd.DataFrame], variants: list[str]) -> Figure | None:
    """Score against entropy and effective sample size, a point per environment; None without these columns."""
    found = {name: {v: _points(table, name) for v, table in tables.items()} for name in PANELS}
    if not any(len(points) for of in found.values() for points in of.values()):
        return None
    made = Figure(figsize=(9, 3.8), layout="constrained")
    panels = [made.add_subplot(1, len(PANELS), i + 1) for i in range(len(PANELS))]
    for axes, (name, label) in zip(panels, PANELS.items(), strict=True):
        for variant, points in found[name].items():
            _draw(axes, points, variant, variants)
        ranks = [f"{variant} {_rank(points)}" for variant, points in found[name].items()]
        axes.set_title(literal(f"{suite_name(suite)}; rank correlation:\n{', '.join(ranks)}"), fontsize=8)
        axes.axhline(0, color="#bbbbbb", linewidth=0.8)
        axes.set_xlabel(literal(worded(label, tables)), fontsize=8)
        axes.tick_params(labelsize=8)
        axes.margins(x=0.25)
        percent_scale(axes, "y", [y for points in found[name].values() for y in points["score"]])
        plain(axes, "both")
        _name(axes, pd.concat(found[name].values()))
    panels[0].set_ylabel(literal(worded("score, percentage points above PPO", tables)), fontsize=8)
    legend(made, labelled(panels))
    return made


def _points(table: pd.DataFrame, name: str) -> pd.DataFrame:
    """Columns env, x and score of the environments that have both numbers."""
    x = pd.Series(table.get(name, np.nan), index=table.index, dtype=float)
    points = pd.DataFrame({"env": table["env"], "x": x, "score": table["score_pct_of_ppo"] - 100})
    return points.dropna()


def _draw(axes: Axes, points: pd.DataFrame, variant: str, variants: list[str]) -> None:
    marker = "s" if is_second(variant, variants) else "o"
    colour = colour_of(variant, variants)
    axes.scatter(points["x"], points["score"], color=colour, s=24, marker=marker, label=variant, zorder=3)


def _name(axes: Axes, points: pd.DataFrame) -> None:
    """Name the environments, once where all variants have the same x: at the highest point, above other names."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    axes.autoscale_view()
    to_axes = axes.transScale + axes.transLimits
    width, height = (figure.dpi / 72 * SIZE / side for side in (axes.bbox.width, axes.bbox.height))
    named: list[tuple[float, float, float]] = []  # left, right, y
    places = points.groupby(["env", "x"])["score"].max().reset_index().sort_values("score", kind="stable")
    for env, x, score in places.itertuples(index=False):
        short = literal(env.partition("/")[2] or env)
        left, y = (float(v) for v in to_axes.transform((x, score)))
        right = left + 0.6 * width * len(short)
        y += 0.5 * height
        for low, high, other in sorted(named, key=lambda each: each[2]):
            if low < right and left < high and abs(y - other) < 1.2 * height:
                y = other + 1.2 * height
        named.append((left, right, y))
        axes.annotate(short, (left, y), (4, 0), "axes fraction", "offset points", fontsize=SIZE, color="#666666")


def _rank(points: pd.DataFrame) -> str:
    """Spearman's correlation over environments and its p value; a dash if they are too few or all equal."""
    if len(points) < LEAST or points["x"].nunique() < 2 or points["score"].nunique() < 2:
        return MISSING
    found = spearmanr(points["x"], points["score"])
    return f"{found.statistic:.2f} (p {_chance(points) if len(points) <= EXACT else found.pvalue:.2f})"


def _chance(points: pd.DataFrame) -> float:
    """The share of all permutations whose correlation is at least as far from 0: an exact, two-sided p value."""
    x, y = (rankdata(points[name]) - (len(points) + 1) / 2 for name in ("x", "score"))
    orders = np.array(list(permutations(range(len(y)))))
    return float(np.mean(np.abs(y[orders] @ x) >= abs(y @ x) - 1e-9))
