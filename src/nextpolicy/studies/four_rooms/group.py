"""Trains configurations that differ only in traced fields as one population, and solves all of their rounds exactly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import numpy as np

from nextpolicy.config import Member, TrainConfig
from nextpolicy.envs import build as envs
from nextpolicy.loop.population import build_program
from nextpolicy.loop.state import Setup, make_criterion, population_hypers
from nextpolicy.nets import kinds
from nextpolicy.studies.four_rooms import exact
from nextpolicy.studies.four_rooms.exact import Trajectory
from nextpolicy.tabular import four_rooms_mdp
from nextpolicy.tabular.mdp import TabularMDP


@dataclass(frozen=True, eq=False)
class Outcome:
    """The members of one configuration: their metrics and exact quantities, columns [M, K]."""

    mdp: TabularMDP
    members: list[Member]
    metrics: dict[str, np.ndarray]
    exact: dict[str, np.ndarray]
    run: Trajectory  # policies and critics, from which `exact` is solved


def train(configs: Mapping[str, TrainConfig]) -> dict[str, Outcome]:
    """Train all configurations in one program, without a run folder.

    They must agree in all fields that are not traced. The first must have a member whose target may be held.
    """
    first = next(iter(configs.values()))
    env = envs.make("four-rooms", **first.environment.env_options)
    setup = Setup(first, env.spec, kinds.make(first, env.spec), make_criterion(first, None))
    if setup.plain:
        raise ValueError("configs: expected a first configuration with sv-static or sv-dynamic, got one with ppo alone")
    hypers = jax.tree.map(lambda *x: np.concatenate(x), *[population_hypers(c) for c in configs.values()])
    seeds = np.concatenate([[m.seed for m in c.members()] for c in configs.values()]).astype(np.uint32)
    start = exact.observe_start(setup, seeds)
    program = build_program(setup, env, hypers, capacity=first.num_rounds, observer=exact.observe)
    _, *outcome = program.block(program.init(seeds), first.num_rounds)
    metrics, tables = jax.tree.map(np.asarray, outcome)
    if not metrics["finite"].all():
        raise FloatingPointError("metrics: expected finite numbers, got NaN or infinity")
    run = exact.trajectory(start, tables, metrics["accepted"])
    outcomes, done = {}, 0
    for name, config in configs.items():
        mine = slice(done, done + len(config.members()))
        mdp = four_rooms_mdp.four_rooms(config.environment.env_options.get("noise", "fail"), config.algorithm.gamma)
        own = Trajectory(*(x[mine] for x in run))
        columns = {k: v[mine] for k, v in metrics.items()}
        outcomes[name] = Outcome(mdp, config.members(), columns, exact.quantities(mdp, own), own)
        done = mine.stop
    return outcomes
