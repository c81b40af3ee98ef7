"""Colours of the variants and of the pages, in figures, the report and the studies.

A variant has the same colour everywhere, whatever else is drawn: plain ones (PPO, SAC) grey, static ones orange,
dynamic ones blue. If there are two algorithms, the second has the same colours in dashed lines.
"""

from __future__ import annotations

from collections.abc import Sequence

from nextpolicy.config import siblings
from nextpolicy.report.baseline import algorithm_of, pace_of

COLOURS = ("#5a636e", "#c2410c", "#0f62ce", "#15803d", "#9333ea", "#b45309", "#0e7490", "#be185d")
DARK = ("#a3abb6", "#fb923c", "#6ea8fe", "#4ade80", "#c084fc", "#fbbf24", "#22d3ee", "#f472b6")  # on a dark page
FIXED = ("ppo", "sv-static", "sv-dynamic")  # always have the first colours
_PACES = ("plain", "static", "dynamic")  # of these colours
PAGE = {
    "ink": ("#1d2126", "#e8eaed"),
    "soft-ink": ("#5a636e", "#a3abb6"),
    "paper": ("#ffffff", "#14171a"),
    "panel": ("#f5f6f8", "#1d2125"),
    "line": ("#d9dde2", "#363c43"),
    "accent": ("#0b57d0", "#8ab4f8"),
    "warn": ("#9a3412", "#fdba74"),
    "shade": ("#0003", "#000a"),
}  # variable -> on a light page, on a dark page


def slot(variant: str, variants: Sequence[str]) -> int:
    """The variant's place in the palette: fixed by its pace, or after these, in order, if it is swept."""
    if not _is_fixed(variant):
        return len(FIXED) + [v for v in variants if not _is_fixed(v)].index(variant)
    algorithms = sorted({algorithm_of(v) for v in variants})
    return _PACES.index(pace_of(variant)) + len(COLOURS) * algorithms.index(algorithm_of(variant))


def _is_fixed(variant: str) -> bool:
    """Whether a variant is the first of its algorithm with its pace, and not swept."""
    return "[" not in variant and variant == next(v for v in siblings(variant) if pace_of(v) == pace_of(variant))


def is_second(place: int) -> bool:
    """Whether an earlier place has the same colour; then lines are dashed, bars striped and points square."""
    return place >= len(COLOURS)


def css() -> str:
    """The colours as CSS variables: --c0, --c1, ... of the variants, --ink, --paper, ... of the page."""
    light, dark = ({name: both[i] for name, both in PAGE.items()} for i in range(2))
    light |= {f"c{i}": colour for i, colour in enumerate(COLOURS)}
    dark |= {f"c{i}": colour for i, colour in enumerate(DARK)}
    rules = [" ".join(f"--{name}: {colour};" for name, colour in names.items()) for names in (light, dark)]
    # Paper is white, so the dark colours are for screens only.
    return (
        f":root {{ color-scheme: light dark; {rules[0]} }}\n"
        f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {rules[1]} }} }}\n"
    )
