"""Figure: is a variant worse where the baseline is nearly deterministic, or where importance ratios waste the data?"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import spearmanr

from nextpolicy.report.baseline import worded
from nextpolicy.report.drawing import colour_of, is_second, labelled, legend, literal, percent_scale, plain
from nextpolicy.report.text import MISSING, suite_name

PANELS = {
    "ppo_entropy_late": "entropy of PPO's policy, last 10 % of steps",
    "ratio_ess": "effective sample size of the variant, share of the batch",
}
LEAST = 5  # environments of a rank correlation; of fewer, chance alone often makes it 1


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
        _name(axes, pd.concat(found[name].values()))
        ranks = [f"{variant} {_rank(points)}" for variant, points in found[name].items()]
        axes.set_title(literal(f"{suite_name(suite)}; rank correlation: {', '.join(ranks)}"), fontsize=8)
        axes.axhline(0, color="#bbbbbb", linewidth=0.8)
        axes.set_xlabel(literal(worded(label, tables)), fontsize=8)
        axes.tick_params(labelsize=8)
        axes.margins(x=0.25)
        percent_scale(axes, "y", [y for points in found[name].values() for y in points["score"]])
        plain(axes, "both")
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
    """Name the environments, once where all variants have the same x: at the highest point."""
    for (env, x), score in points.groupby(["env", "x"])["score"].max().items():
        short = literal(env.partition("/")[2] or env)
        axes.annotate(short, (x, score), (4, 3), textcoords="offset points", fontsize=6, color="#666666")


def _rank(points: pd.DataFrame) -> str:
    """Spearman's correlation over environments; a dash if they are too few or all equal."""
    if len(points) < LEAST or points["x"].nunique() < 2 or points["score"].nunique() < 2:
        return MISSING
    return f"{spearmanr(points['x'], points['score']).statistic:.2f}"
