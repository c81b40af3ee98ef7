"""The target is updated before its evaluation becomes hopeless: when too few samples count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp

from nextpolicy.criteria.bounds import Bounds, Threshold
from nextpolicy.settings import Settings, pytree, setting
from nextpolicy.types import Array, Evidence


@pytree
@dataclass(frozen=True)
class FloorParams(Bounds):
    """Parameters of `EssFloor`."""

    least_ess: float = setting(
        0.5,
        "The target is updated once the effective sample size, as a share of the batch, is at most this.",
        traced=True,
        low=0,
        high=1,
        interval="in [0, 1]",
    )


class EssFloor(Threshold):
    """diff = effective sample size of the ratios pi / beta_k, as a share of the batch, compared with least_ess.

    The target is held for as long as the data of the behavioural policy can still evaluate it.
    """

    name: ClassVar[str] = "ess-floor"
    settings: ClassVar[type[Settings]] = FloorParams

    def measured(self, evidence: Evidence, params: FloorParams) -> tuple[Array, Array]:
        """Effective sample size, and the least that is enough."""
        return evidence.ratio_ess, jnp.asarray(params.least_ess)
