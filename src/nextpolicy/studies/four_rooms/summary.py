"""Summaries: one row per member, medians over seeds with bootstrap intervals, and shares of seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from nextpolicy.config import Member
from nextpolicy.report.bootstrap import bounds, resample
from nextpolicy.studies.four_rooms import proxy
from nextpolicy.tabular import solve
from nextpolicy.tabular.mdp import TabularMDP

LATE = 60  # drops of the value from this round on count as late
RESAMPLES = 4000
CLOSE = 0.01  # a final value this close to V*(s0) counts as near optimal
FEWEST = 6  # seeds of a 95 % interval: between the lowest and highest of five, a median lies with only 93.75 %
FAILED = 0.5  # a final value below this share of V*(s0) counts as a failure


class Interval(NamedTuple):
    """A median and its 95 % percentile-bootstrap interval over seeds, which is NaN for fewer than `FEWEST`."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        interval = "" if np.isnan(self.low) else f" [{self.low:.4g}, {self.high:.4g}]"
        return f"{self.median:.4g}{interval}"


def median_interval(values: Sequence[float] | np.ndarray, seed: int = 0) -> Interval:
    """The median over seeds with its interval. Both are NaN if there are no values or some are not finite."""
    sample = np.asarray(values, np.float64).ravel()
    if not len(sample) or not np.isfinite(sample).all():
        return Interval(np.nan, np.nan, np.nan)
    if len(sample) < FEWEST:
        return Interval(float(np.median(sample)), np.nan, np.nan)
    return Interval(float(np.median(sample)), *bounds(np.median(resample(sample, seed, RESAMPLES), axis=1)))


def member_rows(
    mdp: TabularMDP, members: Sequence[Member], metrics: Mapping[str, np.ndarray], exact: Mapping[str, np.ndarray]
) -> list[dict[str, Any]]:
    """One row per member; `metrics` (at least accepted, diff, diff_scale and KLs) and `exact` are [M, K]."""
    best = float(solve.optimal(mdp).V @ mdp.start)
    rows = []
    for m, member in enumerate(members):
        one = {name: np.asarray(column)[m] for name, column in {**metrics, **exact}.items()}
        rows.append({"algo": member.algo, "seed": member.seed, "optimal_value": best, **_row(best, one)})
    return rows


def _row(best: float, one: Mapping[str, np.ndarray]) -> dict[str, Any]:
    value, accepted = one["value_behaviour"], one["accepted"].astype(bool)
    final = float(value[-1])
    return {
        "final_value": final,
        "final_target_value": float(one["value_target"][-1]),
        "near_optimal": bool(best - final <= CLOSE),
        "failed": not final >= FAILED * best,  # NaN is a failure too
        "value_at_60": float(value[min(LATE, len(value)) - 1]),
        "largest_late_drop": _largest_drop(value[LATE:]),
        "updates": int(accepted.sum()),
        "first_update": int(np.argmax(accepted)) if accepted.any() else -1,
        "kl_target": _mean(one["kl_target"][accepted]),
        "kl_behaviour": _mean(one["kl_behaviour"]),
        "kl_ratio": _mean(one["kl_target"][accepted]) / _mean(one["kl_behaviour"]),
        "gap_bottom_left": float(one["gap_bottom_left"][-1]),
        "gap_target_bottom_left": float(one["gap_target_bottom_left"][-1]),
        "top_from_doorway": float(one["top_from_doorway"][-1]),
        "top_from_start": float(one["top_from_start"][-1]),
        "overestimate_bottom_left": float(one["value_bias_bottom_left"].max()),
        "msve_next": _mean(one["msve_next_alive"]),
        "tv_visitation": _mean(one["tv_visitation_alive"]),
        "tv_policy_max": _mean(one["tv_policy_max"]),
        "certificates": len(value),
        "certificates_held": int(one["holds"].sum()),
        "certificates_vacuous": int(one["vacuous"].sum()),
        "npa_vacuous": int(one["npa_vacuous"].sum()),
        "theorem1_vacuous": int(one["theorem1_vacuous"].sum()),
        "assumptions_met": int(one["assumptions_met"].sum()),
        **proxy.correlations(one),
    }


def _mean(values: np.ndarray) -> float:
    return float(np.mean(values)) if len(values) else float("nan")


def _largest_drop(values: np.ndarray) -> float:
    """The largest drop below the running maximum; NaN for an empty series."""
    return float((np.maximum.accumulate(values) - values).max()) if len(values) else float("nan")


def share_interval(count: int, total: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share: `count` of `total` seeds."""
    z, share = 1.959964, count / total
    centre, width = share + z * z / (2 * total), z * np.sqrt(share * (1 - share) / total + (z / (2 * total)) ** 2)
    low, high = (float((centre + side * width) / (1 + z * z / total)) for side in (-1, 1))
    return max(low, 0.0), min(high, 1.0)


def of_algo(rows: Sequence[Mapping[str, Any]], algo: str, column: str) -> np.ndarray:
    """A column of one algorithm's members, ordered by seed."""
    return np.asarray([r[column] for r in sorted(rows, key=lambda r: r["seed"]) if r["algo"] == algo], np.float64)


def paired(rows: Sequence[Mapping[str, Any]], column: str, first: str, second: str) -> np.ndarray:
    """first - second for each seed."""
    return of_algo(rows, first, column) - of_algo(rows, second, column)
