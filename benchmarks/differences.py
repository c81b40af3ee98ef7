"""Differences of scores between two groups of members, by environment, with Welch's 95 % interval and p value.

    python benchmarks/differences.py results/minatar-tuning/tables/members.csv 'delta_v=0.003' 'delta_v=0.1,'
    python benchmarks/differences.py results/minatar-paper/tables/members.csv '^ppo' '^ppo' \
        --other results/minatar/tables/members.csv

The patterns are regular expressions that select members by their variant; the second may be of another file. If several
variants match, their mean is taken for each seed first, since members with the same seed are not independent.

With several environments, two lines follow, with bootstrap intervals over seeds (Agarwal et al., 2021): the
interquartile mean over all runs, each in % of the second group's mean on its environment, less that of the second
group; and the probability that a run of the first group is above one of the second, averaged over environments, where a
tie counts half. `--column area` compares mean returns over training instead of scores. Intervals from few
seeds are approximate, and too narrow if some runs fail altogether.
"""

from __future__ import annotations

import argparse
import re
import warnings

import numpy as np
import pandas as pd
from scipy.stats import ttest_ind

from nextpolicy.report.aggregate import percent_of_ppo as percent
from nextpolicy.report.bootstrap import Interval, bounds, iqm

REPS = 2000


def expression(parser: argparse.ArgumentParser, pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        parser.error(f"pattern: expected a regular expression, got {pattern!r} ({error})")


def group(parser: argparse.ArgumentParser, path: str, pattern: str, column: str) -> pd.DataFrame:
    """The score of each seed (columns) on each environment (rows)."""
    wanted = expression(parser, pattern)
    try:
        table = pd.read_csv(path)
    except (OSError, ValueError) as error:  # pandas' own errors are ValueErrors
        parser.error(f"{path}: expected members.csv of a report, got a file that cannot be read ({error})")
    missing = [name for name in ("env", "variant", "seed", column) if name not in table]
    if missing:
        parser.error(f"{path}: expected members.csv of a report, got no column {missing[0]}")
    if column == "seed" or not pd.api.types.is_numeric_dtype(table[column]):
        parser.error(f"column: expected a column of numbers such as score or area, got {column}")
    table = table[np.isfinite(table[column])]
    chosen = table[[wanted.search(str(variant)) is not None for variant in table["variant"]]]
    if chosen.empty:
        parser.error(f"pattern: expected one that some variant of {path} has, got {pattern!r}")
    return chosen.pivot_table(index="env", columns="seed", values=column, sort=False)


def row(env: str, first: np.ndarray, second: np.ndarray) -> str:
    a, b = (values[np.isfinite(values)] for values in (first, second))
    low = high = p = np.nan
    if min(len(a), len(b)) > 1 and np.ptp(a) + np.ptp(b) > 0:
        with warnings.catch_warnings(action="ignore"):  # of a group without spread
            test = ttest_ind(a, b, equal_var=False)
        (low, high), p = test.confidence_interval(0.95), test.pvalue
    means = f"{a.mean():.4g} ({len(a)}) | {b.mean():.4g} ({len(b)})"
    return f"| {env} | {means} | {a.mean() - b.mean():.3g} [{low:.3g}, {high:.3g}] | {p:.2g} |"


def together(first: list[np.ndarray], second: list[np.ndarray], reps: int = REPS) -> tuple[Interval, Interval]:
    """`statistics` with intervals; an array holds the scores of the seeds on one environment."""
    if any(len(scores) == 0 for scores in (*first, *second)):
        raise ValueError("scores: expected at least one run for every environment, got an environment without runs")
    rng = np.random.default_rng(0)
    draws = []
    for _ in range(reps):
        a, b = ([x[rng.integers(len(x), size=len(x))] for x in arrays] for arrays in (first, second))
        draws.append(statistics(a, b))
    gain, chance = (Interval(x, *bounds(column)) for x, column in zip(statistics(first, second), np.transpose(draws)))
    return gain, chance


def statistics(first: list[np.ndarray], second: list[np.ndarray]) -> tuple[float, float]:
    """Difference of interquartile means in % of the second group's means, and probability of a higher score.

    The first is NaN if a mean is 0.
    """
    means = [b.mean() for b in second]
    ours, theirs = ([percent(x, mean) for x, mean in zip(arrays, means)] for arrays in (first, second))
    gain = iqm(ours) - iqm(theirs) if all(means) else np.nan  # sorting would take NaN for the highest score
    wins = [np.mean(np.sign(a[:, None] - b[None]) / 2 + 0.5) for a, b in zip(first, second)]  # a tie counts half
    return gain, float(np.mean(wins))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("members", help="members.csv of a report.")
    parser.add_argument("first", help="Pattern of the first group.")
    parser.add_argument("second", help="Pattern of the second group.")
    parser.add_argument("--other", help="members.csv of the second group; default: the same.")
    parser.add_argument("--envs", default="", help="Regular expression that selects environments; default all.")
    parser.add_argument("--column", default="score", help="Column to compare; default score.")
    options = parser.parse_args()
    first = group(parser, options.members, options.first, options.column)
    second = group(parser, options.other or options.members, options.second, options.column)
    chosen = expression(parser, options.envs)
    shared = [env for env in first.index if env in second.index and chosen.search(env)]
    if not shared:
        got = f"{first.index[0]} and {second.index[0]}" if not options.envs else f"--envs {options.envs}"
        parser.error(f"environments: expected one that both groups have, got {got}")
    print(f"| environment | {options.first} (seeds) | {options.second} (seeds) | difference | p |")
    print("|---|---|---|---|---|")
    for env in shared:
        print(row(env, first.loc[env].to_numpy(), second.loc[env].to_numpy()))
    if len(shared) > 1:
        a, b = ([x[np.isfinite(x)] for x in seeds.loc[shared].to_numpy()] for seeds in (first, second))
        names = ("interquartile mean, less that of the second, %", f"probability of a higher {options.column}")
        for name, (estimate, low, high) in zip(names, together(a, b)):
            print(f"\n{name}: {estimate:.3g} [{low:.3g}, {high:.3g}]", end="")
        print()


if __name__ == "__main__":
    main()
