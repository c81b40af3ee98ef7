"""Max-pooling with a gradient that is one pass over memory.

XLA's gradient of a pooling window is a scatter: it searches each window again and adds to its maximum atomically. Here
the forward pass keeps the place of each maximum, 0 to 8 (row by row), and the gradient of a pixel is a sum over the one
to four windows that contain it.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from nextpolicy.types import Array


@jax.custom_vjp
def max_pool(x: Array) -> Array:
    """Maxima of 3 x 3 windows, two pixels apart, of images [B, H, W, C]: [B, ceil(H / 2), ceil(W / 2), C].

    Padded as "SAME" in Flax's `max_pool`. The gradient of equal maxima goes to the first.
    """
    return _pool(x)[0]


def _pool(x: Array) -> tuple[Array, Array]:
    """Maxima and their places."""
    (rows, *above), (columns, *left) = placement(x.shape[1]), placement(x.shape[2])
    x = jnp.pad(x, [(0, 0), tuple(above), tuple(left), (0, 0)], constant_values=-jnp.inf)
    best, place = x[:, : 2 * rows - 1 : 2, : 2 * columns - 1 : 2], jnp.zeros((), jnp.uint8)
    for k in range(1, 9):
        i, j = divmod(k, 3)
        pixel = x[:, i : i + 2 * rows - 1 : 2, j : j + 2 * columns - 1 : 2]
        place = jnp.where(pixel > best, jnp.uint8(k), place)
        best = jnp.maximum(best, pixel)
    return best, place


def placement(size: int) -> tuple[int, int, int]:
    """Number of windows along an axis of `size` pixels, and the padding before and after it."""
    windows = -(-size // 2)
    padding = 2 * windows + 1 - size
    return windows, padding // 2, padding - padding // 2


def _forward(x: Array) -> tuple[Array, tuple[Array, Array]]:
    best, place = _pool(x)
    return best, (place, jnp.zeros((0, *x.shape[1:]), x.dtype))


def _backward(kept: tuple[Array, Array], gradient: Array) -> tuple[Array]:
    place, like = kept
    own = [jnp.where(place == k, gradient, jnp.zeros((), gradient.dtype)) for k in range(9)]
    top, middle, bottom = (_merge((own[i], own[i + 1], own[i + 2]), 2, like.shape[2]) for i in (0, 3, 6))
    return (_merge((top, middle, bottom), 1, like.shape[1]),)


def _merge(own: tuple[Array, Array, Array], axis: int, size: int) -> Array:
    """Gradients of `size` pixels along an axis from those of the first, middle and last pixel of each window.

    Windows overlap: the last pixel of one is the first of the next. Middle pixels are in one window only.
    """
    windows, before, _ = placement(size)
    first, middle, last = own
    pad = lambda x, low, high: jnp.pad(x, [(low, high) if a == axis else (0, 0) for a in range(x.ndim)])  # noqa: E731
    pairs = jnp.stack([pad(first, 0, 1) + pad(last, 1, 0), pad(middle, 0, 1)], axis + 1)
    shape = list(first.shape)
    shape[axis] = 2 * (windows + 1)
    return jax.lax.slice_in_dim(pairs.reshape(shape), before, before + size, axis=axis)


max_pool.defvjp(_forward, _backward)
