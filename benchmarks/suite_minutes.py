"""What suites took on one H200, and what whole suites would take: `python benchmarks/suite_minutes.py`.

results/speed/h200-suites.csv has one row per run: from the start of its command to its scores, compilation and
evaluation included (but for Seaquest's evaluation), and how many other runs shared the GPU meanwhile. Whole suites are
estimated from the rates of our PPO alone on the GPU (h200-matrix.json, h200-cnn-matrix.json: the row with the most
members), without compilation, about a minute for each environment, and evaluation. Swimmer has no such rate: its short
run, with compilation and beside three others, gives an upper bound, marked by "at most".
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pandas as pd

from nextpolicy.experiments import catalogue

SPEED = Path(__file__).parents[1] / "results" / "speed"
ESTIMATED = ("minatar", "minatar-paper", "minatar-tuning", "brax", "brax-paper", "brax-gate", "atari")


def rates() -> dict[str, float]:
    """Steps per second of all members together, by environment."""
    found: dict[str, float] = {}
    most: dict[str, int] = {}
    for name in ("h200-matrix.json", "h200-cnn-matrix.json"):
        for row in json.loads((SPEED / name).read_text()):
            ours = row["contender"] == "nextpolicy ppo" and row["members"] >= most.get(row["env"], 0)
            # Only rows with the paper's CNN count on MinAtar; those of the other file have an MLP.
            if ours and ("MinAtar" not in row["env"] or name == "h200-cnn-matrix.json"):
                most[row["env"]], found[row["env"]] = row["members"], row["steps_per_second"]
    atari = json.loads((SPEED.parent / "atari" / "speed.json").read_text())["rows"]["ppo impala bfloat16 groups=2"]
    games = dict.fromkeys(catalogue.load("atari").environments, atari["steps_per_second"])  # Breakout's, of 16 cores
    return found | games


def whole(name: str, rate: dict[str, float]) -> dict[str, float]:
    """Minutes of each environment of a suite."""
    suite = catalogue.load(name)
    configs = {env: suite.config(env) for env in suite.environments}
    return {e: len(c.members()) * c.num_rounds * c.batch_size / rate[e] / 60 for e, c in configs.items()}


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    measured = pd.read_csv(SPEED / "h200-suites.csv")
    alone = rates()
    least = {row.env: row.members * row.env_steps / row.seconds for row in measured.itertuples()}
    print("| suite | runs | members x steps, M | minutes, runs added up |\n|---|---|---|---|")
    for name, group in measured.groupby("suite", sort=False):
        steps = (group["members"] * group["env_steps"]).sum() / 1e6
        print(f"| {name} | {len(group)} | {steps:,.0f} | {group['seconds'].sum() / 60:.0f} |")
    print("\n| whole suite | minutes alone on the GPU | of these, the longest |\n|---|---|---|")
    for name in ESTIMATED:
        minutes = whole(name, least | alone)
        longest = sorted(minutes, key=lambda env: -minutes[env])[:4]
        bound = {env: "" if env in alone else "at most " for env in longest}
        shown = ", ".join(f"{env.partition('/')[2]} {bound[env]}{minutes[env]:,.0f}" for env in longest)
        print(f"| {name} | {sum(minutes.values()):,.0f} | {shown} |")


if __name__ == "__main__":
    main()
