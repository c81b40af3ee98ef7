"""The target is updated once values are right in environments that the critic has not been trained on."""

from __future__ import annotations

from typing import ClassVar

from nextpolicy.criteria.bounds import Threshold, ValueBounds, share_of
from nextpolicy.criteria.noise_corrected import without_noise
from nextpolicy.settings import Settings
from nextpolicy.types import Array, Evidence


class HeldOut(Threshold):
    """As `noise-corrected`, on the fraction `held_out` of the environments, whose data the critic never sees.

    If `held_out` is 0, nothing is measured and only k_max updates the target.
    """

    name: ClassVar[str] = "held-out"
    settings: ClassVar[type[Settings]] = ValueBounds

    def measured(self, evidence: Evidence, params: ValueBounds) -> tuple[Array, Array]:
        """Error without noise on held-out environments, and delta_v times the scale of the values."""
        error = without_noise(evidence.residual_held_out, evidence.noise_held_out)
        return error, share_of(params.delta_v, evidence.scale)
