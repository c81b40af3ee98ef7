"""Parameters packed into one vector, so that clipping and Adam take three operations instead of three per array.

On a GPU, a gradient step of a small network launches about forty kernels, and most take as long to launch as to run.
The same holds for the operations of a very small network on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from nextpolicy.types import Array, PyTree

_FEW = 2**14  # elements
_MULTIPLE = 128  # elements; with this alignment, loads are vectorised for every member of a population


class Form(NamedTuple):
    """Conversion of parameters, and of trees that contain copies of their structure, such as Adam's moments."""

    pack: Callable[[PyTree], PyTree]
    unpack: Callable[[PyTree], PyTree]


def pays_on_cpu(params: PyTree) -> bool:
    """Whether this is a CPU and the parameters are few: it then costs less to copy them than to start operations."""
    leaves = jax.tree.leaves(params)
    few = sum(leaf.size for leaf in leaves) <= _FEW and len({leaf.dtype for leaf in leaves}) == 1
    return few and jax.default_backend() == "cpu"


def identity() -> Form:
    """A form that changes nothing."""
    return Form(lambda tree: tree, lambda tree: tree)


def like(example: PyTree) -> Form:
    """Pack each subtree with the structure of `example` into one vector [P], largest leaves first.

    P is the number of elements, rounded up. The padding is zero and its gradient is zero, so it stays zero under any
    optimiser that does not move parameters whose gradients are always zero. `unpack` unpacks every leaf of shape [P].
    """
    structure: Any = jax.tree.structure(example)
    leaves = jax.tree.leaves(example)
    dtypes = {leaf.dtype for leaf in leaves}
    if len(dtypes) != 1:
        raise ValueError(
            f"example: expected leaves of one dtype, got {', '.join(sorted(map(str, dtypes))) or 'no leaves'}"
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
        pieces = jax.lax.split(vector, [*sizes, excess])  # its gradient is a single concatenation
        shaped = {i: piece.reshape(leaves[i].shape) for i, piece in zip(order, pieces, strict=False)}
        return jax.tree.unflatten(structure, [shaped[i] for i in range(len(leaves))])

    def pack(tree: PyTree) -> PyTree:
        return jax.tree.map(lambda x: ravel(x) if alike(x) else x, tree, is_leaf=alike)

    def unpack(tree: PyTree) -> PyTree:
        return jax.tree.map(lambda x: unravel(x) if x.shape == (length,) else x, tree)

    return Form(pack, unpack)
