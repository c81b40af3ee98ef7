"""Differences of scores between two groups of members, by environment, with Welch's 95 % interval and p value.

    python benchmarks/differences.py results/minatar-tuning/tables/members.csv 'delta_v=0.003' 'delta_v=0.1,'
    python benchmarks/differences.py results/minatar-paper/tables/members.csv '^ppo' '^ppo' \
        --other results/minatar/tables/members.csv

The patterns are regular expressions that select members by their variant; the second may be of another file. Seeds of
one variant at several swept values count as members of one group.
"""

from __future__ import annotations

import argparse

import pandas as pd
from scipy.stats import ttest_ind


def rows(first: pd.DataFrame, second: pd.DataFrame) -> list[str]:
    """One row for each environment that both groups have."""
    found = []
    for env in [e for e in first["env"].unique() if e in set(second["env"])]:
        a, b = (group.loc[group["env"] == env, "score"].dropna() for group in (first, second))
        test = ttest_ind(a, b, equal_var=False)
        low, high = test.confidence_interval(0.95)
        means = f"{a.mean():.4g} ({len(a)}) | {b.mean():.4g} ({len(b)})"
        found.append(f"| {env} | {means} | {a.mean() - b.mean():.3g} [{low:.3g}, {high:.3g}] | {test.pvalue:.2g} |")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("members", help="members.csv of a report.")
    parser.add_argument("first", help="Pattern of the first group.")
    parser.add_argument("second", help="Pattern of the second group.")
    parser.add_argument("--other", help="members.csv of the second group; default: the same.")
    options = parser.parse_args()
    groups = []
    for path, pattern in ((options.members, options.first), (options.other or options.members, options.second)):
        table = pd.read_csv(path)
        groups.append(table[table["variant"].str.contains(pattern)])
        if groups[-1].empty:
            parser.error(f"pattern: expected one that some variant of {path} has, got {pattern!r}")
    print(f"| environment | {options.first} | {options.second} | difference | p |\n|---|---|---|---|---|")
    print("\n".join(rows(*groups)))


if __name__ == "__main__":
    main()
