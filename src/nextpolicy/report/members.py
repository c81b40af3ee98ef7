"""One row of statistics for each member of every run."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from nextpolicy.config import Member
from nextpolicy.report import columns, learning_speed
from nextpolicy.report.baseline import is_baseline
from nextpolicy.report.runs import Run
from nextpolicy.report.statistic import Rows
from nextpolicy.scores import late_rows

_ABOUT = ["suite", "env", "variant", "seed", "run", "state", "reason"]


def member_table(runs: Sequence[Run]) -> pd.DataFrame:
    """One row per member of every run: who it is, its `state` and the `reason` for it, and `columns.STATISTICS`,
    without optional ones that no member has.

    Members of unfinished runs have no statistics, because they could not be compared with those of finished ones.
    """
    rows = []
    for run in runs:
        by_member = dict(iter(run.frame.groupby("member")))
        goal = _goal(run, by_member)
        for index, member in enumerate(run.members):
            state, reason, numbers = _standing(run, index, member, by_member.get(index), goal)
            rows.append((run.suite, run.env, member.variant, member.seed, run.name, state, reason, *numbers.values()))
    table = pd.DataFrame(rows, columns=[*_ABOUT, *(each.name for each in columns.STATISTICS)])
    absent = [each.name for each in columns.STATISTICS if each.optional and table[each.name].isna().all()]
    return table.drop(columns=absent)


def _goal(run: Run, by_member: dict[int, pd.DataFrame]) -> float:
    """The return that counts as nearly the baseline's score; NaN for an unfinished run, or a copy, which has it."""
    if run.state != "finished" or run.statistics is not None or not {"episode_return", "episodes"} <= set(run.frame):
        return math.nan
    base = [by_member[i] for i, member in enumerate(run.members) if is_baseline(member.algo) and i in by_member]
    return learning_speed.goal(by_member.values(), [late_rows(frame, run.total_steps) for frame in base])


def _standing(
    run: Run, index: int, member: Member, frame: pd.DataFrame | None, goal: float
) -> tuple[str, str, dict[str, float]]:
    """State, reason and statistics of one member."""
    nothing = {each.name: math.nan for each in columns.STATISTICS}
    if run.state != "finished":
        so_far = f"{run.rounds_done} of {run.rounds} rounds done"
        return run.state, run.reason or f"{so_far}{f', last written {run.last_sign}' * bool(run.last_sign)}", nothing
    if frame is None or len(frame) < run.rounds:
        return "missing", "metrics of some rounds are not in the folder", nothing
    late = late_rows(frame, run.total_steps)
    if run.statistics is None:
        rows = Rows(frame, late, member.algo, run.evaluation.get(index, math.nan), goal)
        numbers = {each.name: each.of(rows) for each in columns.STATISTICS}
    else:
        numbers = nothing | {name: float(x) for name, x in run.statistics.iloc[index].items() if name in nothing}
    if np.isfinite(numbers["score"]):
        return "finished", "", numbers
    why = _why_no_score(late) if run.statistics is None else "its run had none"
    return "no score", why, numbers | {"score": math.nan}


def _why_no_score(late: pd.DataFrame) -> str:
    missing = [name for name in ("episode_return", "episodes") if name not in late]
    if missing:
        return f"its metrics have no {' and no '.join(missing)}"
    ended = late["episodes"].sum() > 0
    return "its returns were not finite" if ended else "no episode ended in the last 10 % of its steps"
