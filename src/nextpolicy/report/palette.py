"""Colours of the variants and of the pages, in figures, the report and the studies.

A variant has the same colour everywhere, whatever else is drawn: PPO grey, sv-static orange, sv-dynamic blue.
"""

from __future__ import annotations

from collections.abc import Sequence

COLOURS = ("#5a636e", "#c2410c", "#0f62ce", "#15803d", "#9333ea", "#b45309", "#0e7490", "#be185d")
DARK = ("#a3abb6", "#fb923c", "#6ea8fe", "#4ade80", "#c084fc", "#fbbf24", "#22d3ee", "#f472b6")  # on a dark page
FIXED = ("ppo", "sv-static", "sv-dynamic")  # always have the first colours
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
    """The variant's place in the palette; the fixed ones first, then the others in order."""
    if variant in FIXED:
        return FIXED.index(variant)
    return len(FIXED) + [v for v in variants if v not in FIXED].index(variant)


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
