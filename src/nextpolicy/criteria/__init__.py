"""Criteria decide when the target policy is updated to the behavioural policy. One class per file, and the registry.

A criterion has `init` and `update` (see `Criterion`) and decides from the `Evidence` of a round. A registered criterion
also has a name and a `Settings` class, whose fields become command-line options. Traced fields can be swept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from nextpolicy.criteria.any_signal import SIGNALS, AnySignal
from nextpolicy.settings import Settings, pytree
from nextpolicy.types import Array, Evidence, Metrics, PyTree


class Criterion(Protocol):
    """Decides once per round whether the target is updated. Both methods must be traceable by JAX."""

    def init(self) -> PyTree:
        """The state before the first round."""
        ...

    def update(
        self, state: PyTree, evidence: Evidence, params: PyTree, progress: Array
    ) -> tuple[PyTree, Array, Metrics]:
        """Return (next state, whether to accept, metrics by name). The decision and each metric have shape [].

        params    the member's values: a `Settings` object, or the member's `criterion_params`
        progress  fraction of the rounds done, in [0, 1)
        """
        ...


class RegisteredCriterion(Criterion, Protocol):
    """A criterion that `--criterion NAME` selects."""

    name: ClassVar[str]
    settings: ClassVar[type[Settings]]


@pytree
@dataclass(frozen=True)
class NoSettings(Settings):
    """For a criterion that the caller passes as an object; its parameters are `criterion_params`."""


OWN = "own"  # the recorded name of a criterion that the caller passed as an object
CRITERIA: dict[str, type[RegisteredCriterion]] = {**{c.name: c for c in SIGNALS}, AnySignal.name: AnySignal}


def register(criterion: type[RegisteredCriterion]) -> None:
    """Add a criterion to the registry of this process; `train(criterion=NAME)` then accepts its name."""
    if criterion.name in (*CRITERIA, OWN):
        raise ValueError(f"name: expected a name that is not taken, got {criterion.name!r}; choose another")
    CRITERIA[criterion.name] = criterion


def settings_class(name: str) -> type[Settings]:
    """The settings of the criterion with this name."""
    return NoSettings if name == OWN else CRITERIA[name].settings
