"""Action distributions as tuples of arrays, and the network heads that output them."""

from __future__ import annotations

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from nextpolicy.core.losses import categorical_entropy, gaussian_entropy
from nextpolicy.types import Array

_LOG_2PI = 1.8378770664093453
_NEVER = -1e9  # logit of a value that does not exist: its probability is 0, and differences of two stay finite


class Categorical(NamedTuple):
    """Distribution over A actions; `logits` [..., A] are normalised log-probabilities."""

    logits: Array

    @staticmethod
    def noise(key: Array, shape: tuple[int, ...]) -> Array:
        """Gumbel noise for `perturbed`, for logits of `shape`."""
        return jax.random.gumbel(key, shape)

    def perturbed(self, noise: Array) -> Array:
        """int32 actions [...], sampled by the Gumbel-max trick from `noise` [..., A]."""
        return jnp.argmax(self.logits + noise, axis=-1).astype(jnp.int32)

    def sample(self, key: Array) -> Array:
        """int32 actions [...]."""
        return self.perturbed(self.noise(key, self.logits.shape))

    def mode(self) -> Array:
        return jnp.argmax(self.logits, axis=-1).astype(jnp.int32)

    def log_prob(self, action: Array) -> Array:
        # A mask is fused with what follows. A gather is not, and its gradient is a scatter.
        number = jax.lax.broadcasted_iota(jnp.int32, self.logits.shape, self.logits.ndim - 1)
        taken = number == action[..., None]
        return jnp.sum(jnp.where(taken, self.logits, 0.0), axis=-1)

    def entropy(self) -> Array:
        return categorical_entropy(self.logits)

    def kl(self, other: Categorical) -> Array:
        """KL(self || other) [...]; terms of actions with probability 0 are 0."""
        p = jnp.exp(self.logits)
        return jnp.sum(jnp.where(p > 0, p * (self.logits - other.logits), 0.0), axis=-1)

    def tv(self, other: Categorical) -> Array:
        """1/2 sum_a |p(a) - q(a)| [...]."""
        return 0.5 * jnp.sum(jnp.abs(jnp.exp(self.logits) - jnp.exp(other.logits)), axis=-1)


class DiagonalGaussian(NamedTuple):
    """Diagonal Gaussian; `mean` and `log_std` are [..., A]. Actions are not squashed; the environment clips them."""

    mean: Array
    log_std: Array

    @staticmethod
    def noise(key: Array, shape: tuple[int, ...]) -> Array:
        """Standard normal noise for `perturbed`, for means of `shape`."""
        return jax.random.normal(key, shape)

    def perturbed(self, noise: Array) -> Array:
        """Actions mean + std * noise, [..., A]."""
        return self.mean + jnp.exp(self.log_std) * noise

    def sample(self, key: Array) -> Array:
        return self.perturbed(self.noise(key, self.mean.shape))

    def mode(self) -> Array:
        return self.mean

    def log_prob(self, action: Array) -> Array:
        z = (action - self.mean) * jnp.exp(-self.log_std)
        return -0.5 * jnp.sum(jnp.square(z) + 2.0 * self.log_std + _LOG_2PI, axis=-1)

    def entropy(self) -> Array:
        return gaussian_entropy(self.log_std)

    def kl(self, other: DiagonalGaussian) -> Array:
        """KL(self || other) [...]."""
        spread = jnp.exp(2.0 * (self.log_std - other.log_std))
        shift = jnp.square((self.mean - other.mean) * jnp.exp(-other.log_std))
        return 0.5 * jnp.sum(spread + shift - 1.0 + 2.0 * (other.log_std - self.log_std), axis=-1)

    def tv(self, other: DiagonalGaussian) -> Array:
        """An upper bound [...]: the smaller of Pinsker's, sqrt(KL / 2), and that of Bretagnolle and Huber."""
        kl = self.kl(other)
        return jnp.sqrt(jnp.maximum(jnp.minimum(0.5 * kl, -jnp.expm1(-kl)), 0.0))


