"""Criteria and estimators against the paper's dynamic SV-PPO on small tasks, from `benchmarks/suites/criteria-small*`.

    for suite in benchmarks/suites/criteria-small*.toml; do nextpolicy suite run $suite; done
    python benchmarks/small_tasks.py collect runs/criteria-small* --out results/criteria-small/members.csv
    python benchmarks/small_tasks.py table results/criteria-small/members.csv

The baseline is `sv-dynamic` of criteria-small. For each variant: its mean score on each task in % of the baseline's,
and the two aggregates of `benchmarks/differences.py` over all tasks, of scores and of mean returns over training.
"Points" are percentage points above the baseline. Intervals are 95 %, by bootstrap over seeds.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

import differences
from nextpolicy.report import bootstrap, runs
from nextpolicy.report.aggregate import percent_of_ppo as percent
from nextpolicy.report.members import member_table

BASELINE = ("criteria-small", "sv-dynamic")
COLUMNS = ["suite", "env", "variant", "seed", "score", "area", "updates_pct", "kl_target", "ratio_ess", "entropy"]


def collect(folders: list[Path]) -> pd.DataFrame:
    """One row per member; `suite` is the name of the folder."""
    tables = []
    for folder in folders:
        members = member_table([runs.load(run) for run in runs.find([folder])])
        for run, state in members[members["score"].isna()][["run", "state"]].itertuples(index=False):
            raise ValueError(f"folders: expected finished runs with scores, got {folder / run} ({state})")
        tables.append(members.assign(suite=folder.resolve().name))
    rows = pd.concat(tables)[COLUMNS].sort_values(COLUMNS[:4], ignore_index=True)
    if rows.duplicated(COLUMNS[:4]).any():
        raise ValueError("folders: expected each suite once, got two of the same name")
    return rows


def scores(frame: pd.DataFrame, suite: str, variant: str, column: str) -> dict[str, np.ndarray]:
    """Environment -> numbers of all seeds."""
    chosen = frame[(frame["suite"] == suite) & (frame["variant"] == variant)]
    return {str(env): rows[column].to_numpy() for env, rows in chosen.groupby("env")}


def table(frame: pd.DataFrame) -> str:
    base = scores(frame, *BASELINE, "score")
    names = [env.split("/")[-1].removesuffix("-MinAtar") for env in base]
    header = ["variant", *names, "all, points", "P(higher)", "over training: all, points", "P(higher)", "updates, %"]
    lines = [f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    for suite, variant in frame[["suite", "variant"]].drop_duplicates().itertuples(index=False):
        mine = scores(frame, suite, variant, "score")
        if set(mine) != set(base):
            raise ValueError(f"members: expected {variant} of {suite} on {', '.join(base)}, got {', '.join(mine)}")
        cells = [f"{variant}, {suite}"]
        if (suite, variant) == BASELINE:
            cells += [*(f"100 ({base[env].mean():.4g})" for env in base), "", "", "", ""]
        else:
            cells += [_cell(mine[env], base[env]) for env in base]
            for column in ("score", "area"):
                theirs, ours = scores(frame, *BASELINE, column), scores(frame, suite, variant, column)
                cells += map(
                    _interval, differences.together([ours[env] for env in base], [theirs[env] for env in base])
                )
        updates = np.concatenate(list(scores(frame, suite, variant, "updates_pct").values()))
        lines.append(f"| {' | '.join([*cells, f'{updates.min():.0f} to {updates.max():.0f}'])} |")
    return "\n".join(lines)


def _cell(mine: np.ndarray, base: np.ndarray) -> str:
    """The mean score in % of the baseline's; the interval is that of both."""
    draws = percent(*(bootstrap.resample(x, seed, 2000).mean(1) for seed, x in enumerate((mine, base))))
    low, high = bootstrap.bounds(draws)
    return f"{percent(mine.mean(), base.mean()):.0f} [{low:.0f}, {high:.0f}]"


def _interval(found: bootstrap.Interval) -> str:
    return f"{found.estimate:.3g} [{found.low:.3g}, {found.high:.3g}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    collector = parts.add_parser("collect")
    collector.add_argument("folders", nargs="+", type=Path)
    collector.add_argument("--out", type=Path, required=True)
    parts.add_parser("table").add_argument("members", type=Path)
    options = parser.parse_args()
    try:
        if options.part == "collect":
            options.out.parent.mkdir(parents=True, exist_ok=True)
            collect(options.folders).to_csv(options.out, index=False, float_format="%.6g")
            return
        frame = pd.read_csv(options.members)
    except (OSError, ValueError) as error:  # errors of pandas and of the report are ValueErrors
        parser.error(str(error))
    if not set(COLUMNS) <= set(frame) or not scores(frame, *BASELINE, "score"):
        parser.error(f"members: expected rows of `collect` with {BASELINE[1]} of {BASELINE[0]}, got {options.members}")
    try:
        print(table(frame))
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
