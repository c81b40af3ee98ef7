"""Torsos: networks that map observations to features, with any number of leading axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from nextpolicy.nets.pooling import max_pool
from nextpolicy.types import Array

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {"tanh": jnp.tanh, "relu": jax.nn.relu, "silu": jax.nn.silu}
NATURE = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # channels, size and stride of each convolution of NatureCNN
_WIDE = nn.initializers.orthogonal(2.0**0.5)


class MLP(nn.Module):
    """Dense layers on the flattened observation of rank `obs_rank`."""

    obs_rank: int
    hidden: Sequence[int]
    activation: str
    layer_norm: bool = False
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, obs: Array) -> Array:
        x = obs.reshape((*obs.shape[: obs.ndim - self.obs_rank], -1)).astype(self.dtype)
        for width in self.hidden:
            x = nn.Dense(width, kernel_init=_WIDE, dtype=self.dtype)(x)
            x = nn.LayerNorm(dtype=self.dtype)(x) if self.layer_norm else x
            x = ACTIVATIONS[self.activation](x)
        return x


class SmallCNN(nn.Module):
    """For images of about 10 x 10 pixels: a 3x3 convolution to 16 channels without padding, then dense layers.

    The convolution is nine shifted views and one matmul. For such small images, this is faster than XLA's convolution
    on a CPU, and under a population axis it is still one batched matmul. If `obs` is a NumPy constant, e.g. a table of
    all observations, features of repeated patches are computed once.
    """

    hidden: Sequence[int]
    activation: str = "relu"
    layer_norm: bool = True
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, obs: Array) -> Array:
        norm = (lambda x: nn.LayerNorm(dtype=self.dtype)(x)) if self.layer_norm else (lambda x: x)
        act = ACTIVATIONS[self.activation]
        patches = patches_3x3(obs)
        rows, spread = distinct_patches(patches) if isinstance(patches, np.ndarray) else (patches, lambda x: x)
        conv = nn.Dense(16, kernel_init=nn.initializers.he_normal(), dtype=self.dtype)
        x = spread(act(norm(conv(jnp.asarray(rows, self.dtype)))))
        x = x.reshape((*x.shape[:-3], -1))
        for width in self.hidden:
            x = act(norm(nn.Dense(width, kernel_init=_WIDE, dtype=self.dtype)(x)))
        return x


def patches_3x3(images: Any) -> Any:
    """[..., H, W, C] to [..., H-2, W-2, 9C]: the window around each inner pixel, row by row; keeps NumPy arrays."""
    height, width = images.shape[-3] - 2, images.shape[-2] - 2
    views = [images[..., i : i + height, j : j + width, :] for i in range(3) for j in range(3)]
    return np.concatenate(views, -1) if isinstance(images, np.ndarray) else jnp.concatenate(views, -1)


def distinct_patches(patches: np.ndarray) -> tuple[np.ndarray, Callable[[Array], Array]]:
    """The distinct patches [rows, F] of `patches` [S, H, W, F], and a function that maps their features to all images.

    At each pixel, most images share one patch; they differ only near the agent. The rows are the most common patch of
    each pixel, then all patches that differ from it. `spread` maps features [rows, C] to [S, H, W, C]. Its backward
    pass is a sum and a gather, instead of the scatter-add over S * H * W patches that a plain gather would have.
    """
    images, height, width, size = patches.shape
    flat = patches.reshape(images, height * width, size)
    usual = np.stack([_most_common(flat[:, p]) for p in range(height * width)])
    image, pixel = np.nonzero((flat != usual[None]).any(-1))
    rows = np.concatenate([usual, flat[image, pixel]])
    common = np.ones((images, height * width, 1), np.float32)
    common[image, pixel] = 0.0

    @jax.custom_vjp
    def spread(features: Array) -> Array:
        base = jnp.broadcast_to(features[None, : height * width], (images, height * width, features.shape[-1]))
        whole = base.at[image, pixel].set(features[height * width :], unique_indices=True)
        return whole.reshape(images, height, width, -1)

    def backward(_: None, gradient: Array) -> tuple[Array]:
        gradient = gradient.reshape(images, height * width, -1)
        return (jnp.concatenate([jnp.sum(gradient * common, axis=0), gradient[image, pixel]]),)

    spread.defvjp(lambda features: (spread(features), None), backward)
    return rows, spread


def _most_common(rows: np.ndarray) -> np.ndarray:
    values, counts = np.unique(rows, axis=0, return_counts=True)
    return values[np.argmax(counts)]


class ResidualBlock(nn.Module):
    """x + conv(relu(conv(relu(x))))."""

    channels: int
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Array) -> Array:
        y = nn.Conv(self.channels, (3, 3), dtype=self.dtype)(jax.nn.relu(x))
        return x + nn.Conv(self.channels, (3, 3), dtype=self.dtype)(jax.nn.relu(y))


class Impala(nn.Module):
    """The residual network of IMPALA (Espeholt et al., 2018).

    Each stage is a convolution, a max-pool and two residual blocks. Dense layers follow.
    """

    channels: Sequence[int] = (16, 32, 32)
    hidden: Sequence[int] = (256,)
    layer_norm: bool = True
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, obs: Array) -> Array:
        lead = obs.shape[:-3]
        x = obs.reshape((-1, *obs.shape[-3:])).astype(self.dtype)
        for channels in self.channels:
            x = nn.Conv(channels, (3, 3), dtype=self.dtype)(x)
            x = max_pool(x)
            x = ResidualBlock(channels, self.dtype)(ResidualBlock(channels, self.dtype)(x))
        x = jax.nn.relu(x).reshape((*lead, -1))
        for width in self.hidden:
            x = nn.Dense(width, kernel_init=_WIDE, dtype=self.dtype)(x)
            x = nn.LayerNorm(dtype=self.dtype)(x) if self.layer_norm else x
            x = jax.nn.relu(x)
        return x


class NatureCNN(nn.Module):
    """Three strided convolutions and dense layers: the network of DQN (Mnih et al., 2015)."""

    hidden: Sequence[int] = (512,)
    layer_norm: bool = False
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, obs: Array) -> Array:
        lead = obs.shape[:-3]
        x = obs.reshape((-1, *obs.shape[-3:])).astype(self.dtype)
        for channels, size, stride in NATURE:
            conv = nn.Conv(channels, (size, size), (stride, stride), "VALID", kernel_init=_WIDE, dtype=self.dtype)
            x = jax.nn.relu(conv(x))
        x = x.reshape((*lead, -1))
        for width in self.hidden:
            x = nn.Dense(width, kernel_init=_WIDE, dtype=self.dtype)(x)
            x = nn.LayerNorm(dtype=self.dtype)(x) if self.layer_norm else x
            x = jax.nn.relu(x)
        return x
