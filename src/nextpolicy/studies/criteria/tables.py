"""Tables of the criteria study: what each signal tracks, and what the updates of each criterion were worth."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from nextpolicy.report.bootstrap import Interval, resample
from nextpolicy.studies.criteria.study import QUANTITIES, REFERENCE, SIGNALS
from nextpolicy.studies.four_rooms.summary import FEWEST, RESAMPLES, share_interval

OUTCOMES = ("improvement", "harmful", "loss", "steps_to_goal", "mean_value", "final_value")


def interval(values: Sequence[float] | np.ndarray, statistic: Callable[..., np.ndarray] = np.median) -> Interval:
    """A statistic over seeds and its 95 % bootstrap interval, which is NaN for fewer than `FEWEST`.

    Values that are NaN are left out; infinities count.
    """
    sample = np.asarray(values, np.float64)
    sample = sample[~np.isnan(sample)]
    if not len(sample):
        return Interval(np.nan, np.nan, np.nan)
    if len(sample) < FEWEST:
        return Interval(float(statistic(sample)), np.nan, np.nan)
    low, high = np.quantile(statistic(resample(sample, 0, RESAMPLES), axis=1), [0.025, 0.975], method="nearest")
    return Interval(float(statistic(sample)), float(low), float(high))


def signals(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per noise, signal and quantity: medians over seeds of rank correlations, averaged over REFERENCE."""
    rows = rows[rows["variant"].isin(REFERENCE)]
    found = []
    for noise, mine in rows.groupby("noise", sort=False):
        for signal in SIGNALS:
            for quantity in QUANTITIES:
                row: dict[str, object] = {
                    "noise": noise,
                    "signal": signal.removeprefix("signal_"),
                    "quantity": quantity,
                }
                for kind in ("", "~detrended"):
                    by_seed = mine.groupby("seed")[f"{signal}~{quantity}{kind}"].mean()
                    median, low, high = interval(by_seed.to_numpy())
                    name = kind.removeprefix("~") or "correlation"
                    row |= {name: median, f"{name}_low": low, f"{name}_high": high}
                found.append(row | {"seeds": mine["seed"].nunique()})
    return pd.DataFrame(found)


def criteria(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per noise and variant: means over seeds with intervals, medians of steps, and differences."""
    found = []
    for (noise, variant), mine in rows.groupby(["noise", "variant"], sort=False):
        row: dict[str, object] = {"noise": noise, "variant": variant, "seeds": len(mine)}
        row["updates"] = float(mine["updates"].mean())
        for column in OUTCOMES:
            statistic = np.median if column == "steps_to_goal" else np.mean
            estimate, low, high = interval(mine[column].to_numpy(), statistic)
            row |= {column: estimate, f"{column}_low": low, f"{column}_high": high}
        for other in ("ppo", "oracle", "paper"):
            theirs = rows[(rows["noise"] == noise) & (rows["variant"] == other)].set_index("seed")["mean_value"]
            gap = mine.set_index("seed")["mean_value"] - theirs
            estimate, low, high = interval(gap.to_numpy(), np.mean)
            row |= {f"value_over_{other}": estimate, f"value_over_{other}_low": low, f"value_over_{other}_high": high}
        failures = int(mine["failed"].sum())
        low, high = share_interval(failures, len(mine))
        found.append(row | {"failures": failures, "failures_low": low, "failures_high": high})
    return pd.DataFrame(found)
