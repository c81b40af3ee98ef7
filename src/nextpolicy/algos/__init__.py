"""How a learner learns: each algorithm is one file with a class; the registry is here."""

from __future__ import annotations

from nextpolicy.algos.base import Algorithm, Pace
from nextpolicy.algos.ppo import PPO

ALGORITHMS: dict[str, type[Algorithm]] = {a.name: a for a in (PPO,)}
# `--algo` takes these: name -> (algorithm, when its target is updated).
VARIANTS: dict[str, tuple[type[Algorithm], Pace]] = {
    name: (algorithm, pace) for algorithm in ALGORITHMS.values() for name, pace in algorithm.variants.items()
}
