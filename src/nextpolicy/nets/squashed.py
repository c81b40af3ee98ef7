"""A Gaussian squashed into the bounds of the actions by tanh, and the network head that outputs it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from nextpolicy.envs.base import Box, EnvSpec
from nextpolicy.nets.heads import DiagonalGaussian
from nextpolicy.settings import ConfigError
from nextpolicy.types import Array

LOG_STD = (-5.0, 2.0)  # bounds of log_std
MEAN_BOUND = 5.0  # of means, where densities are computed from actions: float32 cannot tell tanh(9) from 1
_EDGE = 1.0 - 1e-6  # actions at a bound are moved inside, where atanh is finite
_NODES = np.linspace(-5.0, 5.0, 48)  # for expectations under a standard normal, by the trapezoidal rule
_WEIGHTS = np.exp(-(_NODES**2) / 2) / np.exp(-(_NODES**2) / 2).sum()


def action_range(spec: EnvSpec) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(lower, upper) bound of each element of an action. Raises `ConfigError` unless actions are real and bounded."""
    if not isinstance(spec.action, Box):
        raise ConfigError(f"algo: expected a variant of ppo or pqn for {spec.id}, whose actions are discrete")
    low, high = (
        np.broadcast_to(np.asarray(b, np.float64), spec.action.shape).ravel()
        for b in (spec.action.low, spec.action.high)
    )
    wrong = np.flatnonzero(~(np.isfinite(low) & np.isfinite(high) & (low < high)))
    if wrong.size:
        i = wrong[0]
        raise ConfigError(
            f"{spec.id}: expected finite bounds low < high for a squashed policy (sac, policy=squashed), got "
            f"{low[i]:g} and {high[i]:g} for element {i} of the action; policy=gaussian of ppo needs no bounds"
        )
    return tuple(low.tolist()), tuple(high.tolist())


def raw_log_std(value: float) -> float:
    """The output that a head turns into `value`. Raises `ConfigError` unless it lies between the bounds of log_std."""
    least, most = LOG_STD
    unit = 2 * (value - least) / (most - least) - 1
    if not -1 < unit < 1:
        raise ConfigError(
            f"log_std_init: expected more than {least:g} and less than {most:g} for policy=squashed, got {value:g}"
        )
    return math.atanh(unit)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SquashedGaussian:
    """a = middle + half * tanh(u), u ~ N(mean, std^2), with [low, high] = [middle - half, middle + half].

    `mean` and `log_std` are [..., A]. Divergences between two such distributions with the same bounds are those of
    the Gaussians, since a is an invertible function of u.
    """

    mean: Array
    log_std: Array
    low: tuple[float, ...] = field(metadata={"static": True})
    high: tuple[float, ...] = field(metadata={"static": True})

    @property
    def gaussian(self) -> DiagonalGaussian:
        """The distribution of u."""
        return DiagonalGaussian(self.mean, self.log_std)

    def perturbed(self, noise: Array) -> Array:
        """Actions [..., A] from standard normal noise."""
        return self._squash(self.gaussian.perturbed(noise))

    def perturbed_with_unit_log_prob(self, noise: Array) -> tuple[Array, Array]:
        """Actions [..., A], and the log-densities [...] of tanh(u), i.e. of the actions scaled to [-1, 1].

        Computed from u, which is more accurate than from the action near the bounds.
        """
        u = self.gaussian.perturbed(noise)
        return self._squash(u), self.gaussian.log_prob(u) - jnp.sum(_log_slope(u), axis=-1)

    def sample(self, key: Array) -> Array:
        return self.perturbed(DiagonalGaussian.noise(key, self.mean.shape))

    def mode(self) -> Array:
        """The action of the mean of u: the median, element by element."""
        return self._squash(self.mean)

    def log_prob(self, action: Array) -> Array:
        u = jnp.arctanh(jnp.clip(to_unit(action, self.low, self.high), -_EDGE, _EDGE))
        half = np.subtract(self.high, self.low) / 2
        return self.gaussian.log_prob(u) - jnp.sum(_log_slope(u), axis=-1) - float(np.log(half).sum())

    def entropy(self) -> Array:
        """Of the actions scaled to [-1, 1]: sum_i H(u_i) + E[log(1 - tanh(u_i)^2)]; within 1e-3 for each i."""
        across = lambda x: x.astype(self.mean.dtype).reshape((1,) * self.mean.ndim + (-1,))  # noqa: E731
        u = self.mean[..., None] + jnp.exp(self.log_std)[..., None] * across(_NODES)
        slope = jnp.sum(_log_slope(u) * across(_WEIGHTS), axis=-1)
        return self.gaussian.entropy() + jnp.sum(slope, axis=-1)

    def kl(self, other: SquashedGaussian) -> Array:
        """KL(self || other) [...]."""
        return self.gaussian.kl(other.gaussian)

    def tv(self, other: SquashedGaussian) -> Array:
        """An upper bound [...], see `DiagonalGaussian.tv`."""
        return self.gaussian.tv(other.gaussian)

    def _squash(self, u: Array) -> Array:
        middle, half = _middle_and_half(self.low, self.high, u)
        return middle + half * jnp.tanh(u)