class MultiCategorical(NamedTuple):
    """C independent categoricals; actions are int32 [..., C].

    p(a) = prod_c p_c(a_c), so that log-probabilities, entropies and KL divergences are sums over c. `logits`
    [..., C, n] are normalised log-probabilities; components with fewer than n values are padded with `_NEVER`.
    """

    logits: Array

    @property
    def _each(self) -> Categorical:
        return Categorical(self.logits)

    def perturbed(self, noise: Array) -> Array:
        """Actions, sampled from Gumbel noise [..., C, n]."""
        return self._each.perturbed(noise)

    def sample(self, key: Array) -> Array:
        return self._each.sample(key)

    def mode(self) -> Array:
        return self._each.mode()

    def log_prob(self, action: Array) -> Array:
        return jnp.sum(self._each.log_prob(action), axis=-1)

    def entropy(self) -> Array:
        return jnp.sum(self._each.entropy(), axis=-1)

    def kl(self, other: MultiCategorical) -> Array:
        """KL(self || other) [...]."""
        return jnp.sum(self._each.kl(other._each), axis=-1)

    def tv(self, other: MultiCategorical) -> Array:
        """An upper bound [...]: 1 - prod_c (1 - TV_c), reached by coupling each component optimally."""
        return 1.0 - jnp.prod(1.0 - self._each.tv(other._each), axis=-1)


def _narrow_product(x: Array, kernel: Array, _: Any, **options: Any) -> Array:
    """x [..., F] @ kernel [F, A] for a small A, with the kernel transposed to [A, F] first.

    Results equal those of the plain product bit for bit. The kernel's gradient is then also [A, F], which XLA computes
    several times faster on a CPU than [F, A]. The barrier keeps XLA from undoing the transposition.
    """
    turned = jax.lax.optimization_barrier(kernel.T)
    return jax.lax.dot_general(x, turned, (((x.ndim - 1,), (1,)), ((), ())), **options)


class CategoricalHead(nn.Module):
    """Features [..., F] to a distribution over `actions` actions."""

    actions: int
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, features: Array) -> Categorical:
        dense = nn.Dense(
            self.actions, kernel_init=nn.initializers.orthogonal(0.01), dtype=self.dtype, dot_general=_narrow_product
        )
        return self.read(dense(features).astype(jnp.float32), {})

    @staticmethod
    def read(logits: Array, _: Any) -> Categorical:
        """The distribution of float32 logits [..., A]."""
        return Categorical(jax.nn.log_softmax(logits))


class MultiCategoricalHead(nn.Module):
    """Features [..., F] to a product of categoricals, where component c has `sizes[c]` values."""

    sizes: tuple[int, ...]
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, features: Array) -> MultiCategorical:
        dense = nn.Dense(
            sum(self.sizes), kernel_init=nn.initializers.orthogonal(0.01), dtype=self.dtype, dot_general=_narrow_product
        )
        return self.read(dense(features).astype(jnp.float32), {})

    @nn.nowrap
    def read(self, logits: Array, _: Any) -> MultiCategorical:
        """The distribution of float32 logits [..., sum(sizes)], component after component."""
        lead, widest = logits.shape[:-1], max(self.sizes)
        if min(self.sizes) == widest:
            return MultiCategorical(jax.nn.log_softmax(logits.reshape((*lead, len(self.sizes), widest))))
        components = jnp.split(logits, np.cumsum(self.sizes)[:-1], axis=-1)
        full = lambda x: [(0, 0)] * len(lead) + [(0, widest - x.shape[-1])]  # noqa: E731
        padded = [jnp.pad(x, full(x), constant_values=_NEVER) for x in components]
        return MultiCategorical(jax.nn.log_softmax(jnp.stack(padded, axis=-2)))


class GaussianHead(nn.Module):
    """Features [..., F] to a diagonal Gaussian with state-independent standard deviation."""

    size: int
    log_std_init: float
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, features: Array) -> DiagonalGaussian:
        dense = nn.Dense(
            self.size, kernel_init=nn.initializers.orthogonal(0.01), dtype=self.dtype, dot_general=_narrow_product
        )
        mean = dense(features).astype(jnp.float32)
        log_std = self.param("log_std", nn.initializers.constant(self.log_std_init), (self.size,))
        return self.read(mean, {"log_std": log_std})

    @staticmethod
    def read(mean: Array, params: Any) -> DiagonalGaussian:
        """The distribution with float32 means [..., A]."""
        log_std = params["log_std"]
        return DiagonalGaussian(mean, jnp.broadcast_to(log_std[(None,) * (mean.ndim - 1)], mean.shape))


class ValueHead(nn.Module):
    """Features [..., F] to values [...]."""

    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, features: Array) -> Array:
        dense = nn.Dense(1, kernel_init=nn.initializers.orthogonal(1.0), dtype=self.dtype)
        return self.read(dense(features).astype(jnp.float32), {})

    @staticmethod
    def read(value: Array, _: Any) -> Array:
        """[..., 1] without its last axis."""
        return value[..., 0]
