"""Any of the other criteria, chosen member by member: a sweep over criteria is one compiled program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import jax.numpy as jnp

from nextpolicy.criteria.bounds import Bounds, GateState, Number, Threshold, relative
from nextpolicy.criteria.certificate import Certificate, CertificateParams
from nextpolicy.criteria.ess_floor import EssFloor, FloorParams
from nextpolicy.criteria.held_out import HeldOut
from nextpolicy.criteria.network_change import NetworkChange
from nextpolicy.criteria.noise_corrected import NoiseCorrected
from nextpolicy.criteria.oracle import Oracle
from nextpolicy.criteria.policy_step import PolicyStep, StepParams
from nextpolicy.criteria.stable_values import GateParams, StableValues
from nextpolicy.settings import Settings, pytree, setting
from nextpolicy.types import Array, Evidence, Metrics

SIGNALS: tuple[type[Threshold], ...] = (
    StableValues,
    NetworkChange,
    NoiseCorrected,
    HeldOut,
    PolicyStep,
    EssFloor,
    Certificate,
    Oracle,
)
Signal = Literal[
    "stable-values",
    "network-change",
    "noise-corrected",
    "held-out",
    "policy-step",
    "ess-floor",
    "certificate",
    "oracle",
]


@pytree
@dataclass(frozen=True)
class SignalParams(StepParams, FloorParams, CertificateParams, GateParams):
    """The parameters of all criteria, and which of them decides."""

    signal: Signal = setting("stable-values", "The criterion that decides.", traced=True)

    def periodic(self, period: int) -> SignalParams:
        """Accept every `period` rounds. The signals keep their thresholds."""
        return Bounds.periodic(self, period)


class AnySignal(Threshold):
    """The criterion `signal` with its own parameters.

    `signal_NAME` is a metric of every criterion: its diff over its threshold, whichever decides.
    """

    name: ClassVar[str] = "any-signal"
    settings: ClassVar[type[Settings]] = SignalParams

    def measured(self, evidence: Evidence, params: SignalParams) -> tuple[Array, Array]:
        """`diff` and threshold of the chosen criterion."""
        found = [c().measured(evidence, params) for c in SIGNALS]
        diffs, thresholds = (jnp.stack([jnp.asarray(x, jnp.float32) for x in column]) for column in zip(*found))
        index = number_of(params.signal)
        return diffs[index], thresholds[index]

    def update(
        self, state: GateState, evidence: Evidence, params: SignalParams, progress: Number
    ) -> tuple[GateState, Array, Metrics]:
        """Decide after one round."""
        state, accept, metrics = super().update(state, evidence, params, progress)
        signals = {f"signal_{c.name.replace('-', '_')}": relative(*c().measured(evidence, params)) for c in SIGNALS}
        others = {name: jnp.asarray(getattr(evidence, name)) for name in ("tv_step", "sign_changes")}
        return state, accept, metrics | signals | others


def number_of(signal: str | Array) -> int | Array:
    """The place of a criterion in SIGNALS. In compiled programs, `signal` is that number already."""
    return get_args(Signal).index(signal) if isinstance(signal, str) else jnp.asarray(signal, jnp.int32)
