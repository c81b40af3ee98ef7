"""Argument checks. Errors are one line: `name: expected X, got Y`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np


def one_of(name: str, got: object, allowed: Iterable[str]) -> None:
    """Raise unless `got` is one of `allowed`."""
    choices = list(allowed)
    if got not in choices:
        raise ValueError(f"{name}: expected one of {', '.join(map(repr, choices))}, got {got!r}")


def same_shape(**arrays: Any) -> None:
    """Raise unless all arrays have the shape of the first."""
    shapes = {name: np.shape(array) for name, array in arrays.items()}
    reference, expected = next(iter(shapes.items()))
    for name, shape in shapes.items():
        if shape != expected:
            raise ValueError(f"{name}: expected the shape of {reference}, {expected}, got shape {shape}")


def number(name: str, got: Any, low: float, high: float, *, open_high: bool = False, rule: str = "") -> None:
    """Raise unless a number, or every entry of a NumPy array, is in [low, high] (or [low, high)).

    JAX arrays are not checked, since a traced array has no value.
    """
    expected = f"expected a number in [{low:g}, {high:g}{')' if open_high else ']'}{rule}"
    if isinstance(got, (int, float, np.number, np.ndarray)):
        numbers = np.asarray(got)
        wrong = numbers[~((low <= numbers) & ((numbers < high) if open_high else (numbers <= high)))]
        if wrong.size:
            raise ValueError(f"{name}: {expected}, got {wrong.flat[0]}")
    elif not hasattr(got, "dtype"):
        raise ValueError(f"{name}: {expected}, got {got!r}")


def whole(name: str, got: object) -> None:
    """Raise unless `got` is a whole number of at least 1."""
    if not isinstance(got, (int, np.integer)) or got < 1:
        raise ValueError(f"{name}: expected a whole number of at least 1, got {got!r}")
