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

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from nextpolicy.types import Array

Layers = list[tuple[Array, Array]]  # (W_l, b_l), l = 1..L

ACTIVATIONS = ("tanh", "relu")
WIDTHS = (16, 32, 64, 128, 256)  # Triton blocks must be powers of two, and wider layers do not fit on the chip
ROWS, COLUMNS, WARPS = (
    64,
    128,
    4,
)  # samples per block, columns per matmul, warps: the fastest of 18 combinations on an H200


def supported(hidden: tuple[int, ...], activation: str, layer_norm: bool) -> bool:
    """Whether the fused kernels support these hidden layers on this device."""
    fits = activation in ACTIVATIONS and not layer_norm and bool(hidden) and all(w in WIDTHS for w in hidden)
    return fits and _tensor_cores()


def _tensor_cores() -> bool:
    """Whether the device is an NVIDIA GPU with bfloat16 tensor cores."""
    device = jax.devices()[0]
    if device.platform != "gpu" or "cuda" not in str(device.client.platform_version).lower():
        return False
    return float(getattr(device, "compute_capability", 0)) >= 8.0


def mlp(layers: Layers, x: Array, activation: str, interpret: bool = False) -> Array:
    """float32 outputs [..., A] of the network `layers` for inputs x [..., D].

    `interpret` runs the kernels slowly in plain JAX on any device, for tests.
    """
    lead, actions = x.shape[:-1], layers[-1][0].shape[-1]
    rows = x.reshape(-1, x.shape[-1]).astype(jnp.bfloat16)
    samples = rows.shape[0]
    rows = _pad(rows, (-samples % ROWS, _padding(x.shape[-1])))
    padded = list(layers)
    padded[0] = (_pad(padded[0][0], (_padding(x.shape[-1]), 0)), padded[0][1])
    padded[-1] = (_pad(padded[-1][0], (0, _padding(actions))), _pad(padded[-1][1], (_padding(actions),)))
    weights, biases = zip(*padded, strict=True)
    out = _apply((activation, interpret), list(weights), jnp.concatenate(biases), rows)
    return out[:samples, :actions].reshape(*lead, actions)


def mlps(networks: list[Layers], x: Array, activation: str, interpret: bool = False) -> list[Array]:
    """`mlp` of several networks with equal hidden widths on the same inputs, side by side in the same kernels.

    For a small population this fills the GPU better than one network after another, with fewer kernel launches.
    """
    if len(networks) == 1:
        return [mlp(networks[0], x, activation, interpret)]
    widths = [layers[-1][0].shape[-1] for layers in networks]
    widest = max(widths)
    alike = [
        [*layers[:-1], (_pad(layers[-1][0], (0, widest - width)), _pad(layers[-1][1], (widest - width,)))]
        for layers, width in zip(networks, widths, strict=True)
    ]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *alike)
    # The weight gradients of the first layers are matmuls with the same x. A single matmul needs a transposed dz_1; one
    # matmul per network needs a copy of x per network. Choose the smaller of the two.
    copied = x.shape[-1] <= networks[0][0][0].shape[-1]
    inputs = jnp.broadcast_to(x.astype(jnp.bfloat16), (len(networks), *x.shape)) if copied else x
    run = lambda layers, x: mlp(layers, x, activation, interpret)  # noqa: E731
    out = jax.vmap(run, in_axes=(0, 0 if copied else None))(stacked, inputs)
    return [out[i, ..., :width] for i, width in enumerate(widths)]


def _pad(x: Array, after: tuple[int, ...]) -> Array:
    return jnp.pad(x, [(0, n) for n in after]) if any(after) else x


def _padding(width: int) -> int:
    """Number of columns that pad `width` to 16, 32 or a multiple of 64."""
    return -width % next((w for w in WIDTHS[:2] if w >= width), 64)


def _chunks(width: int) -> list[Any]:
    """The columns of a layer as slices, one per matmul."""
    size = next(w for w in reversed(WIDTHS) if w <= COLUMNS and width % w == 0)
    return [pl.ds(first, size) for first in range(0, width, size)]


Static = tuple[str, bool]  # activation, interpret


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _apply(static: Static, weights: list[Array], bias: Array, x: Array) -> Array:
    return _forward(static, _narrow(weights), bias, x, keep=False)[0]


def _apply_and_keep(static: Static, weights: list[Array], bias: Array, x: Array) -> tuple[Array, Any]:
    narrow = _narrow(weights)
    out, *hidden = _forward(static, narrow, bias, x, keep=True)
    return out, (narrow, [x, *hidden])


