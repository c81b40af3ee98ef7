"""Samples of `Dict`, `Tuple`, `MultiDiscrete` and `MultiBinary` spaces as vectors, and vectors as such samples."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, TypeVar

import numpy as np

from nextpolicy.types import Array, PyTree

ArrayT = TypeVar("ArrayT", np.ndarray, Array)
DType = np.dtype | type[np.generic]
_MOST_SHOWN = 8  # sizes in a message


@dataclass(frozen=True)
class Leaf:
    """One array of a sample. Its elements are numbers, or choices among `sizes` values that count from `starts`."""

    shape: tuple[int, ...]
    dtype: DType = field(compare=False)
    sizes: tuple[int, ...] = ()  # of each element in C order; empty: numbers
    starts: tuple[int, ...] = ()

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def is_bytes(self) -> bool:
        return not self.sizes and self.dtype == np.uint8

    def __str__(self) -> str:
        if not self.sizes:
            return f"shape {self.shape}"
        if not self.shape:
            return f"a whole number from {self.starts[0]} to {self.starts[0] + self.sizes[0] - 1}"
        more = ", ..." if len(self.sizes) > _MOST_SHOWN else ""
        return f"MultiDiscrete({', '.join(map(str, self.sizes[:_MOST_SHOWN]))}{more})"


@dataclass(frozen=True)
class Nest:
    """A Dict (with `keys`, in the space's own order) or a Tuple of parts."""

    keys: tuple[str, ...] | None
    parts: tuple[Leaf | Nest, ...]

    def __str__(self) -> str:
        if self.keys is None:
            return f"({', '.join(map(str, self.parts))}{',' if len(self.parts) == 1 else ''})"
        return "{" + ", ".join(f"{k!r}: {part}" for k, part in zip(self.keys, self.parts, strict=True)) + "}"


Tree = Leaf | Nest


def leaves(tree: Tree) -> Iterator[Leaf]:
    """The arrays of a sample, in order."""
    if isinstance(tree, Leaf):
        yield tree
    else:
        for part in tree.parts:
            yield from leaves(part)


@dataclass(frozen=True)
class MultiDiscrete:
    """A independent choices; policies and training count all of them from 0, in int32 [A]."""

    tree: Tree  # how the environment's own actions hold them

    @functools.cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of values of each choice."""
        return tuple(size for leaf in leaves(self.tree) for size in leaf.sizes)

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.sizes),)

    @property
    def outputs(self) -> int:
        return sum(self.sizes)

    def legal(self, action: ArrayT) -> ArrayT:
        """A policy's actions [..., A], counted from where each choice starts."""
        starts = np.asarray([start for leaf in leaves(self.tree) for start in leaf.starts])
        return action + starts.reshape((1,) * (action.ndim - 1) + (-1,))


def width(tree: Tree) -> int:
    """F, the length of a flat sample."""
    return sum(sum(leaf.sizes) or leaf.elements for leaf in leaves(tree))


def flat_dtype(tree: Tree) -> type[np.uint8 | np.float32]:
    """uint8 if all arrays are bytes, else float32."""
    return np.uint8 if all(leaf.is_bytes for leaf in leaves(tree)) else np.float32


def byte_scale(tree: Tree) -> np.ndarray | None:
    """[F]: 1/255 where bytes were flattened together with other numbers, else 1; None if there are no such bytes."""
    if flat_dtype(tree) == np.uint8 or not any(leaf.is_bytes for leaf in leaves(tree)):
        return None
    columns = [np.full(width(leaf), 1 / 255 if leaf.is_bytes else 1.0, np.float32) for leaf in leaves(tree)]
    return np.concatenate(columns)


def flatten(tree: Tree, sample: PyTree, xp: ModuleType = np, name: str = "obs") -> Any:
    """A sample, or a batch with leading axes in every array, as a vector [..., F] of `flat_dtype`.

    The order is that of `gymnasium.spaces.utils.flatten`: parts in the order of the space, choices one-hot. `xp` is
    NumPy, or `jax.numpy` under a trace, where values cannot be checked. `name` begins the error message.
    """
    arrays = [(path, leaf, _array(path, leaf, value, xp)) for path, leaf, value in _pairs(tree, sample, name)]
    first, leaf, array = arrays[0]
    lead = _lead(leaf, array)
    rows = []
    for path, leaf, array in arrays:
        if _lead(leaf, array) != lead:
            got = _lead(leaf, array)
            raise ValueError(f"{path}: expected a batch of shape {lead}, as in {first}, got one of shape {got}")
        row = array.reshape((*lead, leaf.elements))
        if leaf.sizes:
            if xp is np:
                _check_choices(path, leaf, row)
            column, value = _one_hot(leaf)
            row = row[..., column] == value.reshape((1,) * len(lead) + (-1,))
        rows.append(row.astype(flat_dtype(tree)))
    return xp.concatenate(rows, axis=-1)


def unflatten(tree: Tree, values: Any, own_dtypes: bool) -> PyTree:
    """Elements [..., A] as a sample with leading axes [...]; `own_dtypes` casts NumPy values to the space's types."""
    lead, used = values.shape[:-1], 0

    def build(tree: Tree) -> PyTree:
        nonlocal used
        if isinstance(tree, Leaf):
            part = values[..., used : used + tree.elements].reshape((*lead, *tree.shape))
            used += tree.elements
            part = part.astype(tree.dtype) if own_dtypes else part
            return part[()] if tree.sizes else part  # one choice is a NumPy integer, as in a Discrete space
        parts = tuple(build(part) for part in tree.parts)
        return parts if tree.keys is None else dict(zip(tree.keys, parts, strict=True))

    return build(tree)


def _pairs(tree: Tree, sample: PyTree, path: str) -> Iterator[tuple[str, Leaf, Any]]:
    """(path, leaf, value) of each array of a sample."""
    if isinstance(tree, Leaf):
        yield path, tree, sample
    elif tree.keys is None:
        if not isinstance(sample, (tuple, list)) or len(sample) != len(tree.parts):
            raise ValueError(f"{path}: expected a tuple of {len(tree.parts)}, {tree}, got {_kind(sample)}")
        for i, part in enumerate(tree.parts):
            yield from _pairs(part, sample[i], f"{path}[{i}]")
    else:
        # Gymnax environments may return an object with attributes in place of a dict.
        get = sample.__getitem__ if isinstance(sample, Mapping) else functools.partial(getattr, sample)
        has = sample.__contains__ if isinstance(sample, Mapping) else functools.partial(hasattr, sample)
        if not all(has(key) for key in tree.keys):
            hint = "; write `obs, info = env.reset()`" if isinstance(sample, tuple) and len(sample) == 2 else ""
            raise ValueError(f"{path}: expected a dict, {tree}, got {_kind(sample)}{hint}")
        for key, part in zip(tree.keys, tree.parts, strict=True):
            yield from _pairs(part, get(key), f"{path}[{key!r}]")


def _kind(value: object) -> str:
    if isinstance(value, Mapping):
        return f"a dict with {', '.join(map(repr, value)) or 'no keys'}"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of length {len(value)}"
    return f"shape {value.shape}" if hasattr(value, "shape") else type(value).__name__


def _array(path: str, leaf: Leaf, value: Any, xp: ModuleType) -> Any:
    """A leaf's value as an array with the leaf's trailing axes. Raises if it is none."""
    try:
        array = xp.asarray(value)
    except (TypeError, ValueError):  # ragged, or no numbers
        raise ValueError(f"{path}: expected {leaf}, got {_kind(value)}") from None
    before = array.ndim - len(leaf.shape)
    if (
        array.dtype.kind not in "biuf"
        or before < 0
        or array.shape[before:] != leaf.shape
        or not all(array.shape[:before])
    ):
        raise ValueError(f"{path}: expected {leaf}, or a batch, got {array.dtype} of shape {array.shape}")
    return array


def _lead(leaf: Leaf, array: Any) -> tuple[int, ...]:
    return tuple(array.shape[: array.ndim - len(leaf.shape)])


def _check_choices(path: str, leaf: Leaf, row: np.ndarray) -> None:
    """Raise if an element of `row` [..., elements] is not among its values."""
    low = np.asarray(leaf.starts)
    wrong = (row < low) | (row > low + np.asarray(leaf.sizes) - 1) | (row % 1 != 0)
    if wrong.any():
        at = tuple(np.argwhere(wrong)[0])
        size, start = leaf.sizes[at[-1]], leaf.starts[at[-1]]
        raise ValueError(f"{path}: expected a whole number from {start} to {start + size - 1}, got {row[at]}")


@functools.cache
def _one_hot(leaf: Leaf) -> tuple[np.ndarray, np.ndarray]:
    """For each column of a one-hot leaf, the element that it describes and the value that makes it 1."""
    column = np.repeat(np.arange(leaf.elements), leaf.sizes)
    value = [start + np.arange(size) for start, size in zip(leaf.starts, leaf.sizes, strict=True)]
    return column, np.concatenate(value)
