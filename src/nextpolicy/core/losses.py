"""The terms of the PPO objective, one number per sample; the caller averages."""

from __future__ import annotations

import jax.numpy as jnp

from nextpolicy.core import check
from nextpolicy.types import Array


def clipped_surrogate(ratio: Array, advantage: Array, clip: float | Array) -> Array:
    """min(ratio A, clip(ratio, 1 - clip, 1 + clip) A), to be maximised; ratio = beta_theta / beta_k at a_t."""
    check.same_shape(advantage=advantage, ratio=ratio)
    return jnp.minimum(ratio * advantage, jnp.clip(ratio, 1.0 - clip, 1.0 + clip) * advantage)


def clipped_value_loss(value: Array, value_before: Array, value_target: Array, clip: float | Array) -> Array:
    """0.5 max((y - v)^2, (y - v_clipped)^2), where v may leave `value_before` by at most `clip`.

    clip = inf gives the plain squared error.
    """
    check.same_shape(value_target=value_target, value=value, value_before=value_before)
    clipped = value_before + jnp.clip(value - value_before, -clip, clip)
    return 0.5 * jnp.maximum(jnp.square(value_target - value), jnp.square(value_target - clipped))


def categorical_entropy(logits: Array) -> Array:
    """-sum_a p_a log p_a of the distribution with these logits [..., A]; a probability of 0 adds nothing."""
    log_p = logits - jnp.max(logits, axis=-1, keepdims=True)
    log_p = log_p - jnp.log(jnp.sum(jnp.exp(log_p), axis=-1, keepdims=True))
    p = jnp.exp(log_p)
    return -jnp.sum(jnp.where(p > 0, p * jnp.where(p > 0, log_p, 0.0), 0.0), axis=-1)


def gaussian_entropy(log_std: Array) -> Array:
    """sum_i (log_std_i + 0.5 log(2 pi e)) of a diagonal Gaussian with log_std [..., A]."""
    return jnp.sum(log_std + 0.5 * jnp.log(2.0 * jnp.pi * jnp.e), axis=-1)
