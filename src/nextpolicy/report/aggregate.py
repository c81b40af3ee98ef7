"""From scores of single runs to the rows of a table: percentages of PPO, tests, aggregates and intervals.

Pure functions on numpy arrays and pandas tables. A score matrix of one variant is a sequence with one entry per
environment, `scores[env][seed]`; environments may have different numbers of seeds. A nested mapping
`scores[env][variant]` of such entries is what `percent_table` takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy.stats

Scores = Sequence[np.ndarray] | np.ndarray
PAPER_SUITES = ("brax", "atari")
PAPER_VARIANTS = ("static", "dynamic")


class Welch(NamedTuple):
    """Welch's two-sided t-test of equal means; `significant` means p_value < the level asked for."""

    statistic: float
    p_value: float
    significant: bool


class AggregateRow(NamedTuple):
    """One variant over a suite of environments, in percent of PPO; the KL fields are multiples of PPO's."""

    median_pct_ppo: float  # or an array, where there are leading axes
    q1: float
    q3: float
    geomean_pct_ppo: float
    geomean_spread: float  # exp of the standard deviation of the logarithms: multiply or divide the mean by it
    beat_ppo_pct: float  # share of environments strictly above 100
    kl_target_x_ppo: float
    kl_behaviour_x_ppo: float


class Interval(NamedTuple):
    """A statistic and its bootstrap interval."""

    estimate: float
    low: float
    high: float


def percent_of_ppo(score: np.ndarray | float, ppo_mean: float) -> np.ndarray:
    """100 + 100 (score - ppo_mean) / |ppo_mean|.

    For a positive mean this is the plain percentage 100 score / ppo_mean. For a negative one, where that would
    call a worse score a larger percentage, an improvement still counts as above 100. A mean of 0 gives NaN.
    """
    score = np.asarray(score, np.float64)
    if ppo_mean == 0:
        return np.full_like(score, np.nan)
    return 100.0 + 100.0 * (score - ppo_mean) / abs(ppo_mean)


def welch(a: np.ndarray, b: np.ndarray, p: float = 0.1) -> Welch:
    """Do the seeds of `a` and of `b` have different means, at level `p`? Variances may differ.

    Two samples without any spread give p = 1 if they are equal and p = 0 if not. Fewer than two seeds on either
    side, or a score that is not a number, give NaN and are not significant.
    """
    a, b = np.asarray(a, np.float64).ravel(), np.asarray(b, np.float64).ravel()
    if not 0 < p < 1:
        raise ValueError(f"p: got {p}, takes a number in (0, 1)")
    if min(len(a), len(b)) < 2 or not (np.all(np.isfinite(a)) and np.all(np.isfinite(b))):
        return Welch(np.nan, np.nan, False)
    if np.ptp(a) == 0 and np.ptp(b) == 0:  # scipy divides 0 by 0 here
        difference = a[0] - b[0]
        return Welch(0.0, 1.0, False) if difference == 0 else Welch(np.copysign(np.inf, difference), 0.0, True)
    # From means and deviations: `ttest_ind` itself warns of lost precision where only one side has no spread.
    moments = (x for s in (a, b) for x in (s.mean(), s.std(ddof=1), len(s)))
    result = scipy.stats.ttest_ind_from_stats(*moments, equal_var=False)
    return Welch(float(result.statistic), float(result.pvalue), bool(result.pvalue < p))


def geometric_mean(values: np.ndarray) -> np.ndarray:
    """exp(mean of log) over the last axis; NaN if any value is not positive, since no geometric mean exists then."""
    return np.exp(np.mean(_logarithms(values), axis=-1))


def geometric_spread(values: np.ndarray) -> np.ndarray:
    """exp(standard deviation of log, n - 1) over the last axis; NaN if a value is not positive, or for only one."""
    logarithms = _logarithms(values)
    if logarithms.shape[-1] < 2:
        return np.full(logarithms.shape[:-1], np.nan)[()]
    return np.exp(np.std(logarithms, ddof=1, axis=-1))


def aggregate_row(table: pd.DataFrame) -> AggregateRow:
    """The row of a suite from its per-environment table.

    `table` has one line per environment and the columns `score_pct_of_ppo`, `kl_target_x_ppo` and
    `kl_behaviour_x_ppo`. Quartiles interpolate linearly. A percentage that is not positive (possible where scores
    may be negative) leaves the median as it is and makes the geometric mean NaN.
    """
    needed = ("score_pct_of_ppo", "kl_target_x_ppo", "kl_behaviour_x_ppo")
    missing = [name for name in needed if name not in table]
    if missing:
        raise ValueError(f"table: got no column {', '.join(missing)}, takes {', '.join(needed)}")
    if len(table) == 0:
        raise ValueError("table: got no rows, takes one per environment")
    return aggregate_of(*(table[name].to_numpy(np.float64) for name in needed))


