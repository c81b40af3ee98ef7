"""The host's side of training: blocks of rounds, and between them metrics, checkpoints, progress, and nothing else."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from nextpolicy.config import ConfigError, TrainConfig
from nextpolicy.core import gate
from nextpolicy.envs import build as envs
from nextpolicy.envs.base import Discrete, HostEnv
from nextpolicy.nets import build as nets
from nextpolicy.run import checkpoint, metrics, progress, sinks, traced
from nextpolicy.run.folder import RunFolder
from nextpolicy.train.device_loop import Observer, Program, build_program, member_init
from nextpolicy.train.host_loop import build_host_program, init_members
from nextpolicy.train.state import Hypers, LearnerState, Setup, population_hypers
from nextpolicy.types import PyTree

BLOCK_SECONDS = 4.0  # aimed at when block_rounds is left to us
MOST_ROUNDS = 512  # of one block: the room its metrics take on the device

OnBlock = Callable[[int, dict[str, np.ndarray], PyTree], None]


class TrainingError(RuntimeError):
    """Training cannot go on; the last checkpoint stands."""


@dataclass(frozen=True, eq=False)
class Job:
    """A configuration made into things that run."""

    config: TrainConfig
    setup: Setup
    hypers: Hypers
    observer: Observer | None = None
    actor: Any = None  # the caller's own modules, if any
    critic: Any = None
    host: HostEnv | None = None  # where environments do not run inside XLA
    by_name: bool = False  # nothing of it is the caller's own: the configuration says it all

    def _description(self) -> str:
        """The configuration without the seeds, which are data."""
        return json.dumps({name: value for name, value in self.config.flat().items() if name != "seeds"}, default=str)

    @property
    def seeds(self) -> np.ndarray:
        return np.asarray([m.seed for m in self.config.members()], np.uint32)

    def program(self) -> Program:
        rounds = self.config.run.block_rounds or min(self.config.num_rounds, MOST_ROUNDS)
        if self.host is not None:
            return build_host_program(self.setup, self.hypers, self.host, self.seeds, capacity=rounds)
        devices = jax.devices()[: self.config.run.devices or None]
        if not self.config.run.devices and jax.default_backend() == "cpu" and jax.process_count() == 1:
            devices = devices[
                : len(self.seeds)
            ]  # splitting one member's environments over cores costs more than it gains
        keeper = traced.keeper(f"{self._description()} {rounds}") if self.by_name else None
        lower = None if keeper is None else keeper.lower
        return build_program(
            self.setup, self.hypers, capacity=rounds, observer=self.observer, devices=devices, lower=lower
        )

    def template(self) -> LearnerState:
        """Shapes and types of a state, leaves [M, ...]."""
        if self.host is not None:
            return jax.eval_shape(lambda s: init_members(self.setup, s), self.seeds)
        return jax.eval_shape(jax.vmap(lambda h, s: member_init(self.setup, h, s)), self.hypers, self.seeds)


def make_job(
    config: TrainConfig,
    *,
    env: Any = None,
    env_params: Any = None,
    actor: Any = None,
    critic: Any = None,
    criterion: Any = None,
    gate_params: PyTree | None = None,
    observer: Observer | None = None,
    env_fn: Callable[[], Any] | None = None,
) -> Job:
    """The environment, networks and numbers a configuration names, or the caller's own."""
    for name, module in (("actor", actor), ("critic", critic)):
        if module is not None and (isinstance(module, type) or not hasattr(module, "apply")):
            raise ConfigError(f"{name}: got {module!r}, takes a Flax module, such as MyModule()")
    if config.run.devices > len(jax.devices()):
        raise ConfigError(f"devices: got {config.run.devices}, takes at most {len(jax.devices())}, which are here")
    if env_fn is not None or (env is None and envs.is_host(config.environment.env)):
        return _host_job(config, env_fn, (actor, critic), criterion, gate_params, observer)
    made = envs.make(config.environment.env if env is None else env, **_env_options(config, env, env_params))
    _check_policy(config, made.spec)
    networks = nets.build(made.spec, config.net, actor, critic)
    setup = Setup(config, made.spec, networks, made, gate if criterion is None else criterion)
    by_name = all(own is None for own in (env, env_params, actor, critic, criterion, gate_params, observer))
    return Job(config, setup, population_hypers(config, gate_params), observer, actor, critic, by_name=by_name)


