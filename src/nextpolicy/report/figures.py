"""Figures of a comparison, by matplotlib."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from nextpolicy.report import determinism
from nextpolicy.report.bars import margin
from nextpolicy.report.baseline import grouped, label, pace_of, worded
from nextpolicy.report.bootstrap import LEVEL, resample
from nextpolicy.report.columns import has_threshold
from nextpolicy.report.drawing import (
    colour_of,
    is_second,
    labelled,
    legend,
    literal,
    name_ends,
    names_fit,
    percent_scale,
    plain,
)
from nextpolicy.report.runs import Run, by_environment
from nextpolicy.report.text import suite_name

STATISTIC = "mean over seeds and its 95 % interval"  # of all curves
ENDS = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
POINTS = 250  # of each curve
WIDTH = 3.3  # of a panel, in inches
Tables = dict[tuple[str, str], pd.DataFrame]


def all_figures(runs: Sequence[Run], members: pd.DataFrame, tables: Tables) -> dict[str, Figure]:
    """All figures of all suites by name, not rendered yet."""
    variants = list(dict.fromkeys(members["variant"]))
    found: dict[str, Figure] = {}
    for suite in dict.fromkeys(run.suite for run in runs):
        ours = [run for run in runs if run.suite == suite]
        figures: dict[str, Figure | None] = {"learning-curves": learning_curves(ours, variants)}
        figures["diff"] = diff_figure(ours, variants)
        figures["lifespan"] = lifespan_figure(ours, variants)
        groups = {base: here for (of, base), here in grouped(tables).items() if of == suite}
        for base, here in groups.items():
            stem = f"{base}-" if len(groups) > 1 else ""
            figures[f"{stem}bars"] = bars(suite, here, variants)
            figures[f"{stem}scatter"] = scatter(suite, here, variants)
            figures[f"{stem}determinism"] = determinism.figure(suite, here, variants)
        found |= {f"{suite}-{name}": figure for name, figure in figures.items() if figure is not None}
    return found


def bars(suite: str, tables: dict[str, pd.DataFrame], variants: Sequence[str]) -> Figure:
    """Score in percentage points above or below the baseline, with 95 % intervals and the lead of the best variant."""
    rows = {v: t.set_index("env").to_dict("index") for v, t in tables.items()}
    envs = list(dict.fromkeys(env for r in rows.values() for env in r))
    best = lambda env: max((r[env]["score_pct_of_ppo"] for r in rows.values() if env in r), default=0.0)  # noqa: E731
    envs.sort(key=lambda env: -np.inf if math.isnan(best(env)) else best(env))
    figure = Figure(figsize=(7.5, 1.2 + 0.24 * len(envs) * (len(rows) + 0.6)), layout="constrained")
    axes = figure.add_subplot()
    height = 0.8 / len(rows)
    for i, (variant, by_env) in enumerate(rows.items()):
        at = np.arange(len(envs)) + 0.4 - (i + 0.5) * height
        value = np.array([by_env.get(env, {}).get("score_pct_of_ppo", np.nan) for env in envs]) - 100
        ends = [
            [by_env.get(env, {}).get(f"score_pct_of_ppo_{e}", np.nan) - 100 for env in envs] for e in ("low", "high")
        ]
        error = np.nan_to_num(np.abs(np.array(ends) - value))
        hatch = "//" if is_second(variant, variants) else None
        shade = colour_of(variant, variants)
        axes.barh(at, np.nan_to_num(value), height, color=shade, label=variant, hatch=hatch, edgecolor="white", lw=0)
        axes.errorbar(np.nan_to_num(value), at, xerr=error, fmt="none", ecolor="#1d2126", elinewidth=0.9)
        for y, v in zip(at, value):
            if math.isnan(v):
                axes.annotate("no percentage", (0, y), (4, 0), textcoords="offset points", va="center", fontsize=6)
    axes.axvline(0, color="black", linewidth=1)
    axes.set_ylim(-0.6, len(envs) - 0.4)
    percent_scale(axes, "x", [v for t in tables.values() for v in t["score_pct_of_ppo"] - 100])
    names = [f"{env}\n{margin({v: r[env] for v, r in rows.items() if env in r}, label(rows))}" for env in envs]
    axes.set_yticks(range(len(envs)), map(literal, names), fontsize=7)
    axes.tick_params(axis="x", labelsize=8)
    axes.set_xlabel(literal(worded("score, percentage points above PPO's mean (95 % interval)", rows)), fontsize=8)
    axes.set_title(suite_name(suite), fontsize=10)
    axes.tick_params(axis="y", length=0)
    legend(figure, labelled([axes]))
    plain(axes, "x")
    return figure


def _finish(figure: Figure, axes: list[Axes], label: str, *, named: bool) -> Figure:
    """Add the labels of the axes and, unless the curves are `named` at their ends, one legend for all panels."""
    if not named:
        legend(figure, labelled(axes))
    for each in axes:
        each.xaxis.set_major_locator(MaxNLocator(5))
        each.xaxis.set_major_formatter(EngFormatter(sep=""))
        plain(each, "y")
    figure.supxlabel("environment steps", fontsize=8)
    figure.supylabel(label, fontsize=8)
    return figure


def _title(env: str, runs: Sequence[Run]) -> str:
    seeds = {len({m.seed for run in runs for m in run.members if m.variant == v}) for v in _variants(runs)}
    return f"{env} ({'–'.join(str(n) for n in sorted({min(seeds), max(seeds)}))} seed{'s' * (max(seeds) != 1)})"


def _frame(axes: Axes, env: str, runs: Sequence[Run]) -> None:
    """Title, an x axis as long as the whole run, and the state of a run that is not finished."""
    axes.set_title(literal(_title(env, runs)), fontsize=8)
    axes.set_xlim(0, max(run.total_steps for run in runs))
    odd = [f"{run.state}, {run.rounds_done} of {run.rounds} rounds" for run in runs if run.state != "finished"]
    drawn = [np.asarray(line.get_ydata()) for line in axes.lines if line.get_label() in _variants(runs)]
    if not any(np.isfinite(values).any() for values in drawn):
        axes.set_yticks([])
    if odd:
        axes.text(
            0.5, 0.94, literal(odd[0]), transform=axes.transAxes, ha="center", va="top", fontsize=7, color="#9a3412"
        )


def _variants(runs: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(m.variant for run in runs for m in run.members))


def _grid(envs: int) -> tuple[Figure, list[Axes]]:
    lines = math.ceil(envs / 4)
    columns = math.ceil(envs / lines)  # as many in each line, so that five do not leave three places empty
    figure = Figure(figsize=(max(WIDTH * columns, 4), 2.5 * lines + 0.5), layout="constrained")
    axes = [figure.add_subplot(lines, columns, i + 1) for i in range(envs)]
    for each in axes:
        each.tick_params(labelsize=7)
    return figure, axes


def _started(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs that have metrics, by environment."""
    return by_environment([run for run in runs if len(run.frame)])


