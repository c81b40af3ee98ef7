"""The state of one member. A population has the same state with a leading member axis."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nextpolicy.algos.base import Algorithm, Parts
from nextpolicy.config import TrainConfig
from nextpolicy.core.shards import Shards
from nextpolicy.criteria import CRITERIA, Criterion
from nextpolicy.envs.base import EnvSpec
from nextpolicy.loop.episodes import Running
from nextpolicy.settings import Settings, field_infos
from nextpolicy.types import Array, Networks, PolicySnapshot, PyTree


class Hypers(NamedTuple):
    """The traced hyperparameters of a member. They may differ between members of one compiled program."""

    period: Array  # int32, rounds between target updates; 0 if the criterion decides
    algorithm: Any  # the algorithm's settings, traced fields as arrays
    criterion: PyTree  # the criterion's settings, or the caller's `criterion_params`


class Agent(NamedTuple):
    """The learner, the frozen target policy that it evaluates, and the state of the criterion."""

    learner: PyTree  # the algorithm's state: parameters, optimiser state, statistics
    target: PolicySnapshot
    criterion: PyTree  # the criterion's state
    rounds_held: Array  # int32, rounds since the target last changed
    round: Array  # int32, rounds done
    key: Array


class Workers(NamedTuple):
    """The state of N environments on the device and their unfinished episodes."""

    env_state: PyTree
    obs: Array  # [N, ...]
    running: Running


class MemberState(NamedTuple):
    """The state of a member: its agent and its environments."""

    agent: Agent
    workers: PyTree  # Workers; () for host environments, whose state cannot be saved


@dataclass(frozen=True, eq=False)
class Setup:
    """The static parts of a run, fixed before compilation."""

    config: TrainConfig
    spec: EnvSpec
    networks: Networks
    criterion: Criterion
    shards: Shards = Shards()

    @property
    def local_envs(self) -> int:
        """Number of environments per shard."""
        return self.config.environment.num_envs // self.shards.count

    @property
    def algorithm(self) -> Algorithm:
        batch_size = self.local_envs * self.config.environment.rollout_length
        spec = self.spec
        parts = Parts(
            networks=self.networks,
            obs_shape=spec.obs_shape,
            batch_size=batch_size,
            shards=self.shards,
            numbered_obs=spec.obs_table is not None,
            obs_dtype=spec.obs_dtype,
            action_size=spec.action.outputs,
            num_rounds=self.config.num_rounds,
        )
        return self.config.algorithm_class(self.config.algorithm, parts)

    @property
    def plain(self) -> bool:
        """Whether every member updates its target every round, so that the target is always the behavioural policy."""
        return all(self.config.period(member) == 1 for member in self.config.members())

    def sharded(self, shards: Shards) -> Setup:
        """The same run with its environments split over shards."""
        return replace(self, shards=shards)


def make_criterion(config: TrainConfig, own: Criterion | None) -> Criterion:
    """The caller's criterion, or the one named in the configuration."""
    return CRITERIA[config.run.criterion]() if own is None else own


def population_hypers(config: TrainConfig, criterion_params: PyTree | None = None) -> Hypers:
    """The members' hyperparameters, leaves [M]. `criterion_params` (leaves [M]) belong to the caller's criterion."""
    members = config.members()
    periods = [config.period(m) for m in members]
    if criterion_params is None:
        own = [config.section_of("criterion", m) for m in members]
        own = [s.periodic(period) if period else s for s, period in zip(own, periods, strict=True)]
        criterion_params = _columns(own)
    algorithm = _columns([config.section_of("algorithm", m) for m in members])
    return Hypers(np.asarray(periods, np.int32), algorithm, criterion_params)  # type: ignore[arg-type]


def _columns(settings: list[Settings]) -> Any:
    """One settings object whose traced fields are arrays [M]. Of a field with named values, these are their numbers."""
    infos = [info for info in field_infos("", type(settings[0])) if info.traced]
    columns: dict[str, np.ndarray] = {
        i.name: np.asarray([i.number(getattr(s, i.name)) for s in settings], i.number_type) for i in infos
    }
    made = object.__new__(type(settings[0]))  # skips validation, which expects scalars
    for field in fields(settings[0]):  # type: ignore[arg-type]
        object.__setattr__(made, field.name, columns.get(field.name, getattr(settings[0], field.name)))
    return made


def init_agent(setup: Setup, key: Array) -> Agent:
    """The initial agent, whose target is the behavioural policy."""
    key_learner, key_rest = jax.random.split(key)
    learner = setup.algorithm.init(key_learner)
    zero = jnp.zeros((), jnp.int32)
    return Agent(learner, setup.algorithm.behaviour(learner), setup.criterion.init(), zero, zero, key_rest)