def to_unit(action: Array, low: tuple[float, ...], high: tuple[float, ...]) -> Array:
    """Actions [..., A] between their bounds, scaled to [-1, 1]."""
    middle, half = _middle_and_half(low, high, action)
    return (action - middle) / half


def _middle_and_half(low: tuple[float, ...], high: tuple[float, ...], like: Array) -> tuple[np.ndarray, np.ndarray]:
    """The middle of the bounds and half of their distance, [1, ..., A] with the axes and the type of `like`."""
    shaped = lambda x: np.asarray(x, like.dtype).reshape((1,) * (like.ndim - 1) + (-1,))  # noqa: E731
    return shaped(np.add(high, low) / 2), shaped(np.subtract(high, low) / 2)


def bounded(mean: Array, bound: float = MEAN_BOUND) -> Array:
    """Means bounded smoothly to [-bound, bound].

    Near a bound of the action, rounding destroys u = atanh(a). Densities and ratios computed from such actions could
    overflow if the mean were far beyond.
    """
    return bound * jnp.tanh(mean / bound)


def _log_slope(u: Array) -> Array:
    """log(1 - tanh(u)^2), without cancellation for large |u|."""
    return 2.0 * (math.log(2.0) - u - jax.nn.softplus(-2.0 * u))


class SquashedGaussianHead(nn.Module):
    """Features [..., F] to a squashed Gaussian whose mean and standard deviation depend on the state."""

    low: tuple[float, ...]
    high: tuple[float, ...]
    dtype: Any = jnp.float32
    raw_log_std_init: float = 0.0  # of the middle between the bounds
    mean_bound: float | None = None

    @nn.compact
    def __call__(self, features: Array) -> SquashedGaussian:
        orthogonal = nn.initializers.orthogonal(0.01)
        dense = nn.Dense(2 * len(self.low), kernel_init=orthogonal, bias_init=self._bias, dtype=self.dtype)
        return self.read(dense(features).astype(jnp.float32), {})

    @nn.nowrap
    def _bias(self, _: Array, shape: tuple[int, ...], dtype: Any) -> Array:
        """The bias with which `read` returns means of 0 and the initial log_std."""
        return jnp.repeat(jnp.asarray([0.0, self.raw_log_std_init], dtype), shape[0] // 2)

    @nn.nowrap
    def read(self, out: Array, _: Any) -> SquashedGaussian:
        """The distribution of float32 outputs [..., 2 A]: means, then what bounds turn into log standard deviations."""
        mean, raw = jnp.split(out, 2, axis=-1)
        mean = mean if self.mean_bound is None else bounded(mean, self.mean_bound)
        least, most = LOG_STD
        return SquashedGaussian(mean, least + (most - least) / 2 * (jnp.tanh(raw) + 1.0), self.low, self.high)
