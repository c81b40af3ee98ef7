"""Learning algorithms: one class per file, and the registry."""

from __future__ import annotations

from nextpolicy.algos.base import Algorithm, Pace
from nextpolicy.algos.ppo import PPO

ALGORITHMS: dict[str, type[Algorithm]] = {a.name: a for a in (PPO,)}
# The names that `--algo` accepts: name -> (algorithm, when its target is updated).
VARIANTS: dict[str, tuple[type[Algorithm], Pace]] = {
    name: (algorithm, pace) for algorithm in ALGORITHMS.values() for name, pace in algorithm.variants.items()
}
