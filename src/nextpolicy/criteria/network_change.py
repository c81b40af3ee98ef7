"""The target is updated once the value network has stopped changing, as the main text of the paper says."""

from __future__ import annotations

from typing import ClassVar

from nextpolicy.criteria.bounds import Threshold, ValueBounds, share_of
from nextpolicy.settings import Settings
from nextpolicy.types import Array, Evidence


class NetworkChange(Threshold):
    """diff = mean |v_{k+1}(s_t) - v_k(s_t)|, compared with delta_v mean |y|.

    Sandhu and Parr, "Approximate Next Policy Sampling" (arXiv 2605.05481), main text; `stable-values` with
    `diff_kind=network`.
    """

    name: ClassVar[str] = "network-change"
    settings: ClassVar[type[Settings]] = ValueBounds

    def measured(self, evidence: Evidence, params: ValueBounds) -> tuple[Array, Array]:
        """Mean change of the values, and delta_v times their scale."""
        return evidence.diff_network, share_of(params.delta_v, evidence.scale)
