"""Learning algorithms: one class per file, and the registry."""

from __future__ import annotations

from nextpolicy.algos.base import Algorithm, Pace
from nextpolicy.algos.ppo import PPO
from nextpolicy.algos.pqn import PQN
from nextpolicy.algos.sac import SAC

ALGORITHMS: dict[str, type[Algorithm]] = {}
VARIANTS: dict[str, tuple[type[Algorithm], Pace]] = {}  # values of `--algo`: (algorithm, when its target is updated)


def register(algorithm: type[Algorithm]) -> None:
    """Add an algorithm to the registry. `--algo` then accepts the names of its variants."""
    taken = [name for name in algorithm.variants if name in VARIANTS]
    if algorithm.name in ALGORITHMS or taken:
        got = taken[0] if taken else algorithm.name
        raise ValueError(f"name: expected a name that is not taken, got {got!r}; choose another")
    ALGORITHMS[algorithm.name] = algorithm
    VARIANTS.update({name: (algorithm, pace) for name, pace in algorithm.variants.items()})


for _algorithm in (PPO, SAC, PQN):
    register(_algorithm)
