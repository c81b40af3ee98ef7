"""Tables, figures and page of the criteria study."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from nextpolicy.report.drawing import plain
from nextpolicy.report.palette import COLOURS
from nextpolicy.runfiles import write_whole
from nextpolicy.studies import page
from nextpolicy.studies.criteria import tables
from nextpolicy.studies.criteria.study import QUANTITIES
from nextpolicy.studies.four_rooms import summary
from nextpolicy.studies.four_rooms.summary import FEWEST

_OUTCOMES = {
    "harmful": "share of harmful updates",
    "improvement": "true improvement per update",
    "value_over_ppo": "mean value over training, less PPO's",
}


def write(path: Path, rows: pd.DataFrame) -> Path:
    """signals.csv, criteria.csv, figures/ and report.html."""
    signals, criteria = tables.signals(rows), tables.criteria(rows)
    for name, table in (("signals", signals), ("criteria", criteria)):
        write_whole(path / f"{name}.csv", table.to_csv(index=False, float_format="%.5g").encode())
    out = page.Page("Criteria on Four Rooms, beside exact quantities")
    out.text(
        "A criterion decides when the target policy becomes the behavioural policy. Its signal should tell whether "
        "that improves the target. On Four Rooms, values and visitations of all policies are known exactly, so both "
        "can be compared round by round."
    )
    for number, line in enumerate(headlines(rows), 1):
        out.verdict(f"{number}. {line}")
    for noise in signals["noise"].unique():
        out.heading(f"Noise: {noise}")
        _section(out, path, noise, signals[signals["noise"] == noise], criteria[criteria["noise"] == noise])
    out.write(path / "report.html")
    return path / "report.html"


def _section(out: page.Page, path: Path, noise: str, signals: pd.DataFrame, criteria: pd.DataFrame) -> None:
    seeds = int(criteria["seeds"].iloc[0])
    over = f"over {seeds} seed{'s' * (seeds != 1)}" + (" with 95 % bootstrap intervals" if seeds >= FEWEST else "")
    drawn = {f"signals-{noise}": tracking(signals), f"criteria-{noise}": outcomes(criteria)}
    words = {
        f"signals-{noise}": "Rank correlation of each signal with exact quantities over rounds. Filled: as they are; "
        f"open: without their trends over rounds. Medians {over}.",
        f"criteria-{noise}": f"What each criterion's updates were worth. Means {over}.",
    }
    for name, figure in drawn.items():
        page.save_figure(figure, path / "figures", name)
        out.figure([page.themed(figure, name)], words[name])
    with out.folded("The numbers"):
        out.table([_shown(row) for row in criteria.to_dict("records")])


def _shown(row: dict[str, Any]) -> dict[str, str]:
    """A row of `tables.criteria` for reading."""
    spread = lambda c: str(summary.Interval(row[c], row[f"{c}_low"], row[f"{c}_high"]))  # noqa: E731
    names = {"harmful": "harmful", "improvement": "improvement per update", "loss": "value lost by harmful updates"}
    names |= {"steps_to_goal": "steps to V* - .01, median", "value_over_ppo": "mean value, less PPO's"}
    names |= {"value_over_oracle": "less the oracle's", "final_value": "final value"}
    cells = {"variant": row["variant"], "updates": f"{row['updates']:.1f}"}
    return (
        cells | {words: spread(c) for c, words in names.items()} | {"failures": f"{row['failures']} of {row['seeds']}"}
    )


def tracking(signals: pd.DataFrame) -> Figure:
    """One panel per quantity, one line per signal."""
    names = list(dict.fromkeys(signals["signal"]))
    figure = Figure(figsize=(10.5, 0.32 * len(names) + 1.1), layout="constrained")
    for axes, (quantity, words) in zip(figure.subplots(1, len(QUANTITIES), sharey=True), QUANTITIES.items()):
        mine = signals[signals["quantity"] == quantity].set_index("signal").loc[names]
        for shift, kind, face in ((-0.15, "correlation", COLOURS[0]), (0.15, "detrended", "#ffffff")):
            _dots(axes, mine, kind, face, shift)
        axes.axvline(0, color="#999999", linewidth=0.8)
        axes.set(xlim=(-1, 1), title=words)
        axes.title.set_fontsize(9)
    _named(figure, names)
    return figure


def outcomes(criteria: pd.DataFrame) -> Figure:
    """One panel per outcome, one line per variant."""
    names = list(criteria["variant"])
    figure = Figure(figsize=(10.5, 0.24 * len(names) + 1.1), layout="constrained")
    for axes, (column, words) in zip(figure.subplots(1, len(_OUTCOMES), sharey=True), _OUTCOMES.items()):
        _dots(axes, criteria.set_index("variant"), column, COLOURS[0], 0.0)
        if column == "value_over_ppo":
            axes.axvline(0, color="#999999", linewidth=0.8)
        axes.set_title(words, fontsize=9)
    _named(figure, names)
    return figure


def _dots(axes: Any, table: pd.DataFrame, column: str, face: str, shift: float) -> None:
    places = np.arange(len(table)) + shift
    axes.hlines(places, table[f"{column}_low"], table[f"{column}_high"], color=COLOURS[0], linewidth=1.2)
    axes.scatter(table[column], places, s=22, facecolor=face, edgecolor=COLOURS[0], zorder=2, gid=column)


def _named(figure: Figure, names: list[str]) -> None:
    for axes in figure.axes:
        plain(axes, "x")
        axes.tick_params(labelsize=8)
    figure.axes[0].set_yticks(range(len(names)), [name.replace("_", " ") for name in names])
    figure.axes[0].invert_yaxis()


def headlines(rows: pd.DataFrame) -> list[str]:
    """The main results, in words."""
    signals, criteria = tables.signals(rows), tables.criteria(rows)
    lines = []
    for quantity, words in QUANTITIES.items():
        mine = signals[signals["quantity"] == quantity]
        strength = mine.assign(size=mine["detrended"].abs()).groupby("signal", sort=False)["size"].mean().dropna()
        if not len(strength):  # too few rounds
            continue
        paper = mine[mine["signal"] == "stable_values"]["detrended"].mean()
        best = str(strength.idxmax())
        value = mine[mine["signal"] == best]["detrended"].mean()
        lines.append(
            f"{words}: best tracked by {best.replace('_', ' ')} (rank correlation {value:.2f} without trends; "
            f"the paper's signal {paper:.2f}; mean over kinds of noise)"
        )
    pick = lambda variant, column: criteria[criteria["variant"] == variant][column].mean()  # noqa: E731
    shares = {v: pick(v, "harmful") for v in ("ppo", "sv-static", "paper", "oracle")}
    shown = [f"{v} {100 * x:.0f} %" if np.isfinite(x) else f"{v} has no updates" for v, x in shares.items()]
    lines.append(f"share of harmful updates: {', '.join(shown)}")
    others = criteria[~criteria["variant"].isin(("oracle", "ppo"))].groupby("variant")["value_over_ppo"].mean()
    best = str(others.idxmax())
    gains = {v: pick(v, "value_over_ppo") for v in (best, "paper", "sv-static", "oracle")}
    words = ", ".join(f"{v} {x:+.4f}" for v, x in gains.items())
    lines.append(f"mean value over training, less PPO's: {words}")
    return lines
