"""One row of statistics for each member of every run."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from nextpolicy.config import Member
from nextpolicy.report import columns
from nextpolicy.report.runs import Run
from nextpolicy.report.statistic import Rows
from nextpolicy.runfiles import late_rows

_ABOUT = ["suite", "env", "variant", "seed", "run", "state", "reason"]


def member_table(runs: Sequence[Run]) -> pd.DataFrame:
    """One row per member of every run: who it is, its `state` and the `reason` for it, and `columns.STATISTICS`.

    Members of unfinished runs have no statistics, because they could not be compared with those of finished ones.
    """
    rows = []
    for run in runs:
        by_member = dict(iter(run.frame.groupby("member")))
        for index, member in enumerate(run.members):
            state, reason, numbers = _standing(run, index, member, by_member.get(index))
            rows.append((run.suite, run.env, member.variant, member.seed, run.name, state, reason, *numbers.values()))
    return pd.DataFrame(rows, columns=[*_ABOUT, *(each.name for each in columns.STATISTICS)])


def _standing(run: Run, index: int, member: Member, frame: pd.DataFrame | None) -> tuple[str, str, dict[str, float]]:
    """State, reason and statistics of one member."""
    nothing = {each.name: math.nan for each in columns.STATISTICS}
    if run.state != "finished":
        so_far = f"{run.rounds_done} of {run.rounds} rounds done"
        return run.state, run.reason or f"{so_far}{f', last written {run.last_sign}' * bool(run.last_sign)}", nothing
    if frame is None or len(frame) < run.rounds:
        return "missing", "metrics of some rounds are not in the folder", nothing
    late = late_rows(frame, run.total_steps)
    if run.statistics is None:
        rows = Rows(frame, late, member.algo, run.evaluation.get(index, math.nan))
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
