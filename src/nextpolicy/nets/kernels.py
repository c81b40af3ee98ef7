"""Building blocks of the fused GPU kernels: block specifications, padding and activations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from nextpolicy.types import Array

ACTIVATIONS = ("tanh", "relu")
INTERPRET = False  # tests set this before tracing, to run the kernels slowly in plain JAX on any device
WIDTHS = (16, 32, 64, 128, 256)  # Triton blocks must be powers of two, and wider layers do not fit on the chip


def tensor_cores() -> bool:
    """Whether the device is an NVIDIA GPU with bfloat16 tensor cores."""
    return _compute_capability() >= 8.0


def large_shared_memory() -> bool:
    """Whether a block can have 227 KiB of shared memory: the H100, H200 and B200. Only the H200 was tested."""
    return 9.0 <= _compute_capability() < 11.0


def _compute_capability() -> float:
    """Of the first device; 0 if it is not an NVIDIA GPU."""
    device = jax.devices()[0]
    if device.platform != "gpu" or "cuda" not in str(device.client.platform_version).lower():
        return 0.0
    return float(getattr(device, "compute_capability", 0))


def pad(x: Array, after: tuple[int, ...]) -> Array:
    """x with `after[i]` zeros at the end of axis i."""
    return jnp.pad(x, [(0, n) for n in after]) if any(after) else x


def narrow(weights: Sequence[Array]) -> list[Array]:
    """bfloat16 copies for the kernels. They have no gradient; the float32 originals do."""
    return [jax.lax.stop_gradient(w).astype(jnp.bfloat16) for w in weights]


def activate(activation: str, z: Array) -> Array:
    """act(z) inside a kernel."""
    if activation == "relu":
        return jnp.maximum(z, 0.0)
    # One instruction, accurate to 11 bits; bfloat16 keeps 8. An exact tanh would cost as much as the matmuls.
    return jnp.tanh(z) if INTERPRET else triton.approx_tanh(z)


def slope(activation: str, h: Array) -> Array:
    """act'(z) from h = act(z)."""
    return 1.0 - h * h if activation == "tanh" else jnp.where(h > 0.0, 1.0, 0.0)


def product(a: Array, b: Array) -> Array:
    """The float32 matmul of bfloat16 matrices, by XLA."""
    return jnp.matmul(a, b, preferred_element_type=jnp.float32)


def by_rows(rows: int, a: Any) -> pl.BlockSpec:
    """Block i holds the rows i * rows, ..., (i + 1) * rows - 1 of a matrix."""
    return pl.BlockSpec((rows, a.shape[1]), lambda i: (i, 0))


def one_each(a: Any) -> pl.BlockSpec:
    """Block i holds a[i], for a [blocks, 1, N]."""
    return pl.BlockSpec((1, 1, a.shape[2]), lambda i: (i, 0, 0))


def whole(a: Any) -> pl.BlockSpec:
    """Every block holds the full array."""
    return pl.BlockSpec(a.shape, lambda *_: (0,) * len(a.shape))


def shape(*dimensions: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    """Shape and dtype of an output."""
    return jax.ShapeDtypeStruct(dimensions, dtype)