def _host_job(
    config: TrainConfig, env_fn: Any, modules: tuple[Any, Any], criterion: Any, gate_params: Any, observer: Any
) -> Job:
    if jax.process_count() > 1 or observer is not None:
        odd = "an observer" if observer is not None else f"{jax.process_count()} processes"
        raise ConfigError(f"{config.environment.env}: got {odd}, takes none where environments run on the host")
    if config.run.devices > 1:
        raise ConfigError(f"devices: got {config.run.devices}, takes 1 where environments run on the host")
    made = envs.make_host(env_fn or config.environment.env, **config.environment.env_options)
    _check_policy(config, made.spec)
    networks = nets.build(made.spec, config.net, *modules)
    setup = Setup(config, made.spec, networks, None, gate if criterion is None else criterion)
    return Job(config, setup, population_hypers(config, gate_params), None, *modules, host=made)


def _env_options(config: TrainConfig, env: Any, env_params: Any) -> dict[str, Any]:
    options = dict(config.environment.env_options)
    return {**options, "env_params": env_params} if env is not None and env_params is not None else options


def _check_policy(config: TrainConfig, spec: Any) -> None:
    fitting = "categorical" if isinstance(spec.action, Discrete) else "gaussian"
    if config.net.policy not in ("auto", fitting):
        kind = "discrete" if fitting == "categorical" else "continuous"
        raise ConfigError(
            f"policy: got {config.net.policy!r} for {spec.id}, whose actions are {kind}, takes {fitting!r}"
        )
    if config.ppo.normalise_obs and spec.obs_table is not None:
        raise ConfigError(f"normalise_obs: got true for {spec.id}, whose observations are fixed, takes false")


def run_job(
    job: Job,
    folder: RunFolder,
    *,
    resume: bool = False,
    quiet: bool = False,
    on_block: OnBlock | None = None,
    stop: Callable[[], bool] | None = None,
) -> None:
    """Train to the end, from the start or from the newest whole checkpoint; the folder tells how it went.

    `stop` is asked after every block that is safely on disk; once it says yes the run ends there, to be resumed later.
    """
    config = job.config
    bar = progress.make(config.num_rounds, config.environment.env, quiet or jax.process_index() > 0)
    outlets = sinks.make(config, folder.path) if jax.process_index() == 0 else []
    done, program = 0, None
    try:
        program = job.program()
        state, done = _starting_point(job, program, folder, resume, bar.say)
        _status(folder, "running", done, config)
        for first, block, observed, rate in _blocks(job, program, state, done, folder):
            done = first + len(block["accepted"][0])
            if on_block is not None:
                on_block(first, block, observed)
            if jax.process_index() == 0:
                frame = metrics.table(config.members(), first, config.batch_size, _scalars(block), rate)
                for sink in outlets:
                    sink.write(frame)
            _status(folder, "running", done, config)
            bar.update(done, progress.facts_of(block, rate))
            if stop is not None and done < config.num_rounds and agreed(stop()):
                break
        _status(folder, "finished" if done == config.num_rounds else "stopped", done, config)
    except KeyboardInterrupt:
        _status(folder, "failed", _saved(folder), config, reason="interrupted; `nextpolicy resume` continues it")
        raise
    except Exception as error:
        _status(folder, "failed", _saved(folder), config, reason=str(error).split("\n")[0])
        raise
    finally:
        if program is not None:
            program.close()
        bar.close()
        for sink in outlets:
            sink.close()


