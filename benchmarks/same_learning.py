"""Tests whether an optimisation changes learning: compares learning curves of variants with the same seeds.

    python benchmarks/same_learning.py brax/hopper compute_dtype=float32 compute_dtype=auto --steps 1e7 --out D

Each variant is a set of config fields, joined by ":". Prints the mean episode return over the last tenth of training
with a 95 % interval over seeds (Student's t), and the difference from the first variant with its interval (Welch's t).
The curves are written to curves-ENV.csv.
"""

from __future__ import annotations

import argparse
import csv
import math
import time
from itertools import pairwise
from pathlib import Path
from typing import TextIO

import jax
import numpy as np
from scipy.stats import t

from nextpolicy.config import presets
from nextpolicy.run.job import make_job

POINTS = 50  # points per curve in the file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env")
    parser.add_argument("variants", nargs="+", help="FIELD=VALUE[:FIELD=VALUE...]")
    parser.add_argument("--algo", default="ppo")
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--steps", type=float, default=1e7)
    parser.add_argument("--out", required=True, help="folder for curves-ENV.csv; must exist")
    options = parser.parse_args()
    if options.seeds < 2 or len(set(options.variants)) < len(options.variants):
        parser.error("seeds, variants: expected at least 2 seeds and distinct variants")
    if not all("=" in pair for v in options.variants for pair in v.split(":")):
        parser.error(f"variants: expected FIELD=VALUE[:FIELD=VALUE...], got {' '.join(options.variants)}")
    try:
        file = (Path(options.out) / f"curves-{options.env.replace('/', '-')}.csv").open("x", newline="")
    except OSError as error:
        parser.error(f"out: expected an existing folder without this file, got {error}")
    with file:
        curves = {v: train(options, dict(pair.split("=", 1) for pair in v.split(":"))) for v in options.variants}
        report(options.env, curves)
        save(file, curves)


def train(options: argparse.Namespace, fields: dict[str, str]) -> np.ndarray:
    """Mean return of the episodes that ended in each round [seeds, rounds]; NaN if there are none."""
    started = time.perf_counter()
    config = presets.build(
        options.env, algo=options.algo, seeds=options.seeds, total_env_steps=int(options.steps), **fields
    )
    job = make_job(config)
    program = job.program()
    state, rows, left = program.init(job.seeds), [], config.num_rounds
    while left:
        now = min(left, program.capacity)
        state, metrics, _ = program.block(state, now)
        rows.append(np.asarray(jax.device_get(metrics["episode_return"]))[:, :now])
        left -= now
    print(f"{options.env} {fields}: {config.num_rounds} rounds, {time.perf_counter() - started:.0f} s", flush=True)
    return np.concatenate(rows, axis=1)


def final(curve: np.ndarray) -> np.ndarray:
    """Each seed's mean over the last tenth of training [seeds]."""
    return np.nanmean(curve[:, -max(1, curve.shape[1] // 10) :], axis=1)


def report(env: str, curves: dict[str, np.ndarray]) -> None:
    first = final(next(iter(curves.values())))
    for name, curve in curves.items():
        score = final(curve)
        count = len(score)
        error, other = (x.std(ddof=1) / math.sqrt(count) for x in (score, first))
        both = math.hypot(error, other)
        freedom = (count - 1) * both**4 / (error**4 + other**4) if both else count - 1
        half, half_difference = error * t.ppf(0.975, count - 1), both * t.ppf(0.975, freedom)
        print(
            f"{env} {name:<40} {score.mean():9.2f} +- {half:.2f}   "
            f"difference {score.mean() - first.mean():+9.2f} +- {half_difference:.2f}",
            flush=True,
        )


def save(file: TextIO, curves: dict[str, np.ndarray]) -> None:
    writer = csv.writer(file)
    writer.writerow(["variant", "seed", "progress", "episode_return"])
    for name, curve in curves.items():
        edges = np.linspace(0, curve.shape[1], POINTS + 1).astype(int)
        for seed, row in enumerate(curve):
            for low, high in pairwise(edges):
                part = row[low:high]
                mean = np.nanmean(part) if np.isfinite(part).any() else math.nan
                writer.writerow([name, seed, f"{high / curve.shape[1]:.2f}", f"{mean:.6g}"])


if __name__ == "__main__":
    main()
