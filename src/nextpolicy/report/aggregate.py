"""Percentages and multiples of PPO, Welch's test, and aggregates over environments; and the paper's own tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy.optimize
import scipy.stats

Numbers = np.ndarray | Sequence[float] | float
PAPER_SUITES = ("brax", "atari")
PAPER_VARIANTS = ("static", "dynamic")


class Welch(NamedTuple):
    """Welch's two-sided t-test of equal means; `significant` means that `p_value` is below the level."""

    statistic: float
    p_value: float
    significant: bool


class AggregateRow(NamedTuple):
    """One variant over the environments of a suite, in percent of PPO; the KL fields are multiples of PPO's.

    Each field is a number, or an array over the leading axes (resamples).
    """

    median_pct_ppo: np.ndarray
    q1: np.ndarray
    q3: np.ndarray
    geomean_pct_ppo: np.ndarray
    geomean_spread: np.ndarray  # exp of the standard deviation of the logarithms
    beat_ppo_pct: np.ndarray  # share of environments strictly above 100
    kl_target_x_ppo: np.ndarray
    kl_behaviour_x_ppo: np.ndarray


def percent_of_ppo(score: Numbers, ppo_mean: Numbers) -> np.ndarray:
    """100 + 100 (score - ppo_mean) / |ppo_mean|, elementwise.

    For a positive mean this is 100 score / ppo_mean. For a negative mean, where that ratio would rank a worse score
    higher, an improvement still counts as above 100. A mean of 0 gives NaN.
    """
    score, mean = np.asarray(score, np.float64), np.asarray(ppo_mean, np.float64)
    return 100.0 + 100.0 * (score - mean) / np.where(mean == 0, np.nan, np.abs(mean))


def multiple_of_ppo(ours: Numbers, theirs: Numbers, factor: float = 1.0) -> np.ndarray:
    """factor * ours / theirs, elementwise; NaN unless PPO's number is positive (entropies may be negative)."""
    ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    return factor * ours / np.where(theirs > 0, theirs, np.nan)


def welch(a: Numbers, b: Numbers, p: float = 0.1) -> Welch:
    """Welch's test of whether the seeds of `a` and `b` have different means, at level `p`.

    Two samples without spread give p = 1 if they are equal and p = 0 otherwise. Fewer than two seeds on either side,
    or a score that is not finite, give NaN and are not significant.
    """
    a, b = np.asarray(a, np.float64).ravel(), np.asarray(b, np.float64).ravel()
    if not 0 < p < 1:
        raise ValueError(f"p: expected a number in (0, 1), got {p}")
    if min(len(a), len(b)) < 2 or not (np.all(np.isfinite(a)) and np.all(np.isfinite(b))):
        return Welch(np.nan, np.nan, False)
    if np.ptp(a) == 0 and np.ptp(b) == 0:  # scipy would divide 0 by 0
        difference = a[0] - b[0]
        return Welch(0.0, 1.0, False) if difference == 0 else Welch(np.copysign(np.inf, difference), 0.0, True)
    # From the moments: `ttest_ind` warns about lost precision if one side has no spread.
    moments = (x for s in (a, b) for x in (s.mean(), s.std(ddof=1), len(s)))
    result = scipy.stats.ttest_ind_from_stats(*moments, equal_var=False)
    return Welch(float(result.statistic), float(result.pvalue), bool(result.pvalue < p))


def detectable(a: Numbers, b: Numbers, p: float = 0.05, power: float = 0.8) -> float:
    """The true difference of means that Welch's test finds at level `p` with probability `power`.

    Spreads and numbers of seeds are those of `a` and `b`, and scores are taken as normal: the test's statistic then
    has a noncentral t distribution. NaN for fewer than two seeds on either side or scores that are not finite.
    """
    a, b = np.asarray(a, np.float64).ravel(), np.asarray(b, np.float64).ravel()
    if min(len(a), len(b)) < 2 or not (np.all(np.isfinite(a)) and np.all(np.isfinite(b))):
        return float("nan")
    parts = [float(np.var(s, ddof=1)) / len(s) for s in (a, b)]
    if sum(parts) == 0:
        return 0.0
    freedom = sum(parts) ** 2 / sum(part**2 / (len(s) - 1) for part, s in zip(parts, (a, b), strict=True))
    least = scipy.stats.t.isf(p / 2, freedom)
    # The noncentral t distribution as a mean over estimates of the standard error; scipy's `nct` fails for few seeds.
    errors = np.sqrt(scipy.stats.chi2.ppf((np.arange(2000) + 0.5) / 2000, freedom) / freedom)
    found = lambda shift: float(np.mean(scipy.stats.norm.sf(least * errors - shift)))  # noqa: E731
    shift = scipy.optimize.brentq(lambda s: found(s) - power, 0.0, 5 * least + 10.0)
    return float(shift * np.sqrt(sum(parts)))


