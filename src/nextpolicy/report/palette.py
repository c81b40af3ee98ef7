"""Colours of the variants, on the page and in figures; they do not depend on what else is in the report."""

from __future__ import annotations

from collections.abc import Sequence

COLOURS = ("#5a636e", "#c2410c", "#0f62ce", "#15803d", "#9333ea", "#b45309", "#0e7490", "#be185d")  # as in page.css
FIXED = ("ppo", "sv-static", "sv-dynamic")  # always have the first colours


def slot(variant: str, variants: Sequence[str]) -> int:
    """The variant's place in the palette; the fixed ones first, then the others in order."""
    if variant in FIXED:
        return FIXED.index(variant)
    return len(FIXED) + [v for v in variants if v not in FIXED].index(variant)


def is_second(place: int) -> bool:
    """Whether an earlier place has the same colour; then lines are dashed, bars striped and points square."""
    return place >= len(COLOURS)
