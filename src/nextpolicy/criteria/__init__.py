"""When may the target policy follow the behavioural one? Each criterion is one file with a class; the registry is here.

A criterion looks at the `Evidence` of a round and decides. It has `init` and `update` (see `Criterion`). A registered
one also has a name and a `Settings` class. Its fields become command-line options; its traced fields may be swept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from nextpolicy.criteria.stable_values import StableValues
from nextpolicy.settings import Settings, pytree
from nextpolicy.types import Array, Evidence, Metrics, PyTree


class Criterion(Protocol):
    """Decides once per round whether the target follows. Both functions must be traceable by JAX."""

    def init(self) -> PyTree:
        """The state before the first round."""
        ...

    def update(
        self, state: PyTree, evidence: Evidence, params: PyTree, progress: Array
    ) -> tuple[PyTree, Array, Metrics]:
        """One round: (next state, whether to accept, metrics by name, shapes []).

        params    the member's numbers: a `Settings` object, or whatever `criterion_params` holds
        progress  share of the rounds done, in [0, 1)
        """
        ...


class RegisteredCriterion(Criterion, Protocol):
    """A criterion that `--criterion NAME` finds."""

    name: ClassVar[str]
    settings: ClassVar[type[Settings]]


@pytree
@dataclass(frozen=True)
class NoSettings(Settings):
    """For a criterion that the caller passes as an object: its numbers are `criterion_params`."""


OWN = "own"  # recorded as the criterion's name where the caller passed an object
CRITERIA: dict[str, type[RegisteredCriterion]] = {c.name: c for c in (StableValues,)}


def register(criterion: type[RegisteredCriterion]) -> None:
    """Make a criterion of your own available by its name in this process."""
    if criterion.name in (*CRITERIA, OWN):
        raise ValueError(f"name: expected one that no criterion has, got {criterion.name!r}; choose another")
    CRITERIA[criterion.name] = criterion


def settings_class(name: str) -> type[Settings]:
    """The settings of the criterion with this name."""
    return NoSettings if name == OWN else CRITERIA[name].settings
