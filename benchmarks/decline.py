"""Which runs get worse again? Scores of compact runs, and seeds that lose 10 % or more after 20 to 25M steps.

    python benchmarks/decline.py results/decline results/brax

Score: mean return over the last tenth, from statistics.csv; +- is the standard deviation over seeds. A seed declines if
its last tenth is below .9 of its mean at 20 to 25M steps (positive returns only), from the thinned metrics.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

import nextpolicy


def rows(path: Path) -> list[list[str]]:
    """One row per variant of a run."""
    run = nextpolicy.load(path)
    scores, found = pd.read_csv(path / "statistics.csv").set_index("member")["score"], []
    for variant, mine in run.metrics.groupby("variant", sort=False):
        late = mine[mine["env_steps"] > 0.9 * mine["env_steps"].max()].groupby("member")["episode_return"].mean()
        middle = (
            mine[mine["env_steps"].between(20e6, 25e6, inclusive="right")].groupby("member")["episode_return"].mean()
        )
        score = scores[late.index]
        declined = f"{int((late < 0.9 * middle).sum())} of {len(late)}" if middle.mean() > 0 else "-"
        found.append([path.name, str(variant), f"{score.mean():.5g} +- {score.std():.3g}", declined])
    return found


def main() -> None:
    if len(sys.argv) < 2:
        raise SystemExit("decline.py: expected folders of compact runs, got none")
    print("| run | variant | score | seeds that decline |\n|---|---|---|---|")
    for folder in sys.argv[1:]:
        for path in sorted(file.parent for file in Path(folder).glob("*/config.json")):
            for row in rows(path):
                print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
