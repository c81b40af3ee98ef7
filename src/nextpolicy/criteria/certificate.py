"""The target is updated once the bound on its improvement, term by term from the batch, is positive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp

from nextpolicy.criteria.bounds import Bounds, Threshold
from nextpolicy.criteria.noise_corrected import without_noise
from nextpolicy.settings import Settings, pytree, setting
from nextpolicy.types import Array, Evidence


@pytree
@dataclass(frozen=True)
class CertificateParams(Bounds):
    """Parameters of `Certificate`."""

    error_weight: float = setting(
        1.0, "Weight of the value error and the policy step against the expected advantage.", traced=True, low=0
    )


class Certificate(Threshold):
    """Stable if gain >= error_weight (error + 2 TV residual), after Theorem 2 of Sandhu and Parr (arXiv 2605.05481).

    gain    expected advantage of beta_{k+1} over pi on the data of beta_k
    error   root mean square error of the critic, without the noise of its targets
    TV      95 % quantile over states of TV(beta_k, beta_{k+1}), for the distance of their visitations
    The theorem bounds |Q^pi - q| by 1 / (1 - gamma) everywhere, which makes its bound vacuous. Here `residual`,
    which contains the noise of the targets, takes that place.
    """

    name: ClassVar[str] = "certificate"
    settings: ClassVar[type[Settings]] = CertificateParams

    def measured(self, evidence: Evidence, params: CertificateParams) -> tuple[Array, Array]:
        """The terms that are subtracted, and the expected advantage."""
        error = without_noise(evidence.residual, evidence.noise)
        drift = 2.0 * jnp.asarray(evidence.tv_step_high) * jnp.asarray(evidence.residual)
        return jnp.asarray(params.error_weight) * (error + drift), jnp.asarray(evidence.gain)