def aggregate_of(score: np.ndarray, kl_target: np.ndarray, kl_behaviour: np.ndarray) -> AggregateRow:
    """The row of a suite from its columns, each [..., environments]; leading axes (resamples) stay as they are."""
    if score.shape[-1] == 0:
        raise ValueError("score: got no entries, takes one per environment")
    q1, median, q3 = np.percentile(score, [25, 50, 75], axis=-1)
    return AggregateRow(
        median_pct_ppo=median,
        q1=q1,
        q3=q3,
        geomean_pct_ppo=geometric_mean(score),
        geomean_spread=geometric_spread(score),
        beat_ppo_pct=100.0 * np.mean(score > 100.0, axis=-1),
        kl_target_x_ppo=geometric_mean(kl_target),
        kl_behaviour_x_ppo=geometric_mean(kl_behaviour),
    )


def percent_table(scores: Mapping[str, Mapping[str, np.ndarray]], variant: str, ppo: str = "ppo") -> pd.DataFrame:
    """Per environment: mean score of `variant` in percent of PPO's mean, its spread over seeds, and Welch's test.

    `scores[env][variant]` holds one score per seed. The spread is the standard deviation over seeds (n - 1; NaN
    for one seed) in the same percent; `significant` is Welch's test of the raw scores at p = 0.1.
    """
    rows = []
    for env, by_variant in scores.items():
        for name in (variant, ppo):
            if name not in by_variant:
                raise ValueError(f"scores: got no {name!r} for {env!r}, takes scores of {variant!r} and {ppo!r}")
            if len(by_variant[name]) == 0:
                raise ValueError(f"scores: got no seeds of {name!r} for {env!r}, takes at least one")
        ours, theirs = (np.asarray(by_variant[name], np.float64) for name in (variant, ppo))
        percent = percent_of_ppo(ours, float(np.mean(theirs)))
        spread = float(np.std(percent, ddof=1)) if len(percent) > 1 else float("nan")
        rows.append((env, float(np.mean(percent)), spread, *welch(ours, theirs)[1:]))
    return pd.DataFrame(rows, columns=["env", "score_pct_of_ppo", "score_spread", "p_value", "significant"])


def iqm(scores: Scores) -> float:
    """Interquartile mean: the mean of all runs of all environments without the lowest and the highest quarter.

    The number left out at each end is n / 4 rounded down, as `scipy.stats.trim_mean` does it.
    """
    everything = np.sort(np.concatenate([[], *(np.ravel(np.asarray(s, np.float64)) for s in scores)]))
    if len(everything) == 0:
        raise ValueError("scores: got no runs, takes at least one")
    trimmed = len(everything) // 4
    return float(np.mean(everything[trimmed : len(everything) - trimmed]))


def stratified_bootstrap(
    scores: Scores,
    statistic: Callable[[list[np.ndarray]], float] = iqm,
    *,
    seed: int,
    reps: int = 2000,
    level: float = 0.95,
) -> Interval:
    """Percentile bootstrap interval of `statistic(scores)`, resampling seeds within each environment.

    Environments are the strata: every resample keeps all of them, each with as many runs as it has. The same
    `seed` gives the same interval; nothing else is random.
    """
    strata = [np.ravel(np.asarray(s, np.float64)) for s in scores]
    if not strata or any(len(s) == 0 for s in strata):
        raise ValueError("scores: got an environment without runs, takes at least one run for every environment")
    if reps < 1:
        raise ValueError(f"reps: got {reps}, takes a whole number of at least 1")
    if not 0 < level < 1:
        raise ValueError(f"level: got {level}, takes a number in (0, 1)")
    rng = np.random.default_rng(seed)
    resampled = [statistic([s[rng.integers(len(s), size=len(s))] for s in strata]) for _ in range(reps)]
    low, high = np.quantile(resampled, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(statistic(strata)), float(low), float(high))


def paper_tables() -> dict[str, pd.DataFrame]:
    """The source's result tables: `aggregate`, and `brax_static` .. `atari_dynamic`, one line per environment.

    The first column of the per-environment tables is called `env` here, whichever the suite.
    """
    folder = resources.files("nextpolicy") / "data" / "paper"
    names = ["aggregate", *(f"{suite}_{variant}" for suite in PAPER_SUITES for variant in PAPER_VARIANTS)]
    tables = {}
    for name in names:
        with (folder / f"{name}.csv").open(encoding="utf-8") as file:
            tables[name] = pd.read_csv(file).rename(columns={"game": "env"})
    return tables


def _logarithms(values: np.ndarray) -> np.ndarray:
    """log, or NaN for what is not positive."""
    values = np.asarray(values, np.float64)
    return np.log(np.where(values > 0, values, np.nan))