def geometric_mean(values: np.ndarray) -> np.ndarray:
    """exp(mean of log) over the last axis; NaN if any value is not positive."""
    return np.exp(np.mean(_logarithms(values), axis=-1))


def geometric_spread(values: np.ndarray) -> np.ndarray:
    """exp(standard deviation of log, n - 1) over the last axis; NaN if a value is not positive or there is only one."""
    logarithms = _logarithms(values)
    if logarithms.shape[-1] < 2:
        return np.full(logarithms.shape[:-1], np.nan)
    return np.exp(np.std(logarithms, ddof=1, axis=-1))


def aggregate_row(table: pd.DataFrame) -> AggregateRow:
    """The aggregate of a table with one row per environment; see `aggregate_of`."""
    needed = ("score_pct_of_ppo", "kl_target_x_ppo", "kl_behaviour_x_ppo")
    missing = [name for name in needed if name not in table]
    if missing:
        raise ValueError(f"table: expected columns {', '.join(needed)}, got none named {', '.join(missing)}")
    return aggregate_of(*(table[name].to_numpy(np.float64) for name in needed))


def aggregate_of(score: np.ndarray, kl_target: np.ndarray, kl_behaviour: np.ndarray) -> AggregateRow:
    """The aggregate over the last axis of each argument, [..., environments].

    Quartiles interpolate linearly. A percentage that is not positive (scores may be negative) makes the geometric mean
    NaN and does not affect the median.
    """
    if score.shape[-1] == 0:
        raise ValueError("score: expected at least one environment, got none")
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
    """Mean score of `variant` in percent of PPO's mean, its standard deviation over seeds, and Welch's test.

    `detectable_pct` is the `detectable` difference in percentage points.

    `scores[env][variant]` holds one score per seed; the table has one row per environment. The standard deviation
    (n - 1; NaN for one seed) is in the same percent; Welch's test is of the raw scores, at p = 0.1.
    """
    rows = []
    for env, by_variant in scores.items():
        for name in (variant, ppo):
            if name not in by_variant:
                raise ValueError(f"scores: expected {variant!r} and {ppo!r} for {env!r}, got no {name!r}")
            if len(by_variant[name]) == 0:
                raise ValueError(f"scores: expected at least one seed of {name!r} for {env!r}, got none")
        ours, theirs = (np.asarray(by_variant[name], np.float64) for name in (variant, ppo))
        percent = percent_of_ppo(ours, float(np.mean(theirs)))
        spread = float(np.std(percent, ddof=1)) if len(percent) > 1 else float("nan")
        least = float(multiple_of_ppo(detectable(ours, theirs), abs(float(np.mean(theirs))), 100.0))
        rows.append((env, float(np.mean(percent)), spread, *welch(ours, theirs)[1:], least))
    names = ["env", "score_pct_of_ppo", "score_spread", "p_value", "significant", "detectable_pct"]
    return pd.DataFrame(rows, columns=names)


def paper_tables() -> dict[str, pd.DataFrame]:
    """The paper's result tables: `aggregate`, and `brax_static` .. `atari_dynamic` with one row per `env`."""
    folder = resources.files("nextpolicy") / "data" / "paper"
    names = ["aggregate", *(f"{suite}_{variant}" for suite in PAPER_SUITES for variant in PAPER_VARIANTS)]
    tables = {}
    for name in names:
        with (folder / f"{name}.csv").open(encoding="utf-8") as file:
            tables[name] = pd.read_csv(file).rename(columns={"game": "env"})
    return tables


def _logarithms(values: np.ndarray) -> np.ndarray:
    """log; NaN for values that are not positive."""
    values = np.asarray(values, np.float64)
    return np.log(np.where(values > 0, values, np.nan))
