"""Differences of scores between two groups of members, by environment, with Welch's 95 % interval and p value.

    python benchmarks/differences.py results/minatar-tuning/tables/members.csv 'delta_v=0.003' 'delta_v=0.1,'
    python benchmarks/differences.py results/minatar-paper/tables/members.csv '^ppo' '^ppo' \
        --other results/minatar/tables/members.csv

The patterns are regular expressions that select members by their variant; the second may be of another file. If several
variants match, their mean is taken for each seed first, since members with the same seed are not independent.
"""

from __future__ import annotations

import argparse
import re
import warnings

import numpy as np
import pandas as pd
from scipy.stats import ttest_ind


def group(parser: argparse.ArgumentParser, path: str, pattern: str) -> pd.DataFrame:
    """The score of each seed (columns) on each environment (rows)."""
    try:
        table = pd.read_csv(path)
        expression = re.compile(pattern)
    except (OSError, ValueError) as error:  # pandas' own errors are ValueErrors
        parser.error(f"{path}: expected members.csv of a report, got a file that cannot be read ({error})")
    except re.error as error:
        parser.error(f"pattern: expected a regular expression, got {pattern!r} ({error})")
    missing = [name for name in ("env", "variant", "seed", "score") if name not in table]
    if missing:
        parser.error(f"{path}: expected members.csv of a report, got no column {missing[0]}")
    chosen = table[[expression.search(str(variant)) is not None for variant in table["variant"]]]
    if chosen.empty:
        parser.error(f"pattern: expected one that some variant of {path} has, got {pattern!r}")
    return chosen.pivot_table(index="env", columns="seed", values="score", sort=False)


def row(env: str, first: np.ndarray, second: np.ndarray) -> str:
    a, b = (values[np.isfinite(values)] for values in (first, second))
    low = high = p = np.nan
    if min(len(a), len(b)) > 1 and np.ptp(a) + np.ptp(b) > 0:
        with warnings.catch_warnings(action="ignore"):  # of a group without spread
            test = ttest_ind(a, b, equal_var=False)
        (low, high), p = test.confidence_interval(0.95), test.pvalue
    means = f"{a.mean():.4g} ({len(a)}) | {b.mean():.4g} ({len(b)})"
    return f"| {env} | {means} | {a.mean() - b.mean():.3g} [{low:.3g}, {high:.3g}] | {p:.2g} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("members", help="members.csv of a report.")
    parser.add_argument("first", help="Pattern of the first group.")
    parser.add_argument("second", help="Pattern of the second group.")
    parser.add_argument("--other", help="members.csv of the second group; default: the same.")
    options = parser.parse_args()
    first = group(parser, options.members, options.first)
    second = group(parser, options.other or options.members, options.second)
    shared = [env for env in first.index if env in second.index]
    if not shared:
        parser.error(f"environments: expected one that both groups have, got {first.index[0]} and {second.index[0]}")
    print(f"| environment | {options.first} (seeds) | {options.second} (seeds) | difference | p |")
    print("|---|---|---|---|---|")
    for env in shared:
        print(row(env, first.loc[env].to_numpy(), second.loc[env].to_numpy()))


if __name__ == "__main__":
    main()
