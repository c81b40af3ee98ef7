"""Every column of the report: what it is computed from, how it is shown and what it means.

To add a column, add a `Statistic` to `STATISTICS`. It then appears in `members.csv`, in the table of returns and, with
the views it names, in the tables against PPO: on the page, in Markdown, LaTeX and CSV, and in the explanations. A run
that did not record its metric shows a dash.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd

from nextpolicy.report import learning_speed, text
from nextpolicy.report.aggregate import multiple_of_ppo
from nextpolicy.report.baseline import pace_of
from nextpolicy.report.statistic import (
    MULTIPLE,
    OF_PPO,
    OWN,
    PERCENT,
    PERCENTAGE,
    Measure,
    Rows,
    Statistic,
    View,
    late_mean,
    mean,
)
from nextpolicy.report.text import Cell, Row, with_spread
from nextpolicy.scores import member_score, score_digits


def _final_return(rows: Rows) -> float:
    ended = rows.all.loc[rows.all["episodes"] > 0, "episode_return"]
    return score_digits(ended.iloc[-1]) if len(ended) else math.nan


def _accepted(rows: Rows) -> np.ndarray:
    return rows.all["accepted"].to_numpy(bool)


def _kl_target(rows: Rows) -> float:
    accepted = _accepted(rows)
    return float(rows.all["kl_target"].to_numpy(np.float64)[accepted].mean()) if accepted.any() else math.nan


def _allowed(name: str, when: str, *, stable: bool) -> Statistic:
    """The share of updates, in percent, of a gate whose values are stable in every round, or in none."""

    def compute(rows: Rows) -> float:
        bounds = rows.all[["k_min", "k_max"]].to_numpy()
        updates = held = 0
        for k_min, k_max in bounds:
            held += 1
            if held >= k_max or (stable and held >= k_min):
                updates, held = updates + 1, 0
        return 100.0 * updates / len(bounds)

    about = f"share of rounds that would update the target policy if the values were {when} stable"
    measure = Measure(("k_min", "k_max"), compute)
    return Statistic(name, f"Updates if {when} stable, %", about, measure, (replace(OWN, in_print=False),), PERCENTAGE)


def has_threshold(variant: str) -> bool:
    """Whether a variant compares `diff` with a threshold; plain and static ones do not."""
    return pace_of(variant) == "dynamic"


def _diff(statistic: Callable[[np.ndarray], float | np.floating], least: int) -> Measure:
    """A statistic of diff / threshold over rounds, in percent; NaN with fewer than `least` rounds."""

    def compute(rows: Rows) -> float:
        diff = 100 * rows.all["diff_over_threshold"].to_numpy(np.float64)
        diff = diff[np.isfinite(diff)] if has_threshold(rows.algo) else diff[:0]
        return float(statistic(diff)) if len(diff) >= least else math.nan

    return Measure(("diff_over_threshold",), compute)


def _score_against_ppo(row: Row, name: str) -> Cell:
    """`104.2 ± 3.1 [98.1, 110.0]*`"""
    shown, key = with_spread(row, name, "score_spread", places=1)
    return Cell(shown + "*" * bool(row.get("significant")), key)


_POSITIVE = replace(MULTIPLE, about="{0}, in multiples of PPO's if that is positive")
_LATE = "over the last 10 % of steps (the paper: at convergence)"
_SCORE_VIEW = replace(
    PERCENT,
    about="mean ± standard deviation over seeds, in percent of PPO's mean; * if Welch's test finds p < 0.1",
    form=_score_against_ppo,
)
_UPDATES_VIEW = View(
    "updates_pct_of_ppo",
    "Updates, % of PPO",
    partial(multiple_of_ppo, factor=100.0),
    "rounds that updated the target policy, in percent of PPO's",
)

STATISTICS: tuple[Statistic, ...] = (
    Statistic(
        "score",
        "Score",
        "mean return of the episodes that ended in the last 10 % of steps",
        Measure(("episode_return", "episodes"), lambda rows: member_score(rows.late)),
        (_SCORE_VIEW, replace(OWN, in_print=False), OF_PPO),
        partial(with_spread, spread="score_std"),
    ),
    Statistic(
        "area",
        "Mean return over training",
        "area under the learning curve: mean return over all steps",
        Measure(("episode_return", "episodes"), learning_speed.area),
        (replace(PERCENT, in_print=False),),
    ),
    Statistic(
        "steps_to_goal",
        "Steps to 90 % of PPO's gain",
        "steps until the return is 90 % of the way from its first value to PPO's mean score in the same run; all steps "
        "of a member that never gets there",
        Measure(("episode_return", "episodes"), learning_speed.steps_to_goal),
        (replace(MULTIPLE, in_print=False),),
        text.whole_number,
    ),
    Statistic(
        "final_return",
        "Final return",
        "mean return of the episodes that ended in the last round, or in the last that had any",
        Measure(("episode_return", "episodes"), _final_return),
    ),
    Statistic(
        "target_score",
        "Target policy's return",
        "mean return of the target policy over whole episodes",
        Measure((), lambda rows: rows.target_return),
        (replace(PERCENT, in_print=False),),
    ),
    Statistic(
        "updates",
        "Target updates",
        "number of rounds that updated the target policy",
        Measure(("accepted",), lambda rows: float(_accepted(rows).sum())),
        form=PERCENTAGE,
    ),
    Statistic(
        "updates_pct",
        "Updates, % of rounds",
        "share of rounds that updated the target policy",
        Measure(("accepted",), lambda rows: 100.0 * float(_accepted(rows).mean())),
        (_UPDATES_VIEW,),
        PERCENTAGE,
    ),
    _allowed("updates_least_pct", "never", stable=False),
    _allowed("updates_most_pct", "always", stable=True),
    Statistic(
        "env_steps",
        "Steps",
        "environment steps of each member",
        Measure((), lambda rows: float(rows.all["env_steps"].max())),
        form=text.whole_number,
    ),
    Statistic(
        "diff_median_pct",
        "diff / threshold, median %",
        "median over rounds of diff / threshold; at most 100 counts as stable",
        _diff(np.median, 1),
        (OWN,),
        PERCENTAGE,
    ),
    Statistic(
        "diff_std_pct",
        "diff / threshold, std %",
        "standard deviation over rounds of diff / threshold",
        _diff(partial(np.std, ddof=1), 2),
        (OWN,),
        PERCENTAGE,
    ),
    Statistic(
        "value_loss", "Value loss, all rounds", "mean value loss over all rounds", mean("value_loss"), (MULTIPLE,)
    ),
    Statistic(
        "value_loss_late", "Value loss, last 10 %", f"mean value loss {_LATE}", late_mean("value_loss"), (MULTIPLE,)
    ),
    Statistic(
        "kl_target",
        "KL target",
        "size of a target update: mean KL(before, after) over the rounds that updated the target policy",
        Measure(("kl_target", "accepted"), _kl_target),
        (MULTIPLE,),
    ),
    Statistic(
        "kl_behaviour",
        "KL behaviour",
        "size of a round's update of the behaviour policy: mean KL(before, after) over all rounds",
        mean("kl_behaviour"),
        (MULTIPLE,),
    ),
    Statistic(
        "ratio_ess",
        "Effective sample size",
        "mean over rounds of the effective sample size of the importance ratios, as a share of the batch",
        mean("ratio_ess"),
        (replace(OWN, in_print=False),),
    ),
    Statistic(
        "kl_drift",
        "Drift of the behaviour policy",
        "how far the data are from the policy they evaluate: mean KL(target, behaviour) over all rounds",
        mean("kl_drift"),
        (replace(OWN, in_print=False),),
        optional=True,
    ),
    Statistic("entropy", "Entropy, all rounds", "mean entropy over all rounds", mean("entropy"), (_POSITIVE, OF_PPO)),
    Statistic("entropy_late", "Entropy, last 10 %", f"mean entropy {_LATE}", late_mean("entropy"), (_POSITIVE, OF_PPO)),
    Statistic(
        "temperature",
        "Temperature, last 10 %",
        "mean over the last 10 % of steps of the weight of the entropy",
        late_mean("temperature"),
        (replace(MULTIPLE, in_print=False),),
        optional=True,
    ),
    Statistic(
        "q",
        "Action value, last 10 %",
        "mean over the last 10 % of steps of the learned values of the actions in the data",
        late_mean("q"),
        (replace(OWN, in_print=False), OF_PPO),
        optional=True,
    ),
)


def present(table: pd.DataFrame) -> list[Statistic]:
    """The statistics that a table of members has; see `Statistic.optional`."""
    return [each for each in STATISTICS if each.name in table]


def metrics_read() -> set[str]:
    """Every metric that a column is computed from."""
    return {metric for statistic in STATISTICS for metric in statistic.measure.reads}
