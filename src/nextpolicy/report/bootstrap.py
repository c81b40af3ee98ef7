"""Percentile-bootstrap intervals over seeds. The same `seed` gives the same interval; nothing else is random."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

LEVEL = 0.95
REPS = 1000
Scores = Sequence[np.ndarray] | Sequence[Sequence[float]] | np.ndarray


class Interval(NamedTuple):
    """A statistic and its bootstrap interval."""

    estimate: float
    low: float
    high: float


def resample(values: np.ndarray, seed: int | Sequence[int], reps: int = REPS) -> np.ndarray:
    """`reps` samples of the values with replacement, [reps, len(values)]."""
    rng = np.random.default_rng(seed)
    return values[rng.integers(len(values), size=(reps, len(values)))]


def bounds(draws: np.ndarray, level: float = LEVEL) -> tuple[float, float]:
    """The central interval that holds `level` of the finite draws; NaN if fewer than half of them are finite."""
    finite = draws[np.isfinite(draws)]
    if len(finite) < max(1, len(draws) // 2):
        return np.nan, np.nan
    low, high = np.quantile(finite, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def iqm(scores: Scores) -> float:
    """Interquartile mean: the mean of all runs of all environments without the lowest and the highest quarter.

    n // 4 runs are left out at each end, as in `scipy.stats.trim_mean`.
    """
    everything = np.sort(np.concatenate([[], *(np.ravel(np.asarray(s, np.float64)) for s in scores)]))
    if len(everything) == 0:
        raise ValueError("scores: expected at least one run, got none")
    trimmed = len(everything) // 4
    return float(np.mean(everything[trimmed : len(everything) - trimmed]))


def stratified_bootstrap(
    scores: Scores,
    statistic: Callable[[list[np.ndarray]], float] = iqm,
    *,
    seed: int,
    reps: int = 2000,
    level: float = LEVEL,
) -> Interval:
    """Interval of `statistic(scores)`, where `scores[env][seed]` is resampled within each environment.

    Environments are the strata: every resample keeps all of them, each with as many runs as it has.
    """
    strata = [np.ravel(np.asarray(s, np.float64)) for s in scores]
    if not strata or any(len(s) == 0 for s in strata):
        raise ValueError("scores: expected at least one run for every environment, got an environment without runs")
    if reps < 1:
        raise ValueError(f"reps: expected a whole number of at least 1, got {reps}")
    if not 0 < level < 1:
        raise ValueError(f"level: expected a number in (0, 1), got {level}")
    rng = np.random.default_rng(seed)
    draws = [statistic([s[rng.integers(len(s), size=len(s))] for s in strata]) for _ in range(reps)]
    return Interval(float(statistic(strata)), *bounds(np.asarray(draws), level))
