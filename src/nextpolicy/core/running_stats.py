"""Running mean and variance by Welford's method, with a merge for batches and shards."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from nextpolicy.types import Array, RunningStats

CLIP, EPSILON = 10.0, 1e-8  # of `normalise`


def init(shape: tuple[int, ...] = (), dtype: jnp.dtype | type = jnp.float32) -> RunningStats:
    """Empty statistics for samples of `shape`."""
    return RunningStats(jnp.zeros((), dtype), jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))


def of_batch(batch: Array, weight: Array | None = None, axis_name: str | None = None) -> RunningStats:
    """Statistics of a batch [..., *sample]; samples whose `weight` [...] is 0 are ignored.

    The leading axes are those of `weight`, or the first axis if `weight` is None. With `axis_name`, the batch is split
    over that mapped axis and the result covers all parts.
    """
    batch = batch.astype(jnp.promote_types(batch.dtype, jnp.float32))  # uint8 and float16 are too narrow for sums
    lead = 1 if weight is None else weight.ndim
    axes = tuple(range(lead))
    weights = jnp.ones(batch.shape[:lead], batch.dtype) if weight is None else weight.astype(batch.dtype)
    weights = weights.reshape(weights.shape + (1,) * (batch.ndim - lead))
    batch = jnp.where(weights > 0, batch, 0.0)  # an ignored sample may be NaN
    total = lambda x: x if axis_name is None else jax.lax.psum(x, axis_name)  # noqa: E731
    count = total(jnp.sum(weights))
    mean = total(jnp.sum(weights * batch, axis=axes)) / _nonzero(count)
    m2 = total(jnp.sum(weights * jnp.square(batch - mean[(None,) * lead]), axis=axes))
    return RunningStats(count, mean, m2)


def merge(a: RunningStats, b: RunningStats) -> RunningStats:
    """Statistics of the two streams combined (Chan et al., 1979)."""
    count = a.samples + b.samples
    share = b.samples / _nonzero(count)
    shift = b.mean - a.mean
    return RunningStats(count, a.mean + shift * share, a.m2 + b.m2 + jnp.square(shift) * a.samples * share)


def update(
    stats: RunningStats, batch: Array, weight: Array | None = None, axis_name: str | None = None
) -> RunningStats:
    """Statistics after another batch [..., *sample]."""
    return merge(stats, of_batch(batch, weight, axis_name))


def variance(stats: RunningStats) -> Array:
    """Population variance; 1 before the first sample, so that dividing by it changes nothing."""
    return jnp.where(stats.samples > 0, stats.m2 / _nonzero(stats.samples), 1.0)


def normalise(stats: RunningStats, x: Array, clip: float = CLIP, epsilon: float = EPSILON) -> Array:
    """(x - mean) / sqrt(variance + epsilon), clipped to [-clip, clip]; x is [..., *sample]."""
    lead = (None,) * (x.ndim - stats.mean.ndim)
    scaled = (x - stats.mean[lead]) / jnp.sqrt(variance(stats)[lead] + epsilon)
    return jnp.clip(scaled, -clip, clip)


def _nonzero(count: Array) -> Array:
    """1 if `count` is 0, else `count`. Weights may be fractions, so a count of 0.5 stays 0.5."""
    return jnp.where(count > 0, count, 1.0)
