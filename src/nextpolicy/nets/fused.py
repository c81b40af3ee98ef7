"""A small MLP as one forward and one backward GPU kernel, in bfloat16 with float32 accumulation.

XLA runs each layer as a matmul and then reads the result again for the bias and the activation, in both passes.
For layers of width 256, this memory traffic costs more than the arithmetic. Here, a block of samples stays on the chip
through all layers. The forward kernel writes only the activations that the backward pass reads. The backward kernel
writes the gradients with respect to the pre-activations z_l, and per-block sums for the bias gradients. XLA computes
the weight gradients, which are matmuls.

    h_0 = x,  z_l = h_{l-1} W_l + b_l,  h_l = act(z_l) for l < L,  out = z_L

Shapes: x [B, D], W_l [H_{l-1}, H_l], b_l [H_l]; B samples. `jax.vmap` adds a population axis to the kernels' grid.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from nextpolicy.nets import kernels
from nextpolicy.nets.kernels import WIDTHS
from nextpolicy.types import Array

Layers = list[tuple[Array, Array]]  # (W_l, b_l), l = 1..L

# Samples per block, columns per matmul, warps: the fastest of 18 combinations on an H200.
ROWS, COLUMNS, WARPS = 64, 128, 4


def supported(hidden: tuple[int, ...], activation: str, layer_norm: bool) -> bool:
    """Whether the fused kernels support these hidden layers on this device."""
    fits = activation in kernels.ACTIVATIONS and not layer_norm and bool(hidden) and all(w in WIDTHS for w in hidden)
    return fits and kernels.tensor_cores()


def bind(networks: list[Layers], activation: str) -> Callable[[Array], list[Array]]:
    """A function from inputs x [..., D] to the float32 outputs [..., A] of each network.

    The networks have equal hidden widths and run side by side in the same kernels. For a small population this fills
    the GPU better than one network after another, with fewer kernel launches.
    """
    widths = [layers[-1][0].shape[-1] for layers in networks]
    inputs, first_width = networks[0][0][0].shape
    wide = [_padded(layers, max(widths)) for layers in networks]
    many = len(networks) > 1
    weights, bias = jax.tree.map(lambda *leaves: jnp.stack(leaves), *wide) if many else wide[0]
    read = kernels.narrow(weights), jax.lax.stop_gradient(bias)
    run = partial(_apply, activation)
    # The weight gradients of the first layers are matmuls with the same x. A single matmul needs a transposed dz_1; one
    # matmul per network needs a copy of x per network. Choose the smaller of the two.
    copied = many and inputs <= first_width

    def apply(x: Array) -> list[Array]:
        lead = x.shape[:-1]
        rows = x.reshape(-1, inputs).astype(jnp.bfloat16)
        samples = rows.shape[0]
        rows = kernels.pad(rows, (-samples % ROWS, _padding(inputs)))
        rows = jnp.broadcast_to(rows, (len(networks), *rows.shape)) if copied else rows
        each = jax.vmap(run, in_axes=(0, 0, 0, 0 if copied else None)) if many else run
        out = each(read, weights, bias, rows)
        outs = out if many else out[None]
        return [outs[i, :samples, :width].reshape(*lead, width) for i, width in enumerate(widths)]

    return apply


def _padded(layers: Layers, actions: int) -> tuple[list[Array], Array]:
    """Weights, and all biases as one vector, with inputs and outputs padded to widths that the kernels support."""
    (first, _), (last, last_bias) = layers[0], layers[-1]
    weights = [w for w, _ in layers]
    weights[0] = kernels.pad(first, (_padding(first.shape[0]), 0))
    wider = actions + _padding(actions) - last.shape[1]
    weights[-1] = kernels.pad(weights[-1], (0, wider))
    return weights, jnp.concatenate([*(b for _, b in layers[:-1]), kernels.pad(last_bias, (wider,))])


def _padding(width: int) -> int:
    """Number of columns that pad `width` to 16, 32 or a multiple of 64."""
    return -width % next((w for w in WIDTHS[:2] if w >= width), 64)


def _chunks(width: int) -> list[Any]:
    """The columns of a layer as slices, one per matmul."""
    size = next(w for w in reversed(WIDTHS) if w <= COLUMNS and width % w == 0)
    return [pl.ds(first, size) for first in range(0, width, size)]


Read = tuple[list[Array], Array]  # bfloat16 weights and float32 biases


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _apply(activation: str, read: Read, weights: list[Array], bias: Array, x: Array) -> Array:
    """Outputs from `read`. Gradients are with respect to the float32 originals, `weights` and `bias`."""
    return _forward(activation, *read, x, keep=False)[0]


def _apply_and_keep(activation: str, read: Read, weights: list[Array], bias: Array, x: Array) -> tuple[Array, Any]:
    out, *hidden = _forward(activation, *read, x, keep=True)
    return out, (read[0], [x, *hidden])


def _gradients(
    activation: str, kept: tuple[list[Array], list[Array]], d_out: Array
) -> tuple[None, list[Array], Array, Array]:
    weights, inputs = kept
    d_z, sums = _backward(activation, weights, inputs[1:], d_out)
    d_weights = [kernels.product(h.T, d) for h, d in zip(inputs, [*d_z, d_out.astype(jnp.bfloat16)], strict=True)]
    d_x = kernels.product(d_z[0], weights[0].T).astype(inputs[0].dtype)  # XLA removes this if it is unused
    return None, d_weights, jnp.sum(sums, axis=(0, 1)), d_x


_apply.defvjp(_apply_and_keep, _gradients)


def _forward(activation: str, weights: list[Array], bias: Array, x: Array, keep: bool) -> list[Array]:
    """[out, h_1, ..., h_{L-1}] if `keep`, else [out]."""
    outputs = [kernels.shape(x.shape[0], weights[-1].shape[1])]
    if keep:
        outputs += [kernels.shape(x.shape[0], w.shape[1], dtype=jnp.bfloat16) for w in weights[:-1]]
    kernel = partial(_forward_kernel, activation, len(weights))
    return _call("mlp_forward", kernel, [x], [*weights, bias], outputs)


def _forward_kernel(activation: str, depth: int, x_ref: Any, *refs: Any) -> None:
    weight_refs, bias_ref, (out_ref, *hidden_refs) = refs[:depth], refs[depth], refs[depth + 1 :]
    inputs = [(at, x_ref[:, at]) for at in _chunks(x_ref.shape[1])]
    first = 0
    for layer, w_ref in enumerate(weight_refs):
        outputs = []
        for to in _chunks(w_ref.shape[1]):
            z = sum(triton.dot(h, w_ref[at, to]) for at, h in inputs) + bias_ref[_after(first, to)][None]
            if layer == depth - 1:
                out_ref[:, to] = z
                continue
            h = kernels.activate(activation, z).astype(jnp.bfloat16)
            outputs.append((to, h))
            if hidden_refs:
                hidden_refs[layer][:, to] = h
        inputs = outputs
        first += w_ref.shape[1]


def _after(first: int, columns: Any) -> Any:
    """The slice `columns`, shifted by `first`."""
    return pl.ds(first + columns.start, columns.size)


def _backward(activation: str, weights: list[Array], hidden: list[Array], d_out: Array) -> tuple[list[Array], Array]:
    """[dz_1, ..., dz_{L-1}], and sums of these and of d_out over blocks of samples, [blocks, 1, sum_l H_l]."""
    outputs = [kernels.shape(*h.shape, dtype=jnp.bfloat16) for h in hidden]
    width = sum(h.shape[1] for h in [*hidden, d_out])
    outputs += [kernels.shape(d_out.shape[0] // ROWS, 1, width)]
    kernel = partial(_backward_kernel, activation, len(hidden))
    *d_z, sums = _call("mlp_backward", kernel, [d_out, *hidden], weights[1:], outputs)
    return d_z, sums


def _backward_kernel(activation: str, depth: int, d_out_ref: Any, *refs: Any) -> None:
    hidden_refs, weight_refs, d_z_refs = (refs[i * depth : (i + 1) * depth] for i in range(3))
    sum_ref = refs[3 * depth]
    first = sum(h.shape[1] for h in hidden_refs)
    gradients = []
    for at in _chunks(d_out_ref.shape[1]):
        d_out = d_out_ref[:, at]
        sum_ref[0, 0, _after(first, at)] = jnp.sum(d_out, axis=0)
        gradients.append((at, d_out.astype(jnp.bfloat16)))
    for layer in reversed(range(depth)):
        first -= hidden_refs[layer].shape[1]
        outputs = []
        for to in _chunks(hidden_refs[layer].shape[1]):
            d_h = sum(triton.dot(d, weight_refs[layer][to, at], trans_b=True) for at, d in gradients)
            h = hidden_refs[layer][:, to].astype(jnp.float32)
            d_z = d_h * kernels.slope(activation, h)
            sum_ref[0, 0, _after(first, to)] = jnp.sum(d_z, axis=0)
            d_z_refs[layer][:, to] = d_z.astype(jnp.bfloat16)
            outputs.append((to, d_z.astype(jnp.bfloat16)))
        gradients = outputs


def _call(name: str, kernel: Any, blocked: list[Array], whole: list[Array], outputs: list[Any]) -> list[Array]:
    """Run `kernel` once for each block of rows of `blocked`, with the full arrays `whole`.

    Outputs [B, H] are split into the same blocks of rows. In outputs [blocks, 1, H], each block writes one row.
    """
    return pl.pallas_call(
        kernel,
        grid=(blocked[0].shape[0] // ROWS,),
        in_specs=[*(kernels.by_rows(ROWS, a) for a in blocked), *map(kernels.whole, whole)],
        out_specs=[kernels.by_rows(ROWS, o) if len(o.shape) == 2 else kernels.one_each(o) for o in outputs],
        out_shape=outputs,
        compiler_params=triton.CompilerParams(num_warps=WARPS, num_stages=2),
        interpret=kernels.INTERPRET,
        name=name,
    )(*blocked, *whole)
