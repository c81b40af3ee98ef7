"""The target is updated whenever that improves it, by the exact values of both policies."""

from __future__ import annotations

from typing import ClassVar

import jax.numpy as jnp

from nextpolicy.criteria.bounds import Bounds, Threshold
from nextpolicy.settings import Settings
from nextpolicy.types import Array, Evidence


class Oracle(Threshold):
    """Stable if V^pi(s_0) <= V^{beta_{k+1}}(s_0). Only environments that can solve for values have these: Four Rooms.

    What no criterion can know in practice; others are compared with it.
    """

    name: ClassVar[str] = "oracle"
    settings: ClassVar[type[Settings]] = Bounds

    def measured(self, evidence: Evidence, params: Bounds) -> tuple[Array, Array]:
        """Value of the target, and value of the policy that it would become."""
        return jnp.asarray(evidence.start_value), jnp.asarray(evidence.next_start_value)
