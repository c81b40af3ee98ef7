"""The curves of the Four Rooms study. A panel draws on given axes, so it can stand alone or beside others.

gids: `median`, `band`, `seed` (curves), `name` (of a curve, at its end), `target-updates` (a tick for each accepted
round of the seed shown), `threshold` (delta_v), `optimal` (of the optimal policy).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from nextpolicy.report.drawing import name_ends, plain
from nextpolicy.report.palette import COLOURS, FIXED
from nextpolicy.studies.four_rooms import exact, maps
from nextpolicy.studies.four_rooms.study import Study
from nextpolicy.studies.four_rooms.summary import FEWEST
from nextpolicy.tabular import four_rooms_mdp, solve

Panel = Callable[[Axes, Study], None]

# Line styles and widths distinguish the lines without colour.
_LINES: dict[str, dict[str, Any]] = {
    "ppo": {"linestyle": (0, (5, 2)), "linewidth": 1.6},
    "sv-static": {"linestyle": (0, (1, 1)), "linewidth": 1.8},
    "sv-dynamic": {"linestyle": "-", "linewidth": 1.9},
}
STYLE = {algo: {"color": COLOURS[FIXED.index(algo)], **line} for algo, line in _LINES.items()}
NAMES = {"ppo": "PPO", "sv-static": "SV-PPO, static", "sv-dynamic": "SV-PPO, dynamic"}
INK = "#000000"
SMALLEST_GAP = 1e-5  # smaller gaps are drawn here on the logarithmic axis
WIDTH, HEIGHT = 4.6, 3.0  # of a panel, in inches


def shown_seed(study: Study) -> int:
    """The seed for figures of single runs: the one whose number of dynamic target updates is closest to the median."""
    updates = study.column("sv-dynamic", "accepted").sum(1)
    return study.config.run.seeds[int(np.argmin(np.abs(updates - np.median(updates))))]


def value(axes: Axes, study: Study) -> None:
    """The value of the behavioural policy from the start."""
    lines = _curves(axes, {a: study.column(a, "value_behaviour") for a in study.algos})
    best = float(solve.optimal(study.mdp).V @ study.mdp.start)
    lines.append(axes.axhline(best, color=INK, linestyle=":", linewidth=1.0, gid="optimal", label="best possible"))
    axes.set_ylim(min(0.0, axes.get_ylim()[0]), None)
    _finish(axes, study, lines, "Value of the policy from the start", "discounted return, V(s0)")


def error(axes: Axes, study: Study) -> None:
    """The next-policy-weighted squared value error."""
    lines = _curves(axes, {a: study.column(a, "msve_next_alive") for a in study.algos})
    axes.set_yscale("log")
    _finish(axes, study, lines, "Error of the critic on the next policy's data", "mean (V - v)², return²")


def shift(axes: Axes, study: Study) -> None:
    """The distance of successive visitations."""
    lines = _curves(axes, {a: study.column(a, "tv_visitation_alive") for a in study.algos})
    axes.set_yscale("log")
    _finish(axes, study, lines, "Shift of the data from round to round", "total variation, μ(k) to μ(k+1)")


def gate(axes: Axes, study: Study) -> None:
    """The statistic of the gate and its threshold."""
    scaled = {a: study.column(a, "diff") / np.maximum(study.column(a, "diff_scale"), 1e-12) for a in study.algos}
    lines = _curves(axes, scaled)
    axes.set_yscale("log")
    threshold = study.config.criterion.delta_v
    line = axes.axhline(threshold, color=INK, linestyle="--", linewidth=1.2, gid="threshold")
    line.set_label(f"threshold {threshold:g}")
    _finish(axes, study, [*lines, line], "How much the predicted values changed", "diff, relative to their size")


def gap(axes: Axes, study: Study) -> None:
    """The loss of value in the bottom-left room."""
    columns = {a: np.maximum(study.column(a, "gap_bottom_left"), SMALLEST_GAP) for a in study.algos}
    lines = _curves(axes, columns)
    axes.set_yscale("log")
    _finish(axes, study, lines, "Value lost in the bottom-left room", "mean V* - V over its cells", ticks=False)


def route(axes: Axes, study: Study) -> None:
    """The probability of the top route from the doorway into the bottom-left room."""
    lines = _curves(axes, {a: study.column(a, "top_from_doorway") for a in study.algos})
    best = float(four_rooms_mdp.top_route_probability(study.mdp, solve.optimal(study.mdp).pi, exact.DOORWAY))
    line = axes.axhline(best, color=INK, linestyle=":", linewidth=1.0, gid="optimal", label=f"optimal {best:.3f}")
    axes.set_ylim(-0.03, 1.05)
    words = "Chance of turning back to the top route"
    _finish(axes, study, [*lines, line], words, "probability, from the doorway", ticks=False)


def pairs(axes: Axes, study: Study) -> None:
    """The final loss of value in the bottom-left room: points of one seed are joined, bars are medians."""
    final = {a: np.maximum(study.column(a, "gap_bottom_left")[:, -1], SMALLEST_GAP) for a in study.algos}
    for values in zip(*final.values()):
        axes.plot(range(len(values)), values, color="#999999", linewidth=0.8, zorder=1)
    for place, (algo, values) in enumerate(final.items()):
        marker = {"ppo": "s", "sv-static": "^", "sv-dynamic": "o"}[algo]
        colour = STYLE[algo]["color"]
        axes.scatter([place] * len(values), values, color=colour, marker=marker, edgecolor=INK, s=28, zorder=2)
        axes.plot([place - 0.2, place + 0.2], [np.median(values)] * 2, color=INK, linewidth=2.0, zorder=3)
    axes.set(yscale="log", xlim=(-0.5, len(final) - 0.5), ylabel="mean V* - V over its cells")
    axes.set_xticks(range(len(final)), [NAMES[a].replace(", ", "\n") for a in final], fontsize=8)
    axes.set_title("The same after the last round, by seed", fontsize=10)
    plain(axes, "y")


def slack(axes: Axes, study: Study) -> None:
    """How far the bounds are below the true improvement."""
    truth = study.column("sv-dynamic", "improvement")
    bounds = (("theorem1_lower", "Theorem 1", "-"), ("npa_bound", "corollary", (0, (5, 2))),
              ("bound", "certificate", (0, (1, 1))))  # fmt: skip
    lines = []
    for name, label, style in bounds:
        lost = np.median(truth - study.column("sv-dynamic", name), axis=0)
        lines += axes.plot(lost, label=label, linestyle=style, color=STYLE["sv-dynamic"]["color"], gid="median")
    most = 1.0 / (1.0 - study.mdp.gamma)
    lines.append(axes.axhline(most, color=INK, linewidth=0.8, label="largest return"))
    axes.set_yscale("log")
    _finish(axes, study, lines, "How far each bound is below the truth", "improvement - bound", ticks=False)


def critic_errors(axes: Axes, study: Study) -> None:
    """The errors in the bounds."""
    words = "Mean error of the critic"
    _two(axes, study, (("epsilon_train", "data"), ("epsilon_next", "next")), words, "ε = mean |Q - q|")


def policy_steps(axes: Axes, study: Study) -> None:
    """The step of the behavioural policy: in the worst state, as the certificate needs it, and on average."""
    words = "Step of the behavioural policy"
    _two(axes, study, (("tv_policy_max", "largest"), ("tv_policy_mean", "mean")), words, "total variation")


def _two(axes: Axes, study: Study, columns: Sequence[tuple[str, str]], title: str, unit: str) -> None:
    """Medians over seeds of two columns, the first thin, of PPO and dynamic SV-PPO."""
    lines = []
    for algo in ("ppo", "sv-dynamic"):
        for (name, words), width in zip(columns, (0.8, 2.0)):
            drawn = {**STYLE[algo], "linewidth": width, "gid": "median"}
            label = f"{NAMES[algo].partition(',')[0]}, {words}"
            lines += axes.plot(np.median(study.column(algo, name), axis=0), label=label, **drawn)
    axes.set_yscale("log")
    _finish(axes, study, lines, title, unit, ticks=False)


def _curves(axes: Axes, columns: dict[str, np.ndarray]) -> list[Line2D]:
    """Medians over seeds of columns [seeds, K]; with a band of quartiles, or the seeds themselves if they are few."""
    lines = []
    for algo, column in columns.items():
        k, colour = np.arange(column.shape[1]), STYLE[algo]["color"]
        if len(column) >= FEWEST:
            low, high = np.quantile(column, [0.25, 0.75], axis=0)
            axes.fill_between(k, low, high, color=colour, alpha=0.2, linewidth=0).set_gid("band")
        else:
            for one in column if len(column) > 1 else ():
                axes.plot(k, one, color=colour, linewidth=0.5, alpha=0.6, gid="seed")
        lines += axes.plot(k, np.median(column, axis=0), label=NAMES[algo], gid="median", **STYLE[algo])
    return lines


def _finish(axes: Axes, study: Study, lines: list[Line2D], title: str, unit: str, *, ticks: bool = True) -> None:
    """Title, labels and names of the curves; with `ticks`, the target updates of dynamic SV-PPO on the x axis."""
    axes.set_xlim(0, max(study.rounds - 1, 1))
    axes.set_title(title, fontsize=10)
    axes.set(xlabel=f"round of {study.config.batch_size:,} environment steps", ylabel=unit)
    if ticks:
        updates = np.flatnonzero(study.trajectory.accepted[study.index("sv-dynamic", shown_seed(study))])
        mark: dict[str, Any] = {"linestyle": "none", "marker": "|", "markersize": 7, "gid": "target-updates"}
        mark |= {"color": STYLE["sv-dynamic"]["color"], "clip_on": False}
        axes.plot(updates, [0.02] * len(updates), transform=axes.get_xaxis_transform(), **mark)
    plain(axes, "y")
    name_ends(axes, lines)


SHEETS: dict[str, tuple[Panel, ...]] = {
    "learning-curves": (value, gate, error, shift),
    "bottom-left-room": (gap, pairs, route),
    "certificates": (slack, critic_errors, policy_steps),
}


def panel(study: Study, draw: Panel) -> Figure:
    """One panel as a figure."""
    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    draw(figure.add_subplot(), study)
    return figure


def sheet(study: Study, name: str) -> Figure:
    """The panels of `SHEETS[name]` side by side, two or three in a row."""
    panels = SHEETS[name]
    columns = 2 if len(panels) == 4 else 3
    rows = len(panels) // columns
    figure = Figure(figsize=(WIDTH * columns, (HEIGHT + 0.15) * rows), layout="constrained")
    for place, draw in enumerate(panels):
        draw(figure.add_subplot(rows, columns, place + 1), study)
    figure.suptitle(about(study), fontsize=10)
    return figure


def about(study: Study) -> str:
    """What the curves are, in words."""
    seeds = len(study.config.run.seeds)
    if seeds == 1:
        return "One seed."
    drawn = "bands from the first to the third quartile" if seeds >= FEWEST else "thin lines are the single seeds"
    return f"Medians of {seeds} seeds; {drawn}."


def all_figures(study: Study) -> dict[str, Callable[[], Figure]]:
    """Functions that draw the figures in files, by file name."""
    found: dict[str, Callable[[], Figure]] = {name: lambda name=name: sheet(study, name) for name in SHEETS}  # type: ignore[misc]
    found["optimal"] = lambda: maps.optimal_policy(study.mdp)
    found["snapshots"] = lambda: maps.snapshots(study, shown_seed(study))
    return found
