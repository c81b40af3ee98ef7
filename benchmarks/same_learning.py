"""Tests whether an optimisation changes learning: compares learning curves of variants with the same seeds.

    python benchmarks/same_learning.py brax/hopper compute_dtype=float32 compute_dtype=auto --seeds 24 --out D

ENV may be several, separated by commas. Each variant is a set of config fields, joined by ":". By default the number of
steps is the preset's. A seed's score is its mean episode return over the last tenth of training. Prints per variant

    the mean score with its 95 % interval over seeds (Student's t),
    the difference from the first variant with its 95 % interval (Welch's t) and the smallest true difference that this
    number of seeds detects in four of five cases (two-sided, 5 %),
    the ratio of the standard deviations and the p-value of equal spreads (Brown and Forsythe).

The curves are written to curves-ENV.csv after each environment, the figures above to scores-ENV.json.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import time
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import numpy as np
from scipy.stats import levene, t

from nextpolicy.config import presets
from nextpolicy.run.job import make_job

POINTS = 50  # points per curve in the file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env", help="ENV[,ENV...]")
    parser.add_argument("variants", nargs="+", help="FIELD=VALUE[:FIELD=VALUE...]")
    parser.add_argument("--algo", default="ppo")
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--steps", type=float, help="steps of each seed; by default the preset's")
    parser.add_argument("--compile-threads", type=int, default=1, help="programs compiled while others train")
    parser.add_argument("--out", required=True, help="folder for the results; must exist")
    options = parser.parse_args()
    envs, out = options.env.split(","), Path(options.out)
    if options.seeds < 2 or len(set(options.variants)) < len(options.variants):
        parser.error("seeds, variants: expected at least 2 seeds and distinct variants")
    if not all("=" in pair for v in options.variants for pair in v.split(":")):
        parser.error(f"variants: expected FIELD=VALUE[:FIELD=VALUE...], got {' '.join(options.variants)}")
    if options.compile_threads < 1:
        parser.error(f"compile-threads: expected at least 1, got {options.compile_threads}")
    if not out.is_dir():
        parser.error(f"out: expected an existing folder, got {out}")
    for path in (path for env in envs for path in files(out, env)):
        if path.exists():
            parser.error(f"out: expected a folder without {path.name}, got {out}")
    with ThreadPoolExecutor(options.compile_threads) as pool:
        ready = {(env, v): pool.submit(prepare, options, env, v) for env in envs for v in options.variants}
        for env in envs:
            curves = {v: train(env, v, ready.pop((env, v))) for v in options.variants}
            table, scores = files(out, env)
            save(table, curves)
            scores.write_text(json.dumps(report(env, curves), indent=1) + "\n")


def files(out: Path, env: str) -> tuple[Path, Path]:
    """The files of curves and of scores."""
    name = env.replace("/", "-")
    return out / f"curves-{name}.csv", out / f"scores-{name}.json"


def prepare(options: argparse.Namespace, env: str, variant: str) -> tuple[Any, Any, int]:
    """The compiled program of a variant, its initial state and its number of rounds."""
    fields: dict[str, Any] = dict(pair.split("=", 1) for pair in variant.split(":"))
    if options.steps is not None:
        fields["total_env_steps"] = int(options.steps)
    config = presets.build(env, algo=options.algo, seeds=options.seeds, **fields)
    job = make_job(config)
    program = job.program()
    return program, program.init(job.seeds), config.num_rounds


def train(env: str, variant: str, ready: Future[tuple[Any, Any, int]]) -> np.ndarray:
    """Mean return of the episodes that ended in each round [seeds, rounds]; NaN if there are none."""
    program, state, rounds = ready.result()
    started, rows, left = time.perf_counter(), [], rounds
    while left:
        now = min(left, program.capacity)
        state, metrics, _ = program.block(state, now)
        rows.append(np.asarray(jax.device_get(metrics["episode_return"]))[:, :now])
        left -= now
    print(f"{env} {variant}: {rounds} rounds, {time.perf_counter() - started:.0f} s", flush=True)
    return np.concatenate(rows, axis=1)


def final(curve: np.ndarray) -> np.ndarray:
    """Each seed's mean over the last tenth of training [seeds]."""
    return np.nanmean(curve[:, -max(1, curve.shape[1] // 10) :], axis=1)


def report(env: str, curves: dict[str, np.ndarray]) -> dict[str, dict[str, Any]]:
    """Print and return the comparison of each variant with the first."""
    first = final(next(iter(curves.values())))
    result = {name: compare(first, final(curve)) for name, curve in curves.items()}
    for name, row in result.items():
        print(
            f"{env} {name:<24} {row['mean']:9.2f} +- {row['interval']:.2f}   "
            f"difference {row['difference']:+9.2f} +- {row['difference_interval']:.2f} "
            f"(detects {row['detectable_difference']:.2f})   spread {row['spread_ratio']:.2f} times, "
            f"p {row['spread_p']:.2f}",
            flush=True,
        )
    return result


def compare(first: np.ndarray, score: np.ndarray) -> dict[str, Any]:
    """Statistics of `score` [seeds], and of its difference from `first` [seeds]."""
    count = len(score)
    error, other = (float(x.std(ddof=1)) / math.sqrt(count) for x in (score, first))
    both = math.hypot(error, other)
    freedom = (count - 1) * both**4 / (error**4 + other**4) if both else count - 1
    quantile = t.ppf(0.975, freedom)
    return {
        "seeds": count,
        "scores": [float(f"{x:.6g}") for x in score],
        "mean": float(score.mean()),
        "interval": error * t.ppf(0.975, count - 1),
        "difference": float(score.mean() - first.mean()),
        "difference_interval": both * quantile,
        "detectable_difference": both * (quantile + t.ppf(0.8, freedom)),
        "spread_ratio": error / other if other else 1.0,
        "spread_p": spread_p(first, score),
    }


def spread_p(a: np.ndarray, b: np.ndarray) -> float:
    """Brown and Forsythe's p-value of equal spreads; 1 if the distances from the medians do not vary."""
    with np.errstate(invalid="ignore", divide="ignore"):
        p = float(levene(a, b, center="median").pvalue)
    return p if math.isfinite(p) else 1.0


def save(path: Path, curves: dict[str, np.ndarray]) -> None:
    with path.open("x", newline="") as file:
        write_rows(csv.writer(file), curves)


def write_rows(writer: Any, curves: dict[str, np.ndarray]) -> None:
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
