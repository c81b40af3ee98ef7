"""Scores and rates of ours beside those of one peer, for the scripts `*_peers.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
from scipy.stats import ttest_ind

from nextpolicy.config import ConfigError

Turn = dict[str, Any]  # who, steps_per_second, score (one of each seed)


def compared(mine: list[float], other: list[float]) -> list[str]:
    """Both groups of scores, and their difference with Welch's 95 % interval, in words."""
    return [_score(mine), _score(other), _difference(mine, other)]


def check_new(out: Path) -> None:
    """Raise if the file exists."""
    if out.exists():
        raise ConfigError(f"out: expected a new file, got {out}; name another one")


def save(out: Path, work: dict[str, Any], turns: list[Turn]) -> None:
    """Write what was compared and what was found."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({**work, "device": jax.devices()[0].device_kind, "turns": turns}, indent=1) + "\n")


def table(files: list[Path], peer: str) -> str:
    """Rates and scores of files of `save` with two turns, ours and the peer's, as Markdown.

    +- is the standard deviation over seeds, the interval Welch's at 95 %.
    """
    heads = ["", "steps/s: ours", peer, "ratio", "score: ours", peer, "difference"]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for found in (json.loads(file.read_text()) for file in files):
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
