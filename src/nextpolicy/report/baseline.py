"""What each variant is compared with: the plain variant of its algorithm, which updates its target every round.

Inside the report, columns and words are written for PPO: `score_pct_of_ppo` is the score in percent of whatever the
baseline is. `worded` puts in the name of another baseline before a reader sees them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TypeVar

from nextpolicy.config import siblings

_LABELS = {"ppo": "PPO", "sac": "SAC", "pqn": "PQN"}  # others are called as `--algo` calls them
_SEVERAL = "the baseline"  # where variants of several algorithms are in one table
T = TypeVar("T")


def algo_of(variant: str) -> str:
    """A variant without its swept values."""
    return variant.partition("[")[0]


def pace_of(variant: str) -> str:
    """When a variant updates its target: plain, static or dynamic."""
    return siblings(algo_of(variant))[algo_of(variant)]


def algorithm_of(variant: str) -> str:
    """The algorithm of a variant, by the first of its variants."""
    return next(iter(siblings(algo_of(variant))))


def baseline_of(variant: str) -> str:
    """The first plain variant of the same algorithm; empty if it has none."""
    return next((name for name, pace in siblings(algo_of(variant)).items() if pace == "plain"), "")


def is_baseline(variant: str) -> bool:
    return algo_of(variant) == baseline_of(variant)


def label(variants: Iterable[str]) -> str:
    """The baseline of these variants, for readers: `PPO`, or `the baseline` if they have different ones."""
    names = {baseline_of(variant) for variant in variants}
    return label_of(names.pop()) if len(names) == 1 else _SEVERAL


def label_of(name: str) -> str:
    return _LABELS.get(name, name)


def worded(words: str, variants: Iterable[str]) -> str:
    """Words about PPO as words about the baseline of these variants; also names of columns, in lower case."""
    shown = label(variants)
    names = {"PPO": shown, "ppo": shown.removeprefix("the ").lower()}
    return re.sub("|".join(names), lambda found: names[found[0]], words)  # in one pass: a baseline may be called my-ppo


def grouped(tables: Mapping[tuple[str, str], T]) -> dict[tuple[str, str], dict[str, T]]:
    """What is keyed by (suite, variant), by (suite, baseline) and then by variant: percentages of one baseline."""
    groups: dict[tuple[str, str], dict[str, T]] = {}
    for (suite, variant), table in tables.items():
        groups.setdefault((suite, baseline_of(variant)), {})[variant] = table
    return groups
