"""The target is updated once the behavioural policy has nearly stopped moving: the delta of the theorem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp

from nextpolicy.criteria.bounds import Bounds, Threshold
from nextpolicy.settings import Settings, pytree, setting
from nextpolicy.types import Array, Evidence


@pytree
@dataclass(frozen=True)
class StepParams(Bounds):
    """Parameters of `PolicyStep`."""

    delta_tv: float = setting(
        0.1,
        "A round is stable if the behavioural policy moves by at most this total variation in 95 % of the states.",
        traced=True,
        low=0,
        high=1,
        interval="in [0, 1]",
    )


class PolicyStep(Threshold):
    """diff = the 95 % quantile over states of TV(beta_k, beta_{k+1}), compared with delta_tv.

    The bound of Sandhu and Parr (arXiv 2605.05481) contains the maximum over states, which a batch cannot measure.
    """

    name: ClassVar[str] = "policy-step"
    settings: ClassVar[type[Settings]] = StepParams

    def measured(self, evidence: Evidence, params: StepParams) -> tuple[Array, Array]:
        """Step of the behavioural policy, and the largest that counts as small."""
        return jnp.asarray(evidence.tv_step_high), jnp.asarray(params.delta_tv)
