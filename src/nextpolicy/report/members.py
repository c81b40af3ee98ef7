"""One row of numbers for each member of every run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from nextpolicy.config import Member
from nextpolicy.report.runs import Run

SCORE_SHARE = 0.1  # a member's score is its mean return over this last share of its steps

STATISTICS = (
    *("score", "final_return", "updates", "updates_pct", "env_steps", "diff_median_pct", "diff_std_pct"),
    *("value_loss", "value_loss_late", "kl_target", "kl_behaviour", "entropy", "entropy_late", "target_score"),
)


def member_table(runs: Sequence[Run]) -> pd.DataFrame:
    """One row per member of every run: who it is, how it stands (`state`, `reason`), and its statistics.

    score          mean return of the episodes that ended in the last 10 % of its steps, each episode counting once
    final_return   mean return of the episodes that ended in its last round, or in the last that had any
    updates, _pct  rounds that updated the target policy, and their share of all rounds in percent
    *_late         mean over the last 10 % of its steps ("at convergence", as the paper prints them)
    diff_*_pct     median and standard deviation (n - 1) over rounds of diff / threshold, in percent; sv-dynamic only
    kl_target      mean over the rounds that updated the target; the others are means over all rounds
    target_score   mean return of the target policy over whole episodes, where a suite has measured it

    Only a finished run has statistics: what a curve shows half-way is not what it will be. The rest is NaN.
    """
    rows = []
    for run in runs:
        by_member = dict(iter(run.frame.groupby("member")))
        for index, member in enumerate(run.members):
            state, reason, numbers = _standing(run, member, by_member.get(index))
            rows.append((run.suite, run.env, member.variant, member.seed, run.name, state, reason, *numbers.values()))
    return pd.DataFrame(rows, columns=["suite", "env", "variant", "seed", "run", "state", "reason", *STATISTICS])


def _standing(run: Run, member: Member, frame: pd.DataFrame | None) -> tuple[str, str, dict[str, float]]:
    """State, reason and statistics of one member."""
    nothing = dict.fromkeys(STATISTICS, np.nan)
    if run.state != "finished":
        so_far = f"{run.rounds_done} of {run.rounds} rounds done"
        return run.state, run.reason or f"{so_far}{f', last sign {run.last_sign}' * bool(run.last_sign)}", nothing
    if frame is None or len(frame) < run.rounds:
        return "missing", "metrics of some rounds are not in the folder", nothing
    numbers = _statistics(frame, member, run)
    if np.isfinite(numbers["score"]):
        return "finished", "", numbers
    ended = _late(frame, run)["episodes"].sum()
    why = "its returns were not finite" if ended else "no episode ended in the last 10 % of its steps"
    return "no score", why, numbers | {"score": np.nan}


def _late(frame: pd.DataFrame, run: Run) -> pd.DataFrame:
    return frame[frame["env_steps"] > (1 - SCORE_SHARE) * run.total_steps]


def _statistics(frame: pd.DataFrame, member: Member, run: Run) -> dict[str, float]:
    late = _late(frame, run)
    episodes = late["episodes"].to_numpy()
    returns = np.where(episodes > 0, late["episode_return"].to_numpy(np.float64), 0.0)
    accepted = frame["accepted"].to_numpy(bool)
    ended = frame.loc[frame["episodes"] > 0, "episode_return"]
    mean = lambda name, rows=frame: float(rows[name].mean())  # noqa: E731
    diff = 100 * frame["diff_over_threshold"].to_numpy(np.float64)
    diff = diff[np.isfinite(diff)] if member.algo == "sv-dynamic" else diff[:0]
    values = (
        # Returns are recorded in float32: past six digits two members that earned the same would differ by noise.
        float(f"{returns @ episodes / episodes.sum():.6g}") if episodes.sum() else np.nan,
        float(f"{ended.iloc[-1]:.6g}") if len(ended) else np.nan,
        float(accepted.sum()),
        100.0 * float(accepted.mean()),
        float(frame["env_steps"].max()),
        float(np.median(diff)) if len(diff) else np.nan,
        float(np.std(diff, ddof=1)) if len(diff) > 1 else np.nan,
        mean("value_loss"),
        mean("value_loss", late),
        float(frame["kl_target"].to_numpy(np.float64)[accepted].mean()) if accepted.any() else np.nan,
        mean("kl_behaviour"),
        mean("entropy"),
        mean("entropy", late),
        run.evaluation.get(run.members.index(member), np.nan),
    )
    return dict(zip(STATISTICS, values, strict=True))
