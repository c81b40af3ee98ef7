"""Build the environment, networks, criterion and hyperparameters of a configuration."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from nextpolicy.config import ConfigError, TrainConfig, shown
from nextpolicy.criteria import OWN, Criterion
from nextpolicy.envs import build as envs
from nextpolicy.envs.base import Box, DeviceEnv, EnvSpec, HostEnv, is_host_env
from nextpolicy.envs.registry import is_host
from nextpolicy.loop import checks
from nextpolicy.loop.host_loop import build_host_program, init_members
from nextpolicy.loop.population import Observer, Program, build_program, member_init, population_mode
from nextpolicy.loop.state import Hypers, MemberState, Setup, make_criterion, population_hypers
from nextpolicy.nets import check, kinds
from nextpolicy.run import memory, traced
from nextpolicy.types import Array, Evidence, Networks, PyTree

MAX_ROUNDS = 512  # per call of the program; its metrics stay on the device until it returns


@dataclass(frozen=True, eq=False)
class Job:
    """A configuration with the objects needed to train and to act."""

    config: TrainConfig
    setup: Setup
    hypers: Hypers
    env: DeviceEnv | HostEnv
    observer: Observer | None = None
    actor: nn.Module | None = None  # modules passed by the caller, if any
    critic: nn.Module | None = None
    by_name: bool = False  # whether the configuration describes the job completely

    @property
    def on_host(self) -> bool:
        """Whether the environments run on the host. Their state cannot be saved."""
        return is_host_env(self.env)

    @property
    def seeds(self) -> np.ndarray:
        return np.asarray([m.seed for m in self.config.members()], np.uint32)

    def check_population(self) -> None:
        """Raise if this device cannot train the population. A run can be loaded regardless."""
        _try_criterion(self.setup.criterion, jax.tree.map(lambda x: x[0], self.hypers.criterion))
        if not self.on_host:
            population_mode(self.config.run.population)
        settings: Any = self.config.algorithm
        if hasattr(settings, "replay_size"):
            learner = jax.eval_shape(self.setup.algorithm.init, jax.random.key(0))
            drawn = settings.updates(self.config.batch_size) * settings.minibatch_size
            memory.check_replay(learner.replay, len(self.seeds), drawn)

    def devices(self) -> list[jax.Device]:
        """The devices that the members train on."""
        devices = jax.devices()[: self.config.run.devices or None]
        if self.on_host:
            return devices[:1]
        if not self.config.run.devices and jax.default_backend() == "cpu" and jax.process_count() == 1:
            # Splitting the environments of one member over cores costs more than it gains.
            devices = devices[: len(self.seeds)]
        return devices

    def trained_on(self) -> str:
        """The devices in words. On others, the program is another, and the last bits of its numbers may differ."""
        devices = self.devices()
        return f"{len(devices)} x {devices[0].device_kind}"

    def program(self) -> Program:
        """The compiled functions of the population."""
        rounds = min(self.config.run.block_rounds or MAX_ROUNDS, self.config.num_rounds, MAX_ROUNDS)
        if is_host_env(self.env):
            return build_host_program(self.setup, self.hypers, self.env, self.seeds, capacity=rounds)
        keeper = traced.keeper(f"{self._description()} {rounds}") if self.by_name else None
        return build_program(
            self.setup,
            self.env,
            self.hypers,
            capacity=rounds,
            observer=self.observer,
            devices=self.devices(),
            keeper=keeper,
        )

    def template(self) -> MemberState:
        """Shapes and dtypes of the state, leaves [M, ...]."""
        env = self.env
        if is_host_env(env):
            return jax.eval_shape(lambda seeds: init_members(self.setup, seeds), self.seeds)
        return jax.eval_shape(jax.vmap(lambda seed: member_init(self.setup, env, seed)), self.seeds)

    def _description(self) -> str:
        """The configuration as JSON, without the seeds, which are inputs of the program."""
        return json.dumps({name: value for name, value in self.config.flat().items() if name != "seeds"}, default=str)


def make_job(
    config: TrainConfig,
    *,
    env: Any = None,
    env_params: Any = None,
    actor: nn.Module | None = None,
    critic: nn.Module | None = None,
    criterion: Criterion | None = None,
    criterion_params: PyTree | None = None,
    observer: Observer | None = None,
    env_fn: Callable[[], Any] | None = None,
) -> Job:
    """Build the job of a configuration. Objects passed by the caller replace those it names."""
    _check_criterion(config, criterion, criterion_params)
    on_host = env_fn is not None or (env is None and is_host(config.environment.env))
    _check_devices(config, on_host, observer)
    made: DeviceEnv | HostEnv
    if on_host:
        made = envs.make_host(env_fn or config.environment.env, **config.environment.env_options)
    else:
        made = envs.make(config.environment.env if env is None else env, **_env_options(config, env, env_params))
    _check_evidence(config, made.spec)
    networks = _networks(config, made.spec, actor, critic)
    setup = Setup(config, made.spec, networks, make_criterion(config, criterion))
    hypers = population_hypers(config, criterion_params)
    own = (env, env_params, actor, critic, criterion, observer, env_fn)
    # Classes that a user registered count as objects: their code is not part of a cached program's name.
    classes = (type(setup.criterion), config.algorithm_class, type(config.algorithm), type(config.criterion))
    ours = all(each.__module__.startswith("nextpolicy.") for each in classes)
    return Job(
        config, setup, hypers, made, observer, actor, critic, by_name=ours and not any(x is not None for x in own)
    )


def _check_criterion(config: TrainConfig, criterion: object, params: PyTree | None) -> None:
    if config.run.criterion == OWN and criterion is None:
        raise ConfigError(f"criterion: expected the object that the run was trained with, got the name {OWN!r}")
    functions = (getattr(criterion, name, None) for name in ("init", "update"))
    if criterion is not None and (isinstance(criterion, type) or not all(map(callable, functions))):
        got = criterion.__name__ if isinstance(criterion, type) else shown(criterion)
        raise ConfigError(f"criterion: expected a name, or an object with init() and update(), got {got}")
    if params is None:
        return
    if criterion is None:
        raise ConfigError(
            "criterion_params: expected a criterion object with them, got none; "
            "set the fields of a named criterion instead, such as delta_v"
        )
    members = len(config.members())
    for leaf in jax.tree.leaves(params):
        if np.shape(leaf)[:1] != (members,):
            raise ConfigError(
                f"criterion_params: expected arrays with a leading axis of {members}, one entry per member, "
                f"got shape {np.shape(leaf)}"
            )


def _try_criterion(criterion: Criterion, params: PyTree) -> None:
    """Trace one decision, so that an unusable criterion is an error before a folder is made."""

    def decide(state: PyTree, evidence: Evidence, progress: Array) -> PyTree:
        returned = criterion.update(state, evidence, params, progress)
        return checks.decision(type(criterion).__name__, returned, state)

    number: Any = jax.ShapeDtypeStruct((), jnp.float32)
    jax.eval_shape(decide, jax.eval_shape(criterion.init), Evidence(*[number] * len(Evidence._fields)), number)


def _check_devices(config: TrainConfig, on_host: bool, observer: Observer | None) -> None:
    if config.run.devices > len(jax.devices()):
        raise ConfigError(
            f"devices: expected at most {len(jax.devices())}, the number of devices here, got {config.run.devices}"
        )
    if not on_host:
        return
    if jax.process_count() > 1 or observer is not None:
        got = "an observer" if observer is not None else f"{jax.process_count()} processes"
        raise ConfigError(
            f"{config.environment.env}: expected one process and no observer for host environments, got {got}"
        )
    if config.run.devices > 1:
        raise ConfigError(f"devices: expected 1 for environments that run on the host, got {config.run.devices}")


def _check_evidence(config: TrainConfig, spec: EnvSpec) -> None:
    """What a criterion watches must be measured. Otherwise only `k_max` would update the target."""
    fields = config.fields()
    share, envs = config.value("held_out") if "held_out" in fields else 0.0, config.environment.num_envs
    if share and not round(share * envs):
        raise ConfigError(f"held_out: expected 0, or at least one of the {envs} environments, got {share:g} of them")
    for member in config.members():
        name = config.value("signal", member) if "signal" in fields else config.run.criterion
        if member.pace != "dynamic":
            continue
        if name in getattr(config.algorithm_class, "unsupported_criteria", ()):
            raise ConfigError(f"criterion: expected one whose evidence {member.algo} measures, got {name}")
        if name == "held-out" and not share:
            raise ConfigError("held_out: expected a fraction above 0 for the criterion held-out, got 0")
        if name == "oracle" and spec.start_value is None:
            raise ConfigError(
                f"criterion: expected oracle only where values can be solved for (four-rooms), got {spec.id}"
            )


def _env_options(config: TrainConfig, env: Any, env_params: Any) -> dict[str, Any]:
    options = dict(config.environment.env_options)
    return {**options, "env_params": env_params} if env is not None and env_params is not None else options


def _networks(config: TrainConfig, spec: EnvSpec, actor: nn.Module | None, critic: nn.Module | None) -> Networks:
    _check_policy(config, spec)
    check.own_modules(spec, actor, critic)
    return kinds.make(config, spec, actor, critic)


def _check_policy(config: TrainConfig, spec: EnvSpec) -> None:
    """The distribution must fit the actions; SAC has only one."""
    continuous, chosen, algo = isinstance(spec.action, Box), config.net.policy, config.run.algo[0]
    if chosen != "auto" and getattr(config.algorithm_class, "networks_kind", "") == "soft":
        raise ConfigError(f"policy: expected 'auto' for {algo}, which has only one policy, got {chosen!r}")
    fitting = ["gaussian", "squashed"] if continuous else ["categorical"]
    if chosen not in ("auto", *fitting):
        wanted, kind = " or ".join(map(repr, fitting)), "continuous" if continuous else "discrete"
        raise ConfigError(f"policy: expected {wanted} for {spec.id}, whose actions are {kind}, got {chosen!r}")
