"""A study made up without training: random policies and critics with the shapes of a real one."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from nextpolicy.criteria.stable_values import GateParams
from nextpolicy.studies.four_rooms import exact
from nextpolicy.studies.four_rooms.study import Study, configuration
from nextpolicy.tabular import four_rooms_mdp

STATES = len(four_rooms_mdp.cells)


def made_up_study(path: Path, seeds: int = 3, rounds: int = 12, noise: str = "fail") -> Study:
    """Members whose policies drift at random; static accepts every 4th round, dynamic at random."""
    rng = np.random.default_rng(0)
    config = configuration(noise, rounds, seeds=seeds, static_k=4)
    members = config.members()
    accepted = np.zeros((len(members), rounds), bool)
    for row, member in zip(accepted, members):
        if member.algo == "ppo":
            row[:] = True
        elif member.algo == "sv-static":
            row[int(GateParams.static(4).k_min) - 1 :: 4] = True
        else:
            row[:] = rng.random(rounds) < 0.3
    behaviour = rng.normal(size=(len(members), rounds + 1, STATES, 4)).cumsum(1) * 0.3
    target = behaviour.copy()
    for m in range(len(members)):
        for k in range(rounds):
            target[m, k + 1] = behaviour[m, k + 1] if accepted[m, k] else target[m, k]
    value = rng.normal(0.4, 0.1, size=(len(members), rounds + 1, STATES))
    start = exact.Tables(behaviour[:, 0], target[:, 0], value[:, 0])
    tables = exact.Tables(behaviour[:, 1:], target[:, 1:], value[:, 1:])
    mdp = four_rooms_mdp.four_rooms(noise, config.algorithm.gamma)
    run = exact.trajectory(start, tables, accepted)
    random = lambda: rng.random((len(members), rounds)) + 0.01  # noqa: E731
    metrics = {"accepted": accepted, "diff": random(), "diff_scale": random() + 1.0}
    metrics |= {"kl_target": np.where(accepted, random(), 0.0), "kl_behaviour": random()}
    metrics |= {"rounds_held": _since(accepted), "stable_rounds": _since(accepted) * (random() > 0.5)}
    metrics |= {name: np.full(accepted.shape, config.value(name)) for name in ("k_min", "k_max")}
    return Study(path, config, mdp, run, metrics, exact.quantities(mdp, run))


def _since(accepted: np.ndarray) -> np.ndarray:
    """Rounds since the last update, this one included, [M, K]."""
    found = np.ones(accepted.shape, int)
    for k in range(1, accepted.shape[1]):
        found[:, k] = np.where(accepted[:, k - 1], 1, found[:, k - 1] + 1)
    return found