def _wide(
    runs: Sequence[Run], variant: str, reads: Sequence[str], values: Callable[[pd.DataFrame], pd.Series]
) -> pd.DataFrame:
    """[round, seed] of one variant on one environment, from the runs that recorded the metrics it `reads`."""
    found = []
    for run in runs:
        if set(reads) <= set(run.frame):
            for _, frame in run.frame[run.frame["variant"] == variant].groupby("member"):
                found.append(values(frame.set_index("round")))
    return pd.concat(found, axis=1) if found else pd.DataFrame()


def steps_of(runs: Sequence[Run], variant: str) -> int:
    """Environment steps of a round of one variant; algorithms may differ."""
    return next((r.steps_per_round for r in runs if any(m.variant == variant for m in r.members)), 1)


def _returns(runs: Sequence[Run], variant: str) -> pd.DataFrame:
    return _wide(runs, variant, ["episode_return"], lambda f: f["episode_return"])


def _diffs(runs: Sequence[Run], variant: str) -> pd.DataFrame:
    name = "diff_over_threshold"
    return _wide(runs, variant, [name], lambda f: f[name].where(f[name] > 0))


def _lifespans(runs: Sequence[Run], variant: str) -> pd.DataFrame:
    """Rounds that the target of each round will have lived when it is replaced."""
    names = ["rounds_held", "accepted"]
    return _wide(runs, variant, names, lambda f: f["rounds_held"].where(f["accepted"].astype(bool)).bfill())


