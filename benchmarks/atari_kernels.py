"""Equivalent ways to compute the gradients of the Atari networks, to find the fastest on a device.

nature conv         strided convolutions, as in the network
nature regroup      space-to-depth by the stride (84 x 84 x 4 by 4 gives 21 x 21 x 64), then a 2 x 2 convolution
nature patches      space-to-depth, then one matmul over all windows
impala window       actor and critic apart; max-pooling by a window, whose gradient is a scatter
impala places       the same with `nets/pooling.py`, which keeps the place of each maximum
impala side-by-side as the line above, with one convolution for actor and critic (`nets/side_by_side.py`)
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from nextpolicy.nets.pooling import max_pool
from nextpolicy.nets.side_by_side import block_diagonal
from parts import kernels as slowest

Array = jax.Array
NUMBERS = ("NHWC", "HWIO", "NHWC")


def compare(networks: list[str], minibatch: int, kernels: int, repeats: int = 10) -> dict[str, Any]:
    """Milliseconds of one gradient on a minibatch, and the difference of its result from that of the first way.

    `networks` are NAME:DTYPE. Prints the slowest `kernels` kernels of each way.
    """
    obs = jax.random.randint(jax.random.key(1), (minibatch, 84, 84, 4), 0, 256).astype(jnp.uint8)
    result: dict[str, Any] = {}
    for network, (ways, shapes) in NETWORKS.items():
        params = [0.05 * jax.random.normal(jax.random.key(i), shape) for i, shape in enumerate(shapes)]
        for dtype in (d for d in (jnp.float32, jnp.bfloat16) if f"{network}:{np.dtype(d).name}" in networks):
            reference: Any = None
            for way, apply in ways.items():
                gradient = compiled(apply, dtype)
                got, milliseconds = timed(lambda g=gradient, p=params: g(p, obs), repeats)
                reference = got if reference is None else reference
                off = max(
                    float(jnp.max(jnp.abs(a - b)) / jnp.max(jnp.abs(b))) for a, b in zip(got, reference, strict=True)
                )
                name = f"{network} {way} {np.dtype(dtype).name}"
                result[name] = {"ms": milliseconds, "relative difference": off}
                print(f"{name:24s} {milliseconds:8.2f} ms, differs by {off:.1e}", flush=True)
                if kernels:
                    print(slowest(lambda g=gradient, p=params: g(p, obs), kernels), flush=True)
    return result


def compiled(apply: Callable[[list[Array], Array], Array], dtype: Any) -> Callable[[list[Array], Array], Any]:
    def loss(params: list[Array], obs: Array) -> Array:
        x = (obs.astype(jnp.float32) / 255.0).astype(dtype)
        return jnp.mean(jnp.square(apply([p.astype(dtype) for p in params], x).astype(jnp.float32)))

    return jax.jit(jax.grad(loss))


def timed(call: Callable[[], Any], repeats: int) -> tuple[Any, float]:
    got = jax.block_until_ready(call())
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - started)
    return got, 1e3 * statistics.median(times)


# Nature.


def convolution(x: Array, kernel: Array, stride: int) -> Array:
    return jax.lax.conv_general_dilated(x, kernel, (stride, stride), "VALID", dimension_numbers=NUMBERS)


def regrouped(x: Array, kernel: Array, stride: int) -> tuple[Array, Array]:
    """`x` and `kernel` of an equivalent convolution with stride 1."""
    n, size, _, channels = x.shape
    windows, cells = kernel.shape[0] // stride, size // stride
    x = x[:, : cells * stride, : cells * stride].reshape(n, cells, stride, cells, stride, channels)
    kernel = kernel.reshape(windows, stride, windows, stride, channels, -1)
    x, kernel = x.transpose(0, 1, 3, 2, 4, 5), kernel.transpose(0, 2, 1, 3, 4, 5)
    depth = stride * stride * channels
    return x.reshape(n, cells, cells, depth), kernel.reshape(windows, windows, depth, -1)


def by_regrouping(x: Array, kernel: Array, stride: int) -> Array:
    return convolution(*regrouped(x, kernel, stride), 1)


def by_patches(x: Array, kernel: Array, stride: int) -> Array:
    x, kernel = regrouped(x, kernel, stride)
    side, cells = kernel.shape[0], x.shape[1] - kernel.shape[0] + 1
    windows = [x[:, i : i + cells, j : j + cells] for i in range(side) for j in range(side)]
    return jnp.concatenate(windows, -1) @ kernel.reshape(-1, kernel.shape[-1])


def nature(way: Callable[[Array, Array, int], Array]) -> Callable[[list[Array], Array], Array]:
    def apply(params: list[Array], x: Array) -> Array:
        *kernels, dense, head = params
        for kernel, stride in zip(kernels, (4, 2, 1), strict=True):
            x = jax.nn.relu(way(x, kernel, stride))
        return jax.nn.relu(x.reshape(len(x), -1) @ dense) @ head

    return apply


# IMPALA: two networks. Each parameter has a leading axis over networks.


def pool_by_window(x: Array) -> Array:
    return nn.max_pool(x, (3, 3), (2, 2), "SAME")


def conv(x: Array, kernel: Array) -> Array:
    return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=NUMBERS)


def trunk(kernels: list[Array], x: Array, pool: Callable[[Array], Array]) -> Array:
    for stage in range(3):
        entry, *blocks = kernels[5 * stage : 5 * stage + 5]
        x = pool(conv(x, entry))
        for first, second in (blocks[:2], blocks[2:]):
            x = x + conv(jax.nn.relu(conv(jax.nn.relu(x), first)), second)
    return jax.nn.relu(x)


def apart(pool: Callable[[Array], Array]) -> Callable[[list[Array], Array], Array]:
    def apply(params: list[Array], x: Array) -> Array:
        *kernels, dense = params
        return jnp.stack([trunk([k[i] for k in kernels], x, pool).reshape(len(x), -1) @ dense[i] for i in range(2)], 1)

    return apply


def together(params: list[Array], x: Array) -> Array:
    first, *kernels, dense = params
    wide = [jnp.concatenate(list(first), axis=-1), *(block_diagonal(list(kernel)) for kernel in kernels)]
    features = trunk(wide, x, max_pool).reshape(len(x), -1, 2, dense.shape[1] // 121)
    return jnp.stack([features[:, :, i].reshape(len(x), -1) @ dense[i] for i in range(2)], 1)


_STAGES = [(2, 3, 3, i, c) for before, c in ((4, 16), (16, 32), (32, 32)) for i in (before, c, c, c, c)]
NETWORKS: dict[str, tuple[dict[str, Any], list[tuple[int, ...]]]] = {
    "nature": (
        {"conv": nature(convolution), "regroup": nature(by_regrouping), "patches": nature(by_patches)},
        [(8, 8, 4, 32), (4, 4, 32, 64), (3, 3, 64, 64), (3136, 512), (512, 1)],
    ),
    "impala": (
        {"window": apart(pool_by_window), "places": apart(max_pool), "side-by-side": together},
        [*_STAGES, (2, 11 * 11 * 32, 256)],
    ),
}
