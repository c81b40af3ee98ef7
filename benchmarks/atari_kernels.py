"""Equal ways to compute the gradient of the Nature network, to see which one a device is fast at.

conv       strided convolutions, as the network has them
regroup    the stride moved into the channels first (84 x 84 x 4 by 4 is 21 x 21 x 64): a dense 2 x 2 convolution
patches    the same, then one matrix product over all windows
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array


def convolution(x: Array, kernel: Array, stride: int) -> Array:
    numbers = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, kernel, (stride, stride), "VALID", dimension_numbers=numbers)


def regrouped(x: Array, kernel: Array, stride: int) -> tuple[Array, Array]:
    """`x` and `kernel` of an equal convolution of stride 1."""
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


WAYS = {"conv": convolution, "regroup": by_regrouping, "patches": by_patches}


def compare(minibatch: int, repeats: int = 10) -> dict[str, Any]:
    """Milliseconds of one gradient on a minibatch, and how far its result is from that of `conv`."""
    keys = jax.random.split(jax.random.key(0), 6)
    shapes = [(8, 8, 4, 32), (4, 4, 32, 64), (3, 3, 64, 64), (3136, 512), (512, 1)]
    params = [0.05 * jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=False)]
    obs = jax.random.randint(keys[5], (minibatch, 84, 84, 4), 0, 256).astype(jnp.uint8)
    result: dict[str, Any] = {}
    for dtype in (jnp.float32, jnp.bfloat16):
        reference = None
        for name, way in WAYS.items():
            gradient = jax.jit(jax.grad(lambda p, x, way=way, dtype=dtype: loss(p, x, way, dtype)))
            got = jax.block_until_ready(gradient(params, obs))
            times = []
            for _ in range(repeats):
                started = time.perf_counter()
                jax.block_until_ready(gradient(params, obs))
                times.append(time.perf_counter() - started)
            reference = got if reference is None else reference
            off = max(float(jnp.max(jnp.abs(a - b)) / jnp.max(jnp.abs(b))) for a, b in zip(got, reference, strict=True))
            row = {"ms": 1e3 * statistics.median(times), "relative difference": off}
            result[f"{name} {np.dtype(dtype).name}"] = row
            print(f"{name:8s} {np.dtype(dtype).name:9s} {row['ms']:8.2f} ms, differs by {off:.1e}", flush=True)
    return result


def loss(params: list[Array], obs: Array, way: Any, dtype: Any) -> Array:
    x = (obs.astype(jnp.float32) / 255.0).astype(dtype)
    *kernels, dense, head = [p.astype(dtype) for p in params]
    for kernel, stride in zip(kernels, (4, 2, 1), strict=True):
        x = jax.nn.relu(way(x, kernel, stride))
    x = jax.nn.relu(x.reshape(len(x), -1) @ dense) @ head
    return jnp.mean(jnp.square(x.astype(jnp.float32)))
