"""The score of a member: its mean return over the last tenth of its steps."""

from __future__ import annotations

import numpy as np
import pandas as pd

SCORE_SHARE = 0.1  # the last share of a member's steps that counts


def late_rows(frame: pd.DataFrame, total_steps: int) -> pd.DataFrame:
    """The rows in the last `SCORE_SHARE` of a run of `total_steps` environment steps."""
    return frame[frame["env_steps"] > (1 - SCORE_SHARE) * total_steps]


def member_score(late: pd.DataFrame) -> float:
    """Mean return of the episodes that ended in a member's `late_rows`, each counted once; NaN if none ended."""
    episodes = late["episodes"].to_numpy()
    returns = np.where(episodes > 0, late["episode_return"].to_numpy(np.float64), 0.0)
    return score_digits(returns @ episodes / episodes.sum()) if episodes.sum() else np.nan


def score_digits(value: float) -> float:
    """Round to six significant digits. Returns are float32, so further digits are rounding noise."""
    return float(f"{value:.6g}")
