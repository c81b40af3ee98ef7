"""What the scripts `*_peers.py` share, which train ours beside one peer: arguments, our turn, files and tables."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import ttest_ind

import nextpolicy
from nextpolicy.bench.work import parse_works
from nextpolicy.config import MAX_MEMBERS, ConfigError, TrainConfig, presets
from nextpolicy.run.folder import describe_machine
from nextpolicy.run.job import make_job

Turn = dict[str, Any]  # who, steps_per_second, score (one of each seed)
EPISODES = 128  # of an evaluation


def parsers(doc: str, about: str, seeds: int, steps: float) -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    """Parsers of a script and of its part `run`, which trains on one environment; `table` prints what `run` wrote."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    runner = parts.add_parser("run")
    runner.add_argument("env", help=about)
    runner.add_argument("--seeds", type=int, default=seeds)
    runner.add_argument("--steps", type=float, default=steps)
    runner.add_argument("--out", type=Path, required=True)
    parts.add_parser("table").add_argument("files", type=Path, nargs="+")
    return parser, runner


def work_of(
    env: str,
    algo: str,
    options: argparse.Namespace,
    fields: Mapping[str, str] | None = None,
    shared: Collection[str] = (),
) -> tuple[dict[str, Any], TrainConfig]:
    """The fields that ours and the peer train with, `fields` and those of `--set`, and their config."""
    if not 1 <= options.seeds <= MAX_MEMBERS:
        raise ConfigError(f"seeds: expected a whole number from 1 to {MAX_MEMBERS}, got {options.seeds}")
    pairs = getattr(options, "set", [])
    named = {pair.split("=")[0] for pair in pairs}
    if other := named - set(shared):
        raise ConfigError(f"set: expected one of {', '.join(sorted(shared))}, got {', '.join(sorted(other))}")
    preset = {name: value for name, value in (fields or {}).items() if name not in named}
    preset["total_env_steps"] = f"{options.steps:.0f}"
    (work,) = parse_works([env], "1", "", [*(f"{name}={value}" for name, value in preset.items()), *pairs])
    config = presets.build(work.env, algo=algo, **work.fields)
    make_job(config)  # raises if it cannot be trained
    return work.fields, config


def ours(
    config: TrainConfig, fields: dict[str, Any], seeds: int | list[int], score: Callable[[nextpolicy.Run], list[float]]
) -> Turn:
    """Train one population; the rate is the median over its rounds."""
    env, (algo,) = config.environment.env, config.run.algo
    with tempfile.TemporaryDirectory() as folder:
        run = nextpolicy.train(env, algo=algo, seeds=seeds, out=folder, quiet=True, **fields)
        rates = run.metrics.groupby("round")["steps_per_second"].first().to_numpy()
        return {"who": "ours", "steps_per_second": float(np.median(rates)), "score": score(run)}


def evaluated(run: nextpolicy.Run) -> list[float]:
    """The mean return of each member's final policy, with sampled actions."""
    return [float(mean) for mean in run.evaluate(EPISODES, policy="behaviour", num_envs=EPISODES)["mean"]]


def compared(mine: list[float], other: list[float]) -> list[str]:
    """Both groups of scores, and their difference with Welch's 95 % interval, in words."""
    return [_score(mine), _score(other), _difference(mine, other)]


def check_new(out: Path) -> None:
    """Make the folder of a file. Raises if the file exists."""
    if out.exists():
        raise ConfigError(f"out: expected a new file, got {out}; name another one")
    out.parent.mkdir(parents=True, exist_ok=True)


def save(out: Path, config: TrainConfig, fields: dict[str, Any], turns: list[Turn]) -> None:
    """Write what was compared and what was found."""
    work = {"env": config.environment.env, "seeds": len(turns[0]["score"]), "fields": fields}
    out.write_text(json.dumps({**work, "about": describe_machine(), "turns": turns}, indent=1) + "\n")


def read(file: Path) -> dict[str, Any]:
    """The content of a file that a script wrote."""
    try:
        found: dict[str, Any] = json.loads(file.read_text())
        if all({"who", "steps_per_second", "score"} <= set(turn) for turn in found["turns"]):
            return found
    except (ValueError, KeyError, TypeError):
        pass
    raise ConfigError(f"table: expected a file that the script's `run` wrote, got {file}")


def table(files: list[Path], peer: str) -> str:
    """Rates and scores of files of `save` with two turns, ours and the peer's, as Markdown.

    +- is the standard deviation over seeds, the interval Welch's at 95 %.
    """
    heads = ["", "steps/s: ours", peer, "ratio", "score: ours", peer, "difference"]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for file in files:
        found = read(file)
        if [turn["who"] == "ours" for turn in found["turns"]] != [True, False]:
            raise ConfigError(f"table: expected a turn of ours and one of {peer}, got other turns in {file}")
        mine, other = found["turns"]
        rates = [turn["steps_per_second"] for turn in (mine, other)]
        cells = [found["env"].split("/", 1)[-1], *(f"{rate:.0f}" for rate in rates), f"{rates[0] / rates[1]:.2f}"]
        lines.append(f"| {' | '.join([*cells, *compared(mine['score'], other['score'])])} |")
    return "\n".join(lines)


def _score(scores: list[float]) -> str:
    return f"{_short(np.mean(scores))} +- {_short(np.std(scores, ddof=1))} ({len(scores)})" if len(scores) > 1 else "-"


def _difference(mine: list[float], other: list[float]) -> str:
    if min(len(mine), len(other)) < 2:
        return "-"
    found = ttest_ind(mine, other, equal_var=False)
    low, high = found.confidence_interval(0.95)
    return f"{_short(np.mean(mine) - np.mean(other))} [{_short(low)}, {_short(high)}], p {found.pvalue:.2g}"


def _short(x: Any) -> str:
    """Three digits or a whole number."""
    return f"{x:.0f}" if abs(x) >= 100 else f"{x:.3g}"
