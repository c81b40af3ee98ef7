"""Does the gate's diff track what it stands for? Rank correlations with exact quantities over the rounds of a member.

The paper proposes diff_k as a proxy of the critic's error on the data, epsilon(mu_k, q_k), and of the distance of
successive visitations, d_TV(mu_{k-1}, mu_k). Here diff is relative to the scale of the targets, as the gate uses it.
All three fall during training, so each correlation is also given for the ranks without their linear trend over rounds.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from scipy.stats import rankdata

TRACKED = {  # column -> (exact quantity, rounds by which it precedes diff, description)
    "error": ("epsilon_train", 0, "the critic's error on the data"),
    "next_error": ("epsilon_next", 0, "its error on the next policy's data"),
    "visitation": ("tv_visitation_alive", 1, "TV of the visitation from that of the round before"),
}


def correlations(one: Mapping[str, np.ndarray]) -> dict[str, float]:
    """`diff_<column>` and `diff_<column>_detrended` of one member, whose columns are [K]; NaN without variation."""
    with np.errstate(divide="ignore", invalid="ignore"):
        diff = one["diff"] / one["diff_scale"]
    found = {}
    for column, (name, lag, _) in TRACKED.items():
        x, y = diff[lag:], one[name][: len(diff) - lag]
        found[f"diff_{column}"] = rank_correlation(x, y)
        found[f"diff_{column}_detrended"] = rank_correlation(x, y, detrend=True)
    return found


def rank_correlation(x: np.ndarray, y: np.ndarray, *, detrend: bool = False) -> float:
    """Spearman's correlation; with `detrend`, of ranks minus their least-squares line over the index.

    The latter is Spearman's partial correlation given the index.
    """
    if len(x) < 4 or not (np.isfinite(x).all() and np.isfinite(y).all()):
        return float("nan")
    ranks = [rankdata(values) - (len(values) + 1) / 2 for values in (x, y)]
    if detrend:
        time = np.arange(len(x)) - (len(x) - 1) / 2
        ranks = [r - (r @ time) / (time @ time) * time for r in ranks]
    a, b = ranks
    norm = np.sqrt((a @ a) * (b @ b))
    return float(a @ b / norm) if norm > 1e-9 * len(x) else float("nan")
