"""One-line complaints about arguments: what was wrong, what was got, what is taken."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np


def one_of(name: str, got: object, allowed: Iterable[str]) -> None:
    """Raise unless `got` is one of `allowed`."""
    choices = list(allowed)
    if got not in choices:
        raise ValueError(f"{name}: got {got!r}, takes one of {', '.join(map(repr, choices))}")


def same_shape(**arrays: Any) -> None:
    """Raise unless all arrays have the shape of the first."""
    shapes = {name: np.shape(array) for name, array in arrays.items()}
    reference, expected = next(iter(shapes.items()))
    for name, shape in shapes.items():
        if shape != expected:
            raise ValueError(f"{name}: got shape {shape}, takes the shape of {reference}, {expected}")


def number(name: str, got: Any, low: float, high: float, *, open_high: bool = False, rule: str = "") -> None:
    """Raise unless a concrete number lies in [low, high] (or [low, high)); traced and batched values pass."""
    if not isinstance(got, (int, float, np.number)):
        return
    inside = low <= got < high if open_high else low <= got <= high
    if not inside:
        bracket = ")" if open_high else "]"
        raise ValueError(f"{name}: got {got}, takes a number in [{low:g}, {high:g}{bracket}{rule}")
