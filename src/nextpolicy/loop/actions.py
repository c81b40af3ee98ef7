"""Action shapes, noise for sampling, and uniform random actions for warm-up."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from nextpolicy.envs.base import Discrete, EnvSpec
from nextpolicy.envs.nested import MultiDiscrete
from nextpolicy.nets.heads import Categorical, DiagonalGaussian
from nextpolicy.types import Array


def shape_action(spec: EnvSpec, action: Array) -> Array:
    """A policy's actions [N] or [N, A], reshaped to the environment's action shape."""
    return action if isinstance(spec.action, Discrete) else action.reshape((-1, *spec.action.shape))


def action_noise(spec: EnvSpec, key: Array, lead: tuple[int, ...]) -> Array:
    """Standard noise for `Distribution.perturbed`, with leading axes `lead`."""
    if isinstance(spec.action, Discrete):
        return Categorical.noise(key, (*lead, spec.action.n))
    if isinstance(spec.action, MultiDiscrete):
        return Categorical.noise(key, (*lead, *spec.action.shape, max(spec.action.sizes)))
    return DiagonalGaussian.noise(key, (*lead, math.prod(spec.action.shape)))


def random_actions(spec: EnvSpec, key: Array, lead: tuple[int, ...]) -> Array:
    """Uniform actions [*lead] or [*lead, A]; an unbounded dimension is sampled from an interval of width 2."""
    if isinstance(spec.action, Discrete):
        return jax.random.randint(key, lead, 0, spec.action.n)
    if isinstance(spec.action, MultiDiscrete):
        sizes = jnp.asarray(spec.action.sizes).reshape((1,) * len(lead) + (-1,))
        return jax.random.randint(key, (*lead, *spec.action.shape), 0, sizes)
    bounds = (
        jnp.broadcast_to(jnp.asarray(x, jnp.float32), spec.action.shape) for x in (spec.action.low, spec.action.high)
    )
    low, high = (x.reshape((1,) * len(lead) + (-1,)) for x in bounds)
    low = jnp.where(jnp.isfinite(low), low, jnp.where(jnp.isfinite(high), high - 2.0, -1.0))
    high = jnp.where(jnp.isfinite(high), high, low + 2.0)
    return low + (high - low) * jax.random.uniform(key, (*lead, low.shape[-1]))
