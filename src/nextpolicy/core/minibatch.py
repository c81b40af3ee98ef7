"""Minibatches as indices: a permutation per epoch and a gather per gradient step, never a shuffled copy."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from nextpolicy.core import check
from nextpolicy.types import Array, PyTree


def indices(key: Array, batch_size: int, epochs: int, minibatches: int) -> Array:
    """[epochs * minibatches, batch_size / minibatches] sample numbers; each epoch permutes them all afresh."""
    check.whole("batch_size", batch_size)
    check.whole("epochs", epochs)
    if minibatches < 1 or batch_size % minibatches or not isinstance(minibatches, int):
        raise ValueError(f"minibatches: got {minibatches}, takes a divisor of the batch size, which is {batch_size}")
    permute = jax.vmap(lambda k: jax.random.permutation(k, batch_size))
    return permute(jax.random.split(key, epochs)).reshape(epochs * minibatches, -1)


def flatten(batch: PyTree) -> PyTree:
    """[T, N, ...] leaves as [T * N, ...]; a reshape, not a copy."""
    return jax.tree.map(lambda x: x.reshape((-1, *x.shape[2:])), batch)


def take(batch: PyTree, index: Array) -> PyTree:
    """The samples numbered `index` of a flattened batch."""
    return jax.tree.map(lambda x: jnp.take(x, index, axis=0, unique_indices=True, mode="clip"), batch)
