"""The criterion of the paper: the target is updated once the value estimates are stable.

Sandhu and Parr, "Approximate Next Policy Sampling" (arXiv 2605.05481), Algorithms 2 and 3. Parameters may be traced and
batched, so members with different gates share one compiled program.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from nextpolicy.core import check
from nextpolicy.criteria.bounds import Number, Threshold, ValueBounds, share_of
from nextpolicy.settings import Settings, pytree, setting
from nextpolicy.types import Array, Evidence


@pytree
@dataclass(frozen=True)
class GateParams(ValueBounds):
    """Parameters of the gate. During training, each number may be traced or an array with one entry per member."""

    diff_kind: Literal["target", "network"] = setting(
        "target",
        "What diff is: mean |y - v_k|, the distance of values from their targets (target), or mean |v_{k+1} - v_k|, "
        "their change in a round (network).",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check.one_of("diff_kind", self.diff_kind, ("target", "network"))

    def periodic(self, period: int) -> GateParams:
        """Accept every `period` rounds."""
        return replace(GateParams.static(period), diff_kind=self.diff_kind)

    @classmethod
    def ppo(cls) -> GateParams:
        """The gate that accepts every round, which makes SV-PPO equal to PPO."""
        return cls.static(1)

    @classmethod
    def static(cls, k: Number, delta_v: Number = float("inf")) -> GateParams:
        """Accept every k rounds, regardless of the values."""
        check.number("k", k, 1, float("inf"))
        return cls.dynamic(delta_v, k, k)

    @classmethod
    def dynamic(
        cls,
        delta_v: Number,
        k_min: Number = 1,
        k_max: Number = 33,
        decay_fraction: Number = 0.0,
        decay_k_max: bool | Array = False,
    ) -> GateParams:
        """Accept after k_min consecutive stable rounds, or after k_max rounds."""
        made = cls(k_min, k_max, decay_fraction, decay_k_max, delta_v)  # type: ignore[arg-type]
        if isinstance(k_max, int | float | np.number):
            check.number("k_min", k_min, 1, float(k_max), rule=": k_min may not exceed k_max")
        return made


class StableValues(Threshold):
    """The paper's gate.

    With diff = mean |y_t - v_k(s_t)| and scale = mean |y_t| over the round's batch, the round is stable if
    diff <= delta_v * scale, and not if diff or scale is not finite; `bounds.decide` says what follows. With
    `diff_kind="network"`, diff = mean |v_{k+1}(s_t) - v_k(s_t)|.
    """

    name: ClassVar[str] = "stable-values"
    settings: ClassVar[type[Settings]] = GateParams

    def measured(self, evidence: Evidence, params: GateParams) -> tuple[Array, Array]:
        """Mean change of the values, and delta_v times their scale."""
        diff = evidence.diff_target if params.diff_kind == "target" else evidence.diff_network
        return diff, share_of(params.delta_v, evidence.scale)