def _gradients(static: Static, kept: tuple[list[Array], list[Array]], d_out: Array) -> tuple[list[Array], Array, Array]:
    weights, inputs = kept
    d_z, sums = _backward(static, weights, inputs[1:], d_out)
    product = partial(jnp.matmul, preferred_element_type=jnp.float32)
    d_weights = [product(h.T, d) for h, d in zip(inputs, [*d_z, d_out.astype(jnp.bfloat16)], strict=True)]
    d_x = product(d_z[0], weights[0].T).astype(inputs[0].dtype)  # XLA removes this if it is unused
    return d_weights, jnp.sum(sums, axis=(0, 1)), d_x


_apply.defvjp(_apply_and_keep, _gradients)


def _narrow(weights: list[Array]) -> list[Array]:
    return [w.astype(jnp.bfloat16) for w in weights]


def _forward(static: Static, weights: list[Array], bias: Array, x: Array, keep: bool) -> list[Array]:
    """[out, h_1, ..., h_{L-1}] if `keep`, else [out]."""
    outputs = [jax.ShapeDtypeStruct((x.shape[0], weights[-1].shape[1]), jnp.float32)]
    if keep:
        outputs += [jax.ShapeDtypeStruct((x.shape[0], w.shape[1]), jnp.bfloat16) for w in weights[:-1]]
    kernel = partial(_forward_kernel, static, len(weights))
    return _call(static, "mlp_forward", kernel, [x], [*weights, bias], outputs)


def _forward_kernel(static: Static, depth: int, x_ref: Any, *refs: Any) -> None:
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
            h = _activate(static, z).astype(jnp.bfloat16)
            outputs.append((to, h))
            if hidden_refs:
                hidden_refs[layer][:, to] = h
        inputs = outputs
        first += w_ref.shape[1]


def _after(first: int, columns: Any) -> Any:
    """The slice `columns`, shifted by `first`."""
    return pl.ds(first + columns.start, columns.size)


def _activate(static: Static, z: Array) -> Array:
    activation, interpret = static
    if activation == "relu":
        return jnp.maximum(z, 0.0)
    # One instruction, accurate to 11 bits; bfloat16 keeps 8. An exact tanh would cost as much as the matmuls.
    return jnp.tanh(z) if interpret else triton.approx_tanh(z)


def _backward(static: Static, weights: list[Array], hidden: list[Array], d_out: Array) -> tuple[list[Array], Array]:
    """[dz_1, ..., dz_{L-1}], and sums of these and of d_out over blocks of samples, [blocks, 1, sum_l H_l]."""
    outputs = [jax.ShapeDtypeStruct(h.shape, jnp.bfloat16) for h in hidden]
    width = sum(h.shape[1] for h in [*hidden, d_out])
    outputs += [jax.ShapeDtypeStruct((d_out.shape[0] // ROWS, 1, width), jnp.float32)]
    kernel = partial(_backward_kernel, static, len(hidden))
    *d_z, sums = _call(static, "mlp_backward", kernel, [d_out, *hidden], weights[1:], outputs)
    return d_z, sums


def _backward_kernel(static: Static, depth: int, d_out_ref: Any, *refs: Any) -> None:
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
            d_z = d_h * (1.0 - h * h) if static[0] == "tanh" else jnp.where(h > 0.0, d_h, 0.0)
            sum_ref[0, 0, _after(first, to)] = jnp.sum(d_z, axis=0)
            d_z_refs[layer][:, to] = d_z.astype(jnp.bfloat16)
            outputs.append((to, d_z.astype(jnp.bfloat16)))
        gradients = outputs


def _call(
    static: Static, name: str, kernel: Any, blocked: list[Array], whole: list[Array], outputs: list[Any]
) -> list[Array]:
    """Run `kernel` once for each block of rows of `blocked`, with the full arrays `whole`.

    Outputs [B, H] are split into the same blocks of rows. In outputs [blocks, 1, H], each block writes one row.
    """
    by_rows = lambda a: pl.BlockSpec((ROWS, a.shape[1]), lambda i: (i, 0))  # noqa: E731
    one_each = lambda a: pl.BlockSpec((1, 1, a.shape[2]), lambda i: (i, 0, 0))  # noqa: E731
    all_of = lambda a: pl.BlockSpec(a.shape, lambda i: (0,) * a.ndim)  # noqa: E731
    return pl.pallas_call(
        kernel,
        grid=(blocked[0].shape[0] // ROWS,),
        in_specs=[*map(by_rows, blocked), *map(all_of, whole)],
        out_specs=[by_rows(o) if len(o.shape) == 2 else one_each(o) for o in outputs],
        out_shape=outputs,
        compiler_params=triton.CompilerParams(num_warps=WARPS, num_stages=2),
        interpret=static[1],
        name=name,
    )(*blocked, *whole)
