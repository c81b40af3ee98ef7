"""A replay buffer on the device: a ring of C transitions that rounds of B transitions overwrite in order."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from nextpolicy.types import Array, PyTree


class Replay(NamedTuple):
    """Transitions as leaves [C, ...]; C is a multiple of the B transitions that are added at a time."""

    data: PyTree
    cursor: Array  # int32, where the next batch is written; a multiple of B
    size: Array  # int32, transitions held, at most C


def init(capacity: int, batch: PyTree) -> Replay:
    """An empty buffer for batches like `batch` (arrays or shapes, leaves [B, ...]).

    `capacity` is rounded down to a multiple of B, so that a batch never wraps around.
    """
    rows = jax.tree.leaves(batch)[0].shape[0]
    if capacity < rows:
        raise ValueError(f"capacity: expected at least one batch of {rows} transitions, got {capacity}")
    held = capacity // rows * rows
    empty = jax.tree.map(lambda x: jnp.zeros((held, *x.shape[1:]), x.dtype), batch)
    zero = jnp.zeros((), jnp.int32)
    return Replay(empty, zero, zero)


def add(replay: Replay, batch: PyTree) -> Replay:
    """The buffer after `batch` (leaves [B, ...]) has been written over the oldest transitions."""
    rows, capacity = (jax.tree.leaves(x)[0].shape[0] for x in (batch, replay.data))
    write = lambda held, new: jax.lax.dynamic_update_slice_in_dim(held, new, replay.cursor, axis=0)  # noqa: E731
    data = jax.tree.map(write, replay.data, batch)
    return Replay(data, (replay.cursor + rows) % capacity, jnp.minimum(replay.size + rows, capacity))


def indices(replay: Replay, key: Array, shape: tuple[int, ...]) -> Array:
    """Uniform indices of held transitions, drawn with replacement."""
    return jax.random.randint(key, shape, 0, replay.size)


def take(replay: Replay, index: Array) -> PyTree:
    """The transitions at `index`, leaves [*index.shape, ...]."""
    return jax.tree.map(lambda x: jnp.take(x, index, axis=0, mode="clip"), replay.data)
