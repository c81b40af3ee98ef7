"""Parameters as one vector, so that clipping and Adam are three operations for all of them and not three for each.

A gradient step of a small network on a GPU is some forty kernels, most of which take as long to start as to run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from nextpolicy.types import Array, PyTree

_MULTIPLE = 128  # of elements: whatever reads it then reads several at once, for every member of a population


class Form(NamedTuple):
    """Two ways to hold parameters, and whatever else contains trees like them, such as Adam's moments."""

    pack: Callable[[PyTree], PyTree]
    unpack: Callable[[PyTree], PyTree]


def identity() -> Form:
    """No change."""
    return Form(lambda tree: tree, lambda tree: tree)


def like(example: PyTree) -> Form:
    """Every part of a tree that has the structure of `example` as one vector [P], the largest leaves first.

    P is the number of elements, rounded up: what is added is zero, and stays zero under any step that leaves a
    parameter alone whose gradient is always zero. `unpack` takes any leaf [P] for such a vector.
    """
    structure: Any = jax.tree.structure(example)
    leaves = jax.tree.leaves(example)
    dtypes = {leaf.dtype for leaf in leaves}
    if len(dtypes) != 1:
        raise ValueError(
            f"example: expected one type, got leaves of {', '.join(sorted(map(str, dtypes))) or 'no type'}"
        )
    order = sorted(range(len(leaves)), key=lambda i: -leaves[i].size)
    sizes = [leaves[i].size for i in order]
    excess = -sum(sizes) % _MULTIPLE
    length = sum(sizes) + excess

    def alike(tree: PyTree) -> bool:
        return bool(structure == jax.tree.structure(tree))

    def ravel(tree: PyTree) -> Array:
        found = jax.tree.leaves(tree)
        return jnp.concatenate([*(found[i].reshape(-1) for i in order), jnp.zeros(excess, leaves[0].dtype)])

    def unravel(vector: Array) -> PyTree:
        pieces = jax.lax.split(vector, [*sizes, excess])  # whose gradient is one concatenation
        shaped = {i: piece.reshape(leaves[i].shape) for i, piece in zip(order, pieces, strict=False)}
        return jax.tree.unflatten(structure, [shaped[i] for i in range(len(leaves))])

    def pack(tree: PyTree) -> PyTree:
        return jax.tree.map(lambda x: ravel(x) if alike(x) else x, tree, is_leaf=alike)

    def unpack(tree: PyTree) -> PyTree:
        return jax.tree.map(lambda x: unravel(x) if x.shape == (length,) else x, tree)

    return Form(pack, unpack)
