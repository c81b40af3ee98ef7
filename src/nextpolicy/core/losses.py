"""The terms of the PPO objective per sample, and the normalisation of advantages. The caller averages."""

from __future__ import annotations

import jax.numpy as jnp

from nextpolicy.core import check
from nextpolicy.core.shards import Shards
from nextpolicy.types import Array


def normalise_advantage(advantage: Array, kind: str, shards: Shards, valid: Array | None) -> Array:
    """Divide by the standard deviation over the batch (`scale`), also subtract the mean (`standardise`), or `none`.

    `scale` keeps the sign of every advantage.
    """
    if kind == "none":
        return advantage
    mean = shards.mean(advantage, valid)
    std = jnp.sqrt(shards.variance(advantage, valid))
    return (advantage - (mean if kind == "standardise" else 0.0)) / (std + 1e-8)


def clipped_surrogate(ratio: Array, advantage: Array, clip: float | Array) -> Array:
    """The clipped surrogate of PPO (Schulman et al., 2017), to be maximised.

    min(ratio A, clip(ratio, 1 - clip, 1 + clip) A) with ratio = beta_theta(a_t|s_t) / beta_k(a_t|s_t)
    """
    check.same_shape(advantage=advantage, ratio=ratio)
    return jnp.minimum(ratio * advantage, jnp.clip(ratio, 1.0 - clip, 1.0 + clip) * advantage)


def clipped_value_loss(value: Array, value_before: Array, value_target: Array, clip: float | Array) -> Array:
    """0.5 max((y - v)^2, (y - v_clipped)^2) with v_clipped = value_before + clip(v - value_before, -clip, clip).

    clip = inf gives 0.5 (y - v)^2.
    """
    check.same_shape(value_target=value_target, value=value, value_before=value_before)
    clipped = value_before + jnp.clip(value - value_before, -clip, clip)
    return 0.5 * jnp.maximum(jnp.square(value_target - value), jnp.square(value_target - clipped))


def categorical_entropy(logits: Array) -> Array:
    """-sum_a p_a log p_a with p = softmax(logits), logits [..., A]; terms with p_a = 0 are 0."""
    log_p = logits - jnp.max(logits, axis=-1, keepdims=True)
    log_p = log_p - jnp.log(jnp.sum(jnp.exp(log_p), axis=-1, keepdims=True))
    p = jnp.exp(log_p)
    return -jnp.sum(jnp.where(p > 0, p * jnp.where(p > 0, log_p, 0.0), 0.0), axis=-1)


def gaussian_entropy(log_std: Array) -> Array:
    """sum_i (log_std_i + 0.5 log(2 pi e)), the entropy of a diagonal Gaussian with log_std [..., A]."""
    return jnp.sum(log_std + 0.5 * jnp.log(2.0 * jnp.pi * jnp.e), axis=-1)
