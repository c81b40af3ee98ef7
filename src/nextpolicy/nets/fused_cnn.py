"""The small CNN as three GPU kernels, in bfloat16 with float32 accumulation.

XLA writes the features of the convolution, for MinAtar 64 pixels x 16 channels per sample, to memory after the
convolution, after LayerNorm and after the activation, and reads them again. Here they never leave the chip.

The convolution is a matmul. A window is a run of P output pixels in one image row. Its inputs lie in three image rows,
one contiguous range of memory. `band` [K, 16 P] maps this range to the window's features and is the same for every
window u:

    z_0[u] = x[window u] @ band + b_0,  h_0[u] = act(norm(z_0[u])),  z_1 = sum_u h_0[u] W_1[u] + b_1,
    h_l = act(norm(z_l)),  z_{l+1} = h_l W_{l+1} + b_{l+1},  out = z_L

Most of `band` is zero, but its tiles fit the tensor cores. The mean over channels that LayerNorm subtracts from
z_0 is subtracted from the weights instead. The backward pass computes z_0 again from x and keeps its sums on the chip:
one program computes the gradients of one window from all samples.

Shapes: x [B, H, W, C], W_1 [windows * 16 P, H_1], W_l [H_{l-1}, H_l]. `jax.vmap` adds a population axis to the grids.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from nextpolicy.nets import cnn_kernels, kernels
from nextpolicy.nets.cnn_kernels import CHANNELS, PIXELS, Read, Static, Windows, block_rows
from nextpolicy.types import Array

LONGEST = 272  # inputs of a window: ten channels in rows of ten pixels. More may exceed the shared memory


class Layer(NamedTuple):
    """A dense or convolutional layer, and the affine map of its LayerNorm."""

    kernel: Array  # [F, H]
    bias: Array  # [H]
    scale: Array | None = None  # [H]
    shift: Array | None = None  # [H]


class CNN(NamedTuple):
    """The layers of a network; the last of `dense` is the head, without activation."""

    conv: Layer
    dense: list[Layer]


class Weights(NamedTuple):
    """The layers in the layout of the kernels."""

    conv: Array  # [9 C, 16]
    dense: list[Array]  # W_1, ..., W_L
    vector: Array  # bias, scale and shift of every layer but the last, and the bias of the last


def supported(image: tuple[int, ...], hidden: tuple[int, ...], actions: int, activation: str) -> bool:
    """Whether the kernels support these images, dense layers and numbers of outputs on this device."""
    widths = kernels.WIDTHS[:-1]
    fits = bool(hidden) and all(w in widths for w in hidden) and actions <= widths[-1]
    fits = fits and activation in kernels.ACTIVATIONS
    return fits and Windows(*image).inputs <= LONGEST and kernels.large_shared_memory()


def bind(networks: list[CNN], image: tuple[int, int, int], activation: str) -> Callable[[Array], list[Array]]:
    """A function from images x [..., H, W, C] to float32 outputs [..., A] of each network.

    The networks have equal hidden layers and run side by side in the same kernels. Gradients with respect to x are NaN.
    """
    static = Static(image, networks[0].conv.scale is not None, activation)
    widths = [network.dense[-1].bias.shape[-1] for network in networks]
    wide = [_weights(static, network, max(widths)) for network in networks]
    many = len(networks) > 1
    weights = jax.tree.map(lambda *leaves: jnp.stack(leaves), *wide) if many else wide[0]
    read = (jax.vmap if many else lambda f: f)(partial(_read, static))(weights)
    run = partial(_apply, static)

    def apply(x: Array) -> list[Array]:
        lead = x.shape[: x.ndim - 3]
        rows = x.reshape(-1, math.prod(image)).astype(jnp.bfloat16)
        samples = rows.shape[0]
        length = max(static.windows.end, rows.shape[1])
        rows = kernels.pad(rows, (-samples % block_rows(samples), -(-length // 16) * 16 - rows.shape[1]))
        out = jax.vmap(run, in_axes=(0, 0, None))(read, weights, rows) if many else run(read, weights, rows)[None]
        return [out[i, :samples, :width].reshape(*lead, width) for i, width in enumerate(widths)]

    return apply


def _weights(static: Static, network: CNN, actions: int) -> Weights:
    conv, (*hidden, head) = network
    wider = next(w for w in kernels.WIDTHS if w >= actions) - head.bias.shape[-1]
    head = Layer(kernels.pad(head.kernel, (0, wider)), kernels.pad(head.bias, (wider,)))
    # Subtracting the mean from the weights subtracts it from z_0, at no cost.
    centre = lambda w: w - jnp.mean(w, axis=-1, keepdims=True) if static.norm else w  # noqa: E731
    conv = conv._replace(kernel=centre(conv.kernel), bias=centre(conv.bias))
    first, *rest = (layer.kernel for layer in [*hidden, head])
    vectors = [v for layer in [conv, *hidden] for v in _vectors(layer)]
    return Weights(conv.kernel, [_by_window(static, first), *rest], jnp.concatenate([*vectors, head.bias]))


def _read(static: Static, weights: Weights) -> Read:
    band, *dense = kernels.narrow([_band(static.windows, weights.conv), *weights.dense])
    return Read(band, dense, jax.lax.stop_gradient(weights.vector))


def _vectors(layer: Layer) -> list[Array]:
    """Bias, scale and shift."""
    zeros = jnp.zeros_like(layer.bias)
    return [layer.bias, zeros if layer.scale is None else layer.scale, zeros if layer.shift is None else layer.shift]


def _band(windows: Windows, kernel: Array) -> Array:
    """The convolution [9 C, 16] as a matrix [K, 16 P]. Pixel j reads columns j to j + 2 of three image rows."""
    rows = kernel.reshape(3, 3 * windows.channels, CHANNELS)

    def pixel(j: int) -> Array:
        before = [(i * windows.width + j) * windows.channels for i in range(3)]
        placed = [
            jnp.pad(row, ((n, windows.reach - n - row.shape[0]), (0, 0))) for n, row in zip(before, rows, strict=True)
        ]
        return placed[0] + placed[1] + placed[2]

    band = jnp.stack([pixel(j) for j in range(PIXELS)], axis=1).reshape(windows.reach, -1)
    return kernels.pad(band, (windows.inputs - windows.reach, 0))


def _by_window(static: Static, kernel: Array) -> Array:
    """W_1 [(H - 2) (W - 2) 16, N] with rows of zeros for pixels beyond the image."""
    windows = static.windows
    used = windows.width - 2
    split = kernel.reshape(windows.height - 2, used, CHANNELS * kernel.shape[-1])
    return kernels.pad(split, (0, windows.per_row * PIXELS - used, 0)).reshape(-1, kernel.shape[-1])


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _apply(static: Static, read: Read, weights: Weights, x: Array) -> Array:
    """Outputs from `read`. Gradients are with respect to the float32 originals, `weights`."""
    return cnn_kernels.forward(static, read, x, keep=False)[0]


def _apply_and_keep(static: Static, read: Read, weights: Weights, x: Array) -> tuple[Array, Any]:
    out, *z = cnn_kernels.forward(static, read, x, keep=True)
    return out, (read, x, z)


def _gradients(static: Static, kept: tuple[Read, Array, list[Array]], d_out: Array) -> tuple[None, Weights, Array]:
    read, x, z = kept
    *layers, sums = cnn_kernels.backward_dense(static, read, z, d_out)
    d_z, h = layers[: len(z)], layers[len(z) :]
    d_band, d_first, conv_sums = cnn_kernels.backward_conv(static, read, x, d_z[0])
    kernel = jax.ShapeDtypeStruct((9 * static.image[-1], CHANNELS), jnp.float32)
    (d_conv,) = jax.linear_transpose(partial(_band, static.windows), kernel)(jnp.sum(d_band, axis=0))
    rest = [kernels.product(a.T, d) for a, d in zip(h, [*d_z[1:], d_out.astype(jnp.bfloat16)], strict=True)]
    # The windows' sums are [3 * 16 P]: bias, scale and shift, each for P pixels.
    by_pixel = jnp.sum(conv_sums, axis=(0, 1)).reshape(3, PIXELS, CHANNELS)
    vector = jnp.concatenate([jnp.sum(by_pixel, axis=1).reshape(-1), jnp.sum(sums, axis=(0, 1))])
    # Nothing in training needs the gradient with respect to observations. NaN is better than a wrong 0.
    return None, Weights(d_conv, [d_first, *rest], vector), jnp.full_like(x, jnp.nan)


_apply.defvjp(_apply_and_keep, _gradients)