def _blocks(job: Job, program: Program, state: LearnerState, done: int, folder: RunFolder) -> Any:
    """Yield (first round, metrics, observed, steps per second) after each block that is safely on disk."""
    config = job.config
    steps_per_round = config.batch_size * len(config.members())
    length = config.run.block_rounds or 1
    warm = False
    while done < config.num_rounds:
        rounds = min(length, program.capacity, config.num_rounds - done)
        started = time.perf_counter()
        state, block, observed = program.block(state, rounds)
        block, observed = _fetch((block, observed), rounds)
        seconds = time.perf_counter() - started
        _check_finite(job, done, block)
        rate = rounds * steps_per_round / seconds
        if jax.process_index() == 0:
            frame = metrics.table(config.members(), done, config.batch_size, _scalars(block), rate)
            metrics.write_part(folder.metrics, frame)
        checkpoint.save(folder.checkpoints, done + rounds, state, config.run.keep_checkpoints)
        done += rounds
        yield done - rounds, block, observed, rate
        if warm and not config.run.block_rounds:  # the first block is compilation
            length = agreed(max(1, round(BLOCK_SECONDS * rounds / seconds)))
        warm = True


def agreed(number: int) -> int:
    """What process 0 says, on all of them: where their clocks or folders decide, they must not decide apart."""
    return number if jax.process_count() == 1 else int(multihost_utils.broadcast_one_to_all(np.int32(number)))


def _fetch(tree: PyTree, rounds: int) -> PyTree:
    """The first `rounds` rows of every member's block, on the host; from all processes where there are several."""
    if jax.process_count() > 1:
        tree = multihost_utils.process_allgather(tree, tiled=True)
    return jax.tree.map(lambda x: np.asarray(x)[:, :rounds], tree)


def _scalars(block: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {k: v for k, v in block.items() if k != "finite"}


def _check_finite(job: Job, done: int, block: dict[str, np.ndarray]) -> None:
    bad = np.argwhere(~block["finite"])
    if len(bad):
        member, offset = min(bad.tolist(), key=lambda b: b[1])
        who = job.config.members()[member]
        raise TrainingError(
            f"rewards or parameters were not finite in round {done + offset} of member {member} "
            f"({who.variant}, seed {who.seed}); the run stopped and its last checkpoint stands"
        )


def _starting_point(
    job: Job, program: Program, folder: RunFolder, resume: bool, say: Callable[[str], None]
) -> tuple[LearnerState, int]:
    """A fresh state, or the newest one that is whole together with the metrics up to it."""
    state = program.init(job.seeds)
    rounds = agreed(newest_usable(folder, say) if resume and jax.process_index() == 0 else 0)
    if not rounds:
        return state, 0
    if job.host is not None:
        say(f"{job.setup.spec.id} cannot save its state: episodes restart, all else goes on from round {rounds}")
    template = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)
    return checkpoint.restore(folder.checkpoints, rounds, template), rounds


def newest_usable(folder: RunFolder, say: Callable[[str], None]) -> int:
    """Rounds to resume from; what lies past them, or is damaged, is put out of the way and said."""
    at_most = metrics.end(folder.metrics)
    damage = metrics.first_damage(folder.metrics)
    if damage is not None:
        at_most, path = damage
        say(f"metrics from round {at_most} on are damaged{f' ({path.name})' if path else ''}; falling back to before")
        if path is not None:
            path.rename(path.with_suffix(".damaged"))
    rounds = checkpoint.newest_whole(folder.checkpoints, at_most, say) or 0
    if rounds == 0 and at_most:
        say("no whole checkpoint is left; starting again from round 0")
    checkpoint.prune_after(folder.checkpoints, rounds)
    metrics.trim(folder.metrics, rounds)
    return rounds


def _saved(folder: RunFolder) -> int:
    return max(checkpoint.list_rounds(folder.checkpoints), default=0)


def _status(folder: RunFolder, state: str, done: int, config: TrainConfig, **facts: Any) -> None:
    if jax.process_index() == 0:
        folder.set_status(
            state, rounds_done=done, rounds=config.num_rounds, env_steps=done * config.batch_size, **facts
        )