def band(axes: Axes, table: pd.DataFrame, variants: Sequence[str], variant: str, steps: int) -> None:
    """Mean over seeds and its 95 % bootstrap interval against environment steps, smoothed over 2 % of the rounds."""
    if table.empty:
        return
    # Rounds in which no episode ended are interpolated.
    whole = table.interpolate(method="index", limit_area="inside")
    smooth = whole.rolling(max(1, len(table) // 50), min_periods=1).mean()
    smooth = smooth.iloc[:: max(1, len(table) // POINTS)]  # fewer rounds are skipped than are averaged
    x = (smooth.index.to_numpy() + 1) * steps
    colour, style = colour_of(variant, variants), "--" if is_second(variant, variants) else "-"
    axes.plot(x, smooth.mean(axis=1), style, color=colour, linewidth=1.3, label=variant)
    if table.shape[1] > 1:  # as in the tables, one seed has no interval
        low, high = np.quantile(resample(smooth.to_numpy().T, 0).mean(1), ENDS, axis=0)
        axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)


def _figure(
    grouped: dict[str, list[Run]], label: str, draw: Callable[[Axes, list[Run]], None], names: Sequence[str] = ()
) -> Figure:
    """One panel per environment, drawn by `draw`, with the curves `names` named at their ends if that fits."""
    figure, axes = _grid(len(grouped))
    named = bool(names) and names_fit(names)
    for each, (env, own) in zip(axes, grouped.items(), strict=True):
        draw(each, own)
        _frame(each, env, own)
        if named:
            name_ends(each, [line for line in each.lines if line.get_label() in names], 7.0)
    return _finish(figure, axes, label, named=named)


def learning_curves(runs: Sequence[Run], variants: Sequence[str]) -> Figure | None:
    """Return against environment steps."""

    def draw(axes: Axes, own: list[Run]) -> None:
        for variant in variants:
            band(axes, _returns(own, variant), variants, variant, steps_of(own, variant))

    grouped = _started(runs)
    return _figure(grouped, f"return: {STATISTIC}", draw, variants) if grouped else None


def diff_figure(runs: Sequence[Run], variants: Sequence[str]) -> Figure | None:
    """diff / threshold against environment steps, for variants with a threshold; below the line is stable."""
    chosen = [v for v in variants if has_threshold(v)]

    def draw(axes: Axes, own: list[Run]) -> None:
        for variant in chosen:
            band(axes, _diffs(own, variant), variants, variant, steps_of(own, variant))
        axes.axhline(1, color="black", linestyle="--", linewidth=0.8)
        axes.set_yscale("log")

    grouped = {e: r for e, r in _started(runs).items() if any(v in set(x.frame["variant"]) for x in r for v in chosen)}
    return _figure(grouped, "diff / threshold (stable below the line)", draw, chosen) if grouped else None


def lifespan_figure(runs: Sequence[Run], variants: Sequence[str]) -> Figure | None:
    """Return (solid, left), and how many rounds each target policy lived (dotted, right)."""
    held = [v for v in variants if pace_of(v) != "plain"]  # a plain target always lives for one round

    def draw(axes: Axes, own: list[Run]) -> None:
        right = axes.twinx()
        right.tick_params(labelsize=7)
        right.yaxis.set_major_locator(MaxNLocator(4, integer=True))
        for variant in held:
            band(axes, _returns(own, variant), variants, variant, steps_of(own, variant))
            lived = _lifespans(own, variant)
            if not lived.empty:
                lived = lived.iloc[:: max(1, len(lived) // POINTS)]
                x = (lived.index.to_numpy() + 1) * steps_of(own, variant)
                dots = (0, (1, 4)) if is_second(variant, variants) else ":"
                right.plot(x, lived.mean(axis=1), linestyle=dots, color=colour_of(variant, variants), linewidth=1)
        right.set_ylim(0, max(right.get_ylim()[1], 2))
        right.spines[["top", "left", "bottom"]].set_visible(False)

    grouped = _started(runs)
    label = "return (solid); rounds a target lives (dotted, right)"
    return _figure(grouped, label, draw) if grouped and held else None


def scatter(suite: str, tables: dict[str, pd.DataFrame], variants: Sequence[str]) -> Figure:
    """Score against the size of target updates, both relative to the baseline; points of one environment are joined."""
    figure = Figure(figsize=(7, 5), layout="constrained")
    axes = figure.add_subplot()
    joined: dict[str, list[tuple[float, float]]] = {}
    for variant, table in tables.items():
        usable = table[(table["kl_target_x_ppo"] > 0) & table["score_pct_of_ppo"].notna()]
        x, y = np.log10(usable["kl_target_x_ppo"]), usable["score_pct_of_ppo"] - 100
        marker = "s" if is_second(variant, variants) else "o"
        axes.scatter(x, y, color=colour_of(variant, variants), s=28, label=variant, marker=marker, zorder=3)
        for env, *point in zip(usable["env"], x, y):
            joined.setdefault(env, []).append((point[0], point[1]))
    for env, points in joined.items():
        axes.plot(*zip(*points), color="#999999", linewidth=0.8, zorder=2)
        short = literal(env.partition("/")[2] or env)
        axes.annotate(short, points[0], fontsize=6, xytext=(4, 3), textcoords="offset points")
    axes.scatter([0], [0], marker="+", s=90, color="black", label=label(tables), zorder=4)
    axes.axhline(0, color="#bbbbbb", linewidth=0.8)
    axes.axvline(0, color="#bbbbbb", linewidth=0.8)
    percent_scale(axes, "y", [v for t in tables.values() for v in t["score_pct_of_ppo"] - 100])
    axes.margins(x=0.15)
    axes.tick_params(labelsize=8)
    axes.set_xlabel(literal(worded("log10 of KL(target before, after) in multiples of PPO's", tables)), fontsize=8)
    axes.set_ylabel(literal(worded("score, percentage points above PPO", tables)), fontsize=8)
    seeds = [int(n) for t in tables.values() for n in t.loc[t["score_pct_of_ppo"].notna(), "seeds"]]
    axes.set_title(f"{suite_name(suite)} (at least {min(seeds, default=0)} seeds each)", fontsize=10)
    legend(figure, labelled([axes]))
    plain(axes, "both")
    return figure
