"""How often does each algorithm fail on Four Rooms, and how do its failures begin?

    nextpolicy study four-rooms --seeds 64 --out D
    python benchmarks/four_rooms_failures.py table results/four-rooms/failures_by_seed.csv    prints the table
    python benchmarks/four_rooms_failures.py read D [D ...] --out results/four-rooms/failures_by_seed.csv

`read` takes the folders of one or more studies with different seeds and writes one row per member.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import binomtest

from nextpolicy.studies.four_rooms.summary import CLOSE, FAILED, share_interval
from nextpolicy.tabular import four_rooms_mdp, solve

EARLY = 8  # rounds after which the value is compared: before most first target updates of the dynamic gate


def read(studies: list[Path]) -> pd.DataFrame:
    """One row per algorithm and seed."""
    frame = pd.concat([pd.read_parquet(path / "exact.parquet") for path in studies])
    mdp = four_rooms_mdp.four_rooms()
    best = float(solve.optimal(mdp).V @ mdp.start)
    rows = []
    for (algo, seed), one in frame.sort_values("round").groupby(["variant", "seed"], sort=True):
        value, accepted = one["value_behaviour"].to_numpy(), one["accepted"].to_numpy().astype(bool)
        gains = one["improvement"].to_numpy()[accepted]
        rows.append(
            {
                "algo": algo,
                "seed": seed,
                "first_update": int(np.argmax(accepted)) if accepted.any() else -1,
                "updates": int(accepted.sum()),
                "harmful_updates": int((gains < 0).sum()),
                "value_lost": float(-np.minimum(gains, 0).sum()),
                "value_early": value[EARLY - 1],
                "final_value": value[-1],
                "near_optimal": bool(value[-1] >= best - CLOSE),
                "failed": not value[-1] >= FAILED * best,
            }
        )
    return pd.DataFrame(rows)


def table(rows: pd.DataFrame) -> str:
    """Shares with Wilson's intervals, and exact McNemar tests of each algorithm against PPO on the same seeds."""
    lines = ["| | seeds | failures | near optimal | harmful updates | value after 8 rounds, median | against PPO |"]
    lines.append("|---|---|---|---|---|---|---|")
    by_algo = {algo: mine.set_index("seed") for algo, mine in rows.groupby("algo")}
    for algo, mine in by_algo.items():
        cells = [str(algo), str(len(mine))]
        for column in ("failed", "near_optimal"):
            low, high = share_interval(int(mine[column].sum()), len(mine))
            cells.append(f"{mine[column].sum()}, {100 * low:.1f} to {100 * high:.1f} %")
        cells.append(f"{100 * mine['harmful_updates'].sum() / mine['updates'].sum():.1f} %")
        cells.append(f"{mine['value_early'].median():.3f}")
        cells.append("" if algo == "ppo" else against(mine, by_algo["ppo"]))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def against(mine: pd.DataFrame, theirs: pd.DataFrame) -> str:
    """Numbers of seeds on which only one of the two fails, or only one is near optimal, with two-sided p values."""
    parts = []
    for column, words in (("failed", "fails alone"), ("near_optimal", "alone near optimal")):
        ours = int((mine[column] & ~theirs[column]).sum())
        other = int((theirs[column] & ~mine[column]).sum())
        p = binomtest(ours, ours + other).pvalue if ours + other else 1.0
        parts.append(f"{words} on {ours}, PPO on {other}, p {p:.2g}")
    return "; ".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    reader = parts.add_parser("read")
    reader.add_argument("studies", nargs="+", type=Path)
    reader.add_argument("--out", required=True, type=Path)
    parts.add_parser("table").add_argument("rows", type=Path)
    options = parser.parse_args()
    if options.part == "read":
        read(options.studies).to_csv(options.out, index=False, float_format="%.8g")
    else:
        print(table(pd.read_csv(options.rows)))


if __name__ == "__main__":
    main()
