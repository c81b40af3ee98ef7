"""The state of one member, grouped by what it belongs to; a population is the same with a leading member axis."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax

from nextpolicy.config import TrainConfig
from nextpolicy.core import gate, running_stats
from nextpolicy.core.gate import Criterion, GateParams
from nextpolicy.envs.base import DeviceEnv, EnvSpec
from nextpolicy.nets.build import Networks
from nextpolicy.types import Array, Params, PolicySnapshot, PyTree, RunningStats


class Hypers(NamedTuple):
    """What may differ between members of one compiled program."""

    learning_rate: Array
    learning_rate_final: Array
    gamma: Array
    lam: Array
    clip: Array
    value_clip: Array
    value_coef: Array
    entropy_coef: Array
    max_grad_norm: Array
    rho_min: Array
    rho_max: Array
    gate: Any  # GateParams, or whatever the caller's criterion takes


class Agent(NamedTuple):
    """What learns. `target` is the frozen policy that is evaluated; the behavioural one is `params` and `obs_stats`."""

    params: Params  # {"actor", "critic"}
    obs_stats: RunningStats | None
    target: PolicySnapshot
    opt_state: PyTree
    reward_stats: RunningStats | None  # of the discounted return
    gate: PyTree
    round: Array  # int32, rounds done
    key: Array

    @property
    def behaviour(self) -> PolicySnapshot:
        """The policy that collects data."""
        return PolicySnapshot(self.params["actor"], self.obs_stats)


class Workers(NamedTuple):
    """What runs: N environments and their unfinished episodes."""

    env_state: PyTree
    obs: Array  # [N, ...]
    discounted_return: Array  # [N]
    episode_return: Array  # [N]
    episode_length: Array  # [N] int32


class LearnerState(NamedTuple):
    """A member: what learns and what runs."""

    agent: Agent
    workers: Workers


@dataclass(frozen=True, eq=False)
class Setup:
    """The parts of a run that are code, not data: fixed before compilation.

    With `axis_name` the environments are spread over that mapped axis in `env_shards` equal parts.
    """

    config: TrainConfig
    spec: EnvSpec
    networks: Networks
    env: DeviceEnv | None = None  # None where environments run on the host
    criterion: Criterion = gate  # a module with init and update
    axis_name: str | None = None
    env_shards: int = 1

    @property
    def local_envs(self) -> int:
        """Environments of one shard."""
        return self.config.environment.num_envs // self.env_shards

    @property
    def local_batch(self) -> int:
        return self.local_envs * self.config.ppo.rollout_length

    def optimiser(self) -> optax.GradientTransformation:
        """Adam's direction; the learning rate and the norm clip are traced, so they are applied beside it."""
        return optax.scale_by_adam(eps=self.config.ppo.adam_eps)


def population_hypers(config: TrainConfig, gate_params: PyTree | None = None) -> Hypers:
    """The members' numbers, each field [M]; `gate_params` (leaves [M]) replaces the gate's for another criterion."""
    members = config.members()
    column = lambda values, dtype=np.float32: np.asarray(values, dtype)  # noqa: E731
    shared = {n: column([config.value(n, m) for m in members]) for n in Hypers._fields if n != "gate"}
    if gate_params is None:
        gates = [config.gate_params(m) for m in members]
        leaves = {f.name: [getattr(g, f.name) for g in gates] for f in fields(GateParams)}
        columns: dict[str, Any] = {n: column(v, bool if n == "decay_k_max" else np.float32) for n, v in leaves.items()}
        gate_params = GateParams(**columns)
    return Hypers(**cast(dict[str, Any], shared), gate=gate_params)


def init_agent(setup: Setup, key: Array) -> Agent:
    """A fresh agent: the target starts as the behavioural policy."""
    key_params, key_rest = jax.random.split(key)
    params = setup.networks.init(key_params)
    config = setup.config.ppo
    obs_stats = running_stats.init(setup.spec.obs_shape) if config.normalise_obs else None
    return Agent(
        params=params,
        obs_stats=obs_stats,
        target=PolicySnapshot(params["actor"], obs_stats),
        opt_state=setup.optimiser().init(params),
        reward_stats=running_stats.init() if config.normalise_reward else None,
        gate=setup.criterion.init(),
        round=jnp.zeros((), jnp.int32),
        key=key_rest,
    )
