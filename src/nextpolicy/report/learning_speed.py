"""How fast a member learned: the area under its learning curve, and the steps it took to nearly reach PPO's score."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pandas as pd

from nextpolicy.report.statistic import Rows
from nextpolicy.scores import member_score, score_digits

SHARE = 0.9  # of the way from the first returns to PPO's score
WINDOW = 50  # returns are averaged over a fiftieth of the rounds


def goal(frames: Iterable[pd.DataFrame], ppo_late: Iterable[pd.DataFrame]) -> float:
    """The return at `SHARE` of the way from the first round that ended episodes to PPO's mean score.

    `frames` are the metrics of all members of a run, `ppo_late` the late ones of its PPO members. NaN without PPO, or
    if PPO's score is not above the first returns.
    """
    scores = [member_score(late) for late in ppo_late]
    first = [frame.loc[frame["episodes"] > 0, "episode_return"].head(1) for frame in frames]
    start = float(pd.concat(first).mean()) if first else math.nan
    reached = float(np.mean(scores)) if scores else math.nan
    return start + SHARE * (reached - start) if reached > start else math.nan


def area(rows: Rows) -> float:
    """Mean return over all steps from the first episode that ended; a round without any has that of the one before."""
    ended = rows.all["episodes"].to_numpy() > 0
    curve = pd.Series(np.where(ended, rows.all["episode_return"].to_numpy(np.float64), np.nan)).ffill()
    return score_digits(float(curve.mean())) if ended.any() else math.nan


def steps_to_goal(rows: Rows) -> float:
    """Steps until the mean return over a fiftieth of the rounds reaches the goal; all steps if it never does."""
    if math.isnan(rows.goal):
        return math.nan
    episodes = rows.all["episodes"].to_numpy(np.float64)
    total = np.where(episodes > 0, rows.all["episode_return"].to_numpy(np.float64), 0.0) * episodes
    window = max(1, len(episodes) // WINDOW)
    sums, counts = (pd.Series(x).rolling(window).sum().to_numpy() for x in (total, episodes))
    reached = (counts > 0) & (sums >= rows.goal * counts)
    steps = rows.all["env_steps"].to_numpy()
    return float(steps[reached.argmax()] if reached.any() else steps[-1])
