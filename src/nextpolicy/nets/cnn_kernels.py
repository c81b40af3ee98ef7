"""The kernels of the fused small CNN, see `fused_cnn`."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from nextpolicy.nets import kernels
from nextpolicy.types import Array

CHANNELS = 16  # of the convolution
EPSILON = 1e-6  # of LayerNorm
# Output pixels per window; samples per block, warps and stages of the kernels: the fastest found on an H200.
PIXELS = 4
FEATURES = PIXELS * CHANNELS
ROWS, WARPS, STAGES = 64, 4, 3
FEW, FEW_ROWS = 512, 16  # samples per block of the forward kernel, for at most FEW samples
BACK_ROWS, BACK_WARPS = 128, 8


class Read(NamedTuple):
    """What the kernels read: bfloat16 matrices and float32 vectors."""

    band: Array
    dense: list[Array]
    vector: Array


class Static(NamedTuple):
    """Properties that are fixed at compile time."""

    image: tuple[int, int, int]  # H, W, C
    norm: bool
    activation: str

    @property
    def windows(self) -> Windows:
        return Windows(*self.image)

    def activate(self, z: Array) -> Array:
        return kernels.activate(self.activation, z)


class Windows(NamedTuple):
    """The windows of an image [H, W, C]."""

    height: int
    width: int
    channels: int

    @property
    def per_row(self) -> int:
        """Windows per image row. The last may exceed the row; W_1 is 0 for such pixels."""
        return -(-(self.width - 2) // PIXELS)

    @property
    def number(self) -> int:
        return (self.height - 2) * self.per_row

    @property
    def reach(self) -> int:
        """Number of inputs from a window's first to its last."""
        return (2 * self.width + PIXELS + 2) * self.channels

    @property
    def pieces(self) -> list[tuple[int, int]]:
        """`reach` as ranges (first, length) whose lengths are powers of two from 16 to 128; the last may exceed it."""
        found, first = [], 0
        while first < self.reach:
            left = -(-(self.reach - first) // 16) * 16
            length = next(n for n in (128, 64, 32, 16) if left > 3 * n // 4)
            found.append((first, length))
            first += length
        return found

    def start(self, window: Any) -> Any:
        """Index of a window's first input."""
        per_row = jnp.int32(self.per_row)
        row, column = jax.lax.div(window, per_row), jax.lax.rem(window, per_row)  # Pallas does not support `//`
        return (row * self.width + column * PIXELS) * self.channels

    @property
    def inputs(self) -> int:
        """Rows of `band`: `reach`, rounded up."""
        return sum(self.pieces[-1])

    @property
    def end(self) -> int:
        """Index after the last input that is read."""
        last = ((self.height - 3) * self.width + (self.per_row - 1) * PIXELS) * self.channels
        return last + self.inputs


def block_rows(samples: int) -> int:
    """Samples per block of the forward kernel."""
    return ROWS if samples > FEW else FEW_ROWS


def _options(warps: int, stages: int) -> dict[str, Any]:
    return {
        "compiler_params": triton.CompilerParams(num_warps=warps, num_stages=stages),
        "interpret": kernels.INTERPRET,
    }


def forward(static: Static, read: Read, x: Array, keep: bool) -> list[Array]:
    """[out, z_1, ..., z_{L-1}] if `keep`, else [out]."""
    block = block_rows(x.shape[0])
    outputs = [kernels.shape(x.shape[0], read.dense[-1].shape[1])]
    if keep:
        outputs += [kernels.shape(x.shape[0], w.shape[1], dtype=jnp.bfloat16) for w in read.dense[:-1]]
    whole = [read.band, *read.dense, read.vector]
    return pl.pallas_call(
        partial(_forward_kernel, static, len(read.dense)),
        grid=(x.shape[0] // block,),
        in_specs=[kernels.by_rows(block, x), *map(kernels.whole, whole)],
        out_specs=[kernels.by_rows(block, o) for o in outputs],
        out_shape=outputs,
        name="cnn_forward",
        **_options(WARPS, STAGES if block < ROWS or len(static.windows.pieces) == 1 else 1),
    )(x, *whole)


def _forward_kernel(static: Static, depth: int, x_ref: Any, band_ref: Any, *refs: Any) -> None:
    weight_refs, vector_ref, (out_ref, *z_refs) = refs[:depth], refs[depth], refs[depth + 1 :]
    conv = _Convolution(static, x_ref, band_ref, vector_ref)

    def one_window(u: Any, total: Array) -> Array:
        h, *_ = conv.forward(conv.inputs(u, slice(None)))
        return total + triton.dot(h.astype(jnp.bfloat16), weight_refs[0][pl.ds(u * FEATURES, FEATURES), :])

    empty = jnp.zeros((x_ref.shape[0], weight_refs[0].shape[1]), jnp.float32)
    z = jax.lax.fori_loop(0, static.windows.number, one_window, empty)
    first = 3 * CHANNELS
    for layer in range(depth - 1):
        width = z.shape[1]
        bias, scale, shift = (vector_ref[pl.ds(first + i * width, width)][None] for i in range(3))
        z = z + bias
        if z_refs:
            z_refs[layer][...] = z.astype(jnp.bfloat16)
        a = _normalised(z)[0] * scale + shift if static.norm else z
        z = triton.dot(static.activate(a).astype(jnp.bfloat16), weight_refs[layer + 1][...])
        first += 3 * width
    out_ref[...] = z + vector_ref[pl.ds(first, z.shape[1])][None]


class _Convolution:
    """The first layer inside a kernel."""

    def __init__(self, static: Static, x_ref: Any, band_ref: Any, vector_ref: Any) -> None:
        self.static, self.x_ref = static, x_ref
        self.bands = [band_ref[pl.ds(first, size), :] for first, size in static.windows.pieces]
        tiles = (_repeat(vector_ref[pl.ds(i * CHANNELS, CHANNELS)][None]) for i in range(3))
        self.bias, self.scale, self.shift = tiles

    def inputs(self, window: Any, rows: Any) -> list[Array]:
        """Inputs of a window, one array for each piece of `band`."""
        start = self.static.windows.start(window)
        return [self.x_ref[rows, pl.ds(start + first, size)] for first, size in self.static.windows.pieces]

    def forward(self, inputs: list[Array]) -> tuple[Array, Array, Array]:
        """h_0 of a window, z_0 normalised, and the reciprocal of its standard deviation, all [rows, 16 P]."""
        z = sum(triton.dot(x, b) for x, b in zip(inputs, self.bands, strict=True)) + self.bias
        if not self.static.norm:
            return self.static.activate(z), z, jnp.ones_like(z)
        deviation = jax.lax.rsqrt(_pixel_mean(z * z) + EPSILON)
        normal = z * deviation
        return self.static.activate(normal * self.scale + self.shift), normal, deviation


def _repeat(x: Array) -> Array:
    """[1, 16] repeated for each pixel, [1, 16 P]."""
    return jnp.broadcast_to(x[:, None, :], (1, PIXELS, CHANNELS)).reshape(1, FEATURES)


def _pixel_mean(x: Array) -> Array:
    """The mean over the channels of each pixel, at all of them: [rows, 16 P] to the same shape."""
    grouped = x.reshape(x.shape[0], -1, CHANNELS)
    mean = jnp.sum(grouped, axis=2) * (1.0 / CHANNELS)
    return jnp.broadcast_to(mean[:, :, None], grouped.shape).reshape(x.shape)


def _row_mean(x: Array) -> Array:
    """[rows, H] to [rows, 1]."""
    return (jnp.sum(x, axis=1) * (1.0 / x.shape[1]))[:, None]


def _normalised(z: Array) -> tuple[Array, Array]:
    """z [rows, H] with mean 0 and variance 1 in each row, and the reciprocal of its standard deviation [rows, 1]."""
    z = z - _row_mean(z)
    deviation = jax.lax.rsqrt(_row_mean(z * z) + EPSILON)
    return z * deviation, deviation


def backward_dense(static: Static, read: Read, z: list[Array], d_out: Array) -> list[Array]:
    """dz_1, ..., h_1, ..., and sums over blocks of samples for the gradients of the layers' vectors, [blocks, 1, N]."""
    block = math.gcd(ROWS, d_out.shape[0])
    alike = [kernels.shape(*a.shape, dtype=jnp.bfloat16) for a in z]
    sums = kernels.shape(d_out.shape[0] // block, 1, sum(3 * a.shape[1] for a in z) + d_out.shape[1])
    whole = [*read.dense[1:], read.vector]
    return pl.pallas_call(
        partial(_backward_dense_kernel, static, len(z)),
        grid=(d_out.shape[0] // block,),
        in_specs=[*(kernels.by_rows(block, a) for a in [d_out, *z]), *map(kernels.whole, whole)],
        out_specs=[*(kernels.by_rows(block, a) for a in [*z, *z]), kernels.one_each(sums)],
        out_shape=[*alike, *alike, sums],
        name="cnn_backward_dense",
        **_options(WARPS, STAGES),
    )(d_out, *z, *whole)


def _backward_dense_kernel(static: Static, depth: int, d_out_ref: Any, *refs: Any) -> None:
    z_refs, weight_refs, vector_ref = refs[:depth], refs[depth : 2 * depth], refs[2 * depth]
    d_z_refs, h_refs, sum_ref = refs[2 * depth + 1 : 3 * depth + 1], refs[3 * depth + 1 : 4 * depth + 1], refs[-1]
    d = d_out_ref[...]
    first = sum(3 * z.shape[1] for z in z_refs)
    sum_ref[0, 0, pl.ds(first, d.shape[1])] = jnp.sum(d, axis=0)
    for layer in reversed(range(depth)):
        width = z_refs[layer].shape[1]
        first -= 3 * width
        scale, shift = (vector_ref[pl.ds(3 * CHANNELS + first + i * width, width)][None] for i in (1, 2))
        d = triton.dot(d.astype(jnp.bfloat16), weight_refs[layer][...], trans_b=True)
        z = z_refs[layer][...].astype(jnp.float32)
        normal, deviation = _normalised(z) if static.norm else (z, None)
        h = static.activate(normal * scale + shift if static.norm else z)
        h_refs[layer][...] = h.astype(jnp.bfloat16)
        d = d * kernels.slope(static.activation, h)
        sums = [jnp.zeros(width, jnp.float32)] * 2
        if deviation is not None:
            sums = [jnp.sum(d * normal, axis=0), jnp.sum(d, axis=0)]
            d = d * scale
            d = (d - _row_mean(d) - normal * _row_mean(d * normal)) * deviation
        for i, total in enumerate([jnp.sum(d, axis=0), *sums]):
            sum_ref[0, 0, pl.ds(first + i * width, width)] = total
        d_z_refs[layer][...] = d.astype(jnp.bfloat16)


def backward_conv(static: Static, read: Read, x: Array, d_z: Array) -> list[Array]:
    """Gradients of `band` per window [windows, K, 16 P], of W_1, and of the vectors per window [windows, 1, 48 P]."""
    count, block = static.windows.number, math.gcd(BACK_ROWS, x.shape[0])
    first = pl.BlockSpec((FEATURES, d_z.shape[1]), lambda u: (u, 0))
    d_band = kernels.shape(count, *read.band.shape)
    sums = kernels.shape(count, 1, 3 * FEATURES)
    return pl.pallas_call(
        partial(_backward_conv_kernel, static, block),
        grid=(count,),
        in_specs=[*map(kernels.whole, [x, d_z, read.band]), first, kernels.whole(read.vector)],
        out_specs=[pl.BlockSpec((1, *d_band.shape[1:]), lambda u: (u, 0, 0)), first, kernels.one_each(sums)],
        out_shape=[d_band, kernels.shape(*read.dense[0].shape), sums],
        name="cnn_backward_conv",
        **_options(BACK_WARPS, 2 if len(static.windows.pieces) == 1 else 1),  # limited by shared memory
    )(x, d_z, read.band, read.dense[0], read.vector)


def _backward_conv_kernel(static: Static, block: int, x_ref: Any, d_z_ref: Any, band_ref: Any, *refs: Any) -> None:
    w_ref, vector_ref, d_band_ref, d_w_ref, sum_ref = refs
    conv, w, window = _Convolution(static, x_ref, band_ref, vector_ref), w_ref[...], pl.program_id(0)
    ones = jnp.ones((16, block), jnp.bfloat16)
    column_sums = lambda x: triton.dot(ones, x.astype(jnp.bfloat16))  # noqa: E731  (faster than a reduction over threads)

    def one_block(i: Any, totals: Any) -> Any:
        d_bands, d_w, vectors = totals
        rows = pl.ds(i * block, block)
        inputs, above = conv.inputs(window, rows), d_z_ref[rows, :]
        h, normal, deviation = conv.forward(inputs)
        d_w = d_w + triton.dot(above, h.astype(jnp.bfloat16), trans_a=True)
        d = triton.dot(above, w, trans_b=True) * kernels.slope(static.activation, h)
        new = []
        if static.norm:
            new = [column_sums(d * normal), column_sums(d)]
            d = d * conv.scale
            d = (d - normal * _pixel_mean(d * normal)) * deviation
        new = [column_sums(d), *new]
        d_bands = [
            t + triton.dot(x, d.astype(jnp.bfloat16), trans_a=True) for t, x in zip(d_bands, inputs, strict=True)
        ]
        return d_bands, d_w, [total + n for total, n in zip(vectors, new, strict=True)]

    zeros = lambda *shape: jnp.zeros(shape, jnp.float32)  # noqa: E731
    pieces = static.windows.pieces
    vectors = [zeros(16, FEATURES)] * (3 if static.norm else 1)
    empty = [zeros(size, FEATURES) for _, size in pieces], zeros(*w.shape[::-1]), vectors
    d_bands, d_w, vectors = jax.lax.fori_loop(0, x_ref.shape[0] // block, one_block, empty)
    for (first, size), total in zip(pieces, d_bands, strict=True):
        d_band_ref[0, pl.ds(first, size), :] = total
    d_w_ref[...] = d_w.T
    for i in range(3):
        at = pl.ds(i * FEATURES, FEATURES)
        sum_ref[0, 0, at] = jnp.sum(vectors[i], axis=0) * (1 / 16) if i < len(vectors) else zeros(FEATURES)
