"""How numbers are shown: digits, intervals, spreads and counts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

MISSING = "–"
_SUITE_NAMES = {
    "minatar": "MinAtar",
    "brax": "Brax",
    "atari": "Atari",
    "four-rooms": "Four Rooms",
    "playground": "MuJoCo Playground",
    "craftax": "Craftax",
    "default": "Other environments",
}

Row = Mapping[str, Any]  # one row of a table, by column name


class Cell(NamedTuple):
    """One cell of a table."""

    shown: str
    key: float | str  # sorts the column


def suite_name(suite: str) -> str:
    return _SUITE_NAMES.get(suite, suite)


def count(n: int, noun: str) -> str:
    return f"{n} {noun}{'s' * (n != 1)}"


def number(value: float | None, digits: int = 3, places: int | None = None) -> str:
    """Three significant digits, all digits of larger whole parts, or a fixed number of places; else a dash."""
    if value is None or not math.isfinite(float(value)):
        return MISSING
    value = float(value)
    if places is not None:
        return f"{value:.{places}f}"
    if value == 0:
        return "0"
    before = math.floor(math.log10(abs(float(f"{value:.{digits - 1}e}")))) + 1  # 0.9997 is 1.00, not 1.000
    if before > 6 or before < -3:
        return f"{value:.{digits - 1}e}"
    return f"{value:.{max(0, digits - before)}f}"


def plain(row: Row, name: str) -> Cell:
    value = row.get(name, math.nan)
    return Cell(number(value), sort_key(value))


def words(row: Row, name: str) -> Cell:
    return Cell(row[name], row[name])


def with_interval(row: Row, name: str, places: int | None = None) -> Cell:
    """`104.2 [98.1, 110.0]`"""
    value, low, high = (row.get(f"{name}{end}", math.nan) for end in ("", "_low", "_high"))
    shown = number(value, places=places)
    if shown != MISSING and not math.isnan(float(low)):
        shown += f" [{number(low, places=places)}, {number(high, places=places)}]"
    return Cell(shown, sort_key(value))


def with_spread(row: Row, name: str, spread: str, places: int | None = None) -> Cell:
    """`104.2 ± 3.1 [98.1, 110.0]`; the standard deviation is the row's `spread`, if it has one."""
    shown, key = with_interval(row, name, places)
    deviation = row.get(spread, math.nan)
    if shown != MISSING and not math.isnan(deviation):
        value, space, interval = shown.partition(" ")
        shown = f"{value} ± {number(deviation, places=places)}{space}{interval}"
    return Cell(shown, key)


def whole_number(row: Row, name: str) -> Cell:
    """`1,000,000`"""
    value = row.get(name, math.nan)
    return Cell(MISSING if math.isnan(value) else f"{value:,.0f}", sort_key(value))


def sort_key(value: float | None) -> float:
    return -math.inf if value is None or math.isnan(float(value)) else float(value)
