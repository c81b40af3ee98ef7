"""Torsos: what turns an observation into features. Any number of leading axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from nextpolicy.types import Array

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {"tanh": jnp.tanh, "relu": jax.nn.relu, "silu": jax.nn.silu}
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


class PatchConv(nn.Module):
    """A 3x3 convolution without padding, as nine shifted views and one matmul.

    For images of a dozen pixels a side this is several times faster than XLA's convolution on a CPU, and under
    a population axis it stays one batched matmul on an accelerator.
    """

    channels: int
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Array) -> Array:
        height, width = x.shape[-3] - 2, x.shape[-2] - 2
        views = [x[..., i : i + height, j : j + width, :] for i in range(3) for j in range(3)]
        patches = jnp.concatenate(views, axis=-1)
        return nn.Dense(self.channels, kernel_init=nn.initializers.he_normal(), dtype=self.dtype)(patches)


class SmallCNN(nn.Module):
    """For images of a dozen pixels: conv 16 of 3x3 without padding, then dense layers; LayerNorm after each."""

    hidden: Sequence[int]
    activation: str = "relu"
    layer_norm: bool = True
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, obs: Array) -> Array:
        norm = (lambda x: nn.LayerNorm(dtype=self.dtype)(x)) if self.layer_norm else (lambda x: x)
        act = ACTIVATIONS[self.activation]
        x = act(norm(PatchConv(16, dtype=self.dtype)(obs.astype(self.dtype))))
        x = x.reshape((*x.shape[:-3], -1))
        for width in self.hidden:
            x = act(norm(nn.Dense(width, kernel_init=_WIDE, dtype=self.dtype)(x)))
        return x


class ResidualBlock(nn.Module):
    """x + conv(relu(conv(relu(x))))."""

    channels: int
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Array) -> Array:
        y = nn.Conv(self.channels, (3, 3), dtype=self.dtype)(jax.nn.relu(x))
        return x + nn.Conv(self.channels, (3, 3), dtype=self.dtype)(jax.nn.relu(y))


class Impala(nn.Module):
    """IMPALA's residual network: stages of conv, max-pool and two residual blocks, then a dense layer."""

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
            x = nn.max_pool(x, (3, 3), strides=(2, 2), padding="SAME")
            x = ResidualBlock(channels, self.dtype)(ResidualBlock(channels, self.dtype)(x))
        x = jax.nn.relu(x).reshape((*lead, -1))
        for width in self.hidden:
            x = nn.Dense(width, kernel_init=_WIDE, dtype=self.dtype)(x)
            x = nn.LayerNorm(dtype=self.dtype)(x) if self.layer_norm else x
            x = jax.nn.relu(x)
        return x


class NatureCNN(nn.Module):
    """Three strided convolutions and a dense layer: the network of the first Atari agents."""

    hidden: Sequence[int] = (512,)
    layer_norm: bool = False
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, obs: Array) -> Array:
        lead = obs.shape[:-3]
        x = obs.reshape((-1, *obs.shape[-3:])).astype(self.dtype)
        for channels, size, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
            conv = nn.Conv(channels, (size, size), (stride, stride), "VALID", kernel_init=_WIDE, dtype=self.dtype)
            x = jax.nn.relu(conv(x))
        x = x.reshape((*lead, -1))
        for width in self.hidden:
            x = nn.Dense(width, kernel_init=_WIDE, dtype=self.dtype)(x)
            x = nn.LayerNorm(dtype=self.dtype)(x) if self.layer_norm else x
            x = jax.nn.relu(x)
        return x
