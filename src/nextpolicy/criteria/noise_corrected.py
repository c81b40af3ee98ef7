"""The target is updated once values are as close to their targets as the noise of the targets allows."""

from __future__ import annotations

from typing import ClassVar

import jax.numpy as jnp

from nextpolicy.criteria.bounds import Number, Threshold, ValueBounds, share_of
from nextpolicy.settings import Settings
from nextpolicy.types import Array, Evidence


def without_noise(residual: Number, noise: Number) -> Array:
    """sqrt(max(0, residual^2 - noise^2))"""
    return jnp.sqrt(jnp.maximum(jnp.square(residual) - jnp.square(noise), 0.0))


class NoiseCorrected(Threshold):
    """diff = sqrt(max(0, residual^2 - noise^2)), compared with delta_v mean |y|.

    residual^2 = mean (y_t - v_k(s_t))^2 contains the noise of the returns. noise^2 is what it would be for an exact
    critic, from the squares of the same temporal-difference errors (`core.returns.vtrace_noise`). The rest is the error
    of the critic that keeps its sign over several steps. Unlike the paper's diff it can reach 0.
    """

    name: ClassVar[str] = "noise-corrected"
    settings: ClassVar[type[Settings]] = ValueBounds

    def measured(self, evidence: Evidence, params: ValueBounds) -> tuple[Array, Array]:
        """Error without noise, and delta_v times the scale of the values."""
        return without_noise(evidence.residual, evidence.noise), share_of(params.delta_v, evidence.scale)
