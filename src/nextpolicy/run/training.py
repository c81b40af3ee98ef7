"""The host's side of training: blocks of rounds, and between them metrics, checkpoints, progress, and nothing else."""

from __future__ import annotations

import contextlib
import json
import shlex
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from nextpolicy.config import ConfigError, TrainConfig
from nextpolicy.core import gate
from nextpolicy.envs import build as envs
from nextpolicy.envs.base import Discrete, EnvSpec, HostEnv
from nextpolicy.envs.registry import is_host, module_of
from nextpolicy.nets import build as nets
from nextpolicy.nets import check
from nextpolicy.run import checkpoint, interrupt, metrics, progress, sinks, traced
from nextpolicy.run.block import Block, TrainingError, check_finite, run_block
from nextpolicy.run.folder import RunError, RunFolder
from nextpolicy.run.processes import agreed
from nextpolicy.run.restart import starting_point
from nextpolicy.runfiles import FileRecord
from nextpolicy.train.device_loop import Observer, Program, build_program, member_init, population_mode
from nextpolicy.train.host_loop import build_host_program, init_members
from nextpolicy.train.state import Hypers, LearnerState, Setup, population_hypers
from nextpolicy.types import PyTree

BLOCK_SECONDS = 4.0  # aimed at when block_rounds is left to us
SAVING_SHARE = 0.1  # of the time, at most, that goes into saving: where it takes long, blocks are longer
MOST_ROUNDS = 512  # of one block: the room its metrics take on the device

OnBlock = Callable[[int, dict[str, np.ndarray], PyTree], None]


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

    def check_population(self) -> None:
        """Raise where members cannot train side by side as asked; loading such a run is no error."""
        if self.host is None:
            population_mode(self.config.run.population)

    def program(self) -> Program:
        rounds = min(self.config.run.block_rounds or MOST_ROUNDS, self.config.num_rounds, MOST_ROUNDS)
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
    if config.run.devices > len(jax.devices()):
        raise ConfigError(f"devices: got {config.run.devices}, takes at most {len(jax.devices())}, which are here")
    if env_fn is not None or (env is None and is_host(config.environment.env)):
        return _host_job(config, env_fn, (actor, critic), criterion, gate_params, observer)
    made = envs.make(config.environment.env if env is None else env, **_env_options(config, env, env_params))
    networks = _networks(config, made.spec, actor, critic)
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
    networks = _networks(config, made.spec, *modules)
    setup = Setup(config, made.spec, networks, None, gate if criterion is None else criterion)
    return Job(config, setup, population_hypers(config, gate_params), None, *modules, host=made)


def _env_options(config: TrainConfig, env: Any, env_params: Any) -> dict[str, Any]:
    options = dict(config.environment.env_options)
    return {**options, "env_params": env_params} if env is not None and env_params is not None else options


def _networks(config: TrainConfig, spec: EnvSpec, actor: Any, critic: Any) -> nets.Networks:
    _check_policy(config, spec)
    check.own_modules(spec, actor, critic)
    return nets.build(spec, config.net, actor, critic)


def _check_policy(config: TrainConfig, spec: EnvSpec) -> None:
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
    at_most: int | None = None,
    recompute_metrics: bool = False,
) -> None:
    """Train to the end, from the start or from the newest whole checkpoint; the folder tells how it went.

    `stop` is asked after every block that is safely on disk; once it says yes the run ends there, to be resumed later.
    A resumed run goes on from round `at_most` at the latest.
    """
    how_to_continue = _how_to_continue(job, folder, recompute_metrics)
    try:
        with interrupt.raised(how_to_continue):
            _train(job, folder, resume, quiet, on_block, stop, at_most, recompute_metrics)
    except KeyboardInterrupt as pressed:
        saved = _saved(folder)
        _status(folder, "stopped", saved, job.config)
        signum = pressed.signum if isinstance(pressed, interrupt.Stopped) else signal.SIGINT
        where = f"training stopped at round {saved} of {job.config.num_rounds}"
        raise interrupt.Stopped(f"{where}; {how_to_continue}", signum) from None
    except Exception as error:
        if isinstance(error, RunError) and not isinstance(error, checkpoint.CheckpointError):
            raise  # the folder was refused, and stays as it was
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        _status(folder, "failed", _saved(folder), job.config, reason=reason)
        if isinstance(error, OSError | checkpoint.CheckpointError):
            raise TrainingError(f"{reason}; once that is mended, {how_to_continue}") from error
        raise


def _how_to_continue(job: Job, folder: RunFolder, recompute_metrics: bool) -> str:
    """The command, or the call where objects of the caller's must be given again."""
    own = folder.raw_config().get("custom", []) if jax.process_index() == 0 else []
    if own:
        again = "".join(f", {name}=..." for name in own)
        return f"`nextpolicy.resume({str(folder.path)!r}{again})` continues it"
    module = module_of(job.config.environment.env)
    trust = f" --trust-module {shlex.quote(module)}" if module else ""
    recompute = " --recompute-metrics" if recompute_metrics else ""
    return f"`nextpolicy resume {shlex.quote(str(folder.path))}{trust}{recompute}` continues it"


def _train(
    job: Job,
    folder: RunFolder,
    resume: bool,
    quiet: bool,
    on_block: OnBlock | None,
    stop: Callable[[], bool] | None,
    at_most: int | None,
    recompute_metrics: bool,
) -> None:
    config = job.config
    with contextlib.ExitStack() as stack:
        outlets = sinks.make(config, folder.path) if jax.process_index() == 0 else []
        for sink in outlets:
            stack.callback(sink.close)
        bar = progress.make(config.num_rounds, config.environment.env, quiet or jax.process_index() > 0)
        stack.callback(bar.close)
        program = job.program()
        stack.callback(program.close)
        done, records = 0, {}
        if resume:
            latest = config.num_rounds if at_most is None else at_most
            where = starting_point(job, program, folder, bar.say, at_most=latest, recompute=recompute_metrics)
            state, done, records = where
        else:
            state = program.init(job.seeds)
        _status(folder, "running", done, config)
        for block in _blocks(job, program, state, done, folder, records):
            interrupt.check()
            done = block.first + block.rounds
            if on_block is not None:
                on_block(block.first, block.metrics, block.observed)
            if outlets:
                frame = block.frame(job)
                for sink in outlets:
                    sink.write(frame)
            _status(folder, "running", done, config)
            bar.update(done, progress.facts_of(block.metrics, block.steps_per_second(job)))
            if stop is not None and done < config.num_rounds and agreed(stop()):
                break
        _status(folder, "finished" if done == config.num_rounds else "stopped", done, config)


def _blocks(
    job: Job, program: Program, state: LearnerState, done: int, folder: RunFolder, records: dict[str, FileRecord]
) -> Iterator[Block]:
    """Yield each block once its metrics and its checkpoint are safely on disk."""
    config = job.config
    settings = folder.raw_config() if jax.process_index() == 0 else {}
    length = config.run.block_rounds or 1
    warm = False
    while done < config.num_rounds:
        state, block = run_block(program, state, done, min(length, program.capacity, config.num_rounds - done))
        check_finite(job, state, block, _saved(folder))
        started = time.perf_counter()
        if jax.process_index() == 0:
            records.update(metrics.write_part(folder.metrics, block.frame(job)))
        done += block.rounds
        about = {"config": settings, "metrics": records}
        checkpoint.save(folder.checkpoints, done, state, config.run.keep_checkpoints, about)
        saving = time.perf_counter() - started
        yield block
        if warm and not config.run.block_rounds:  # the first block is compilation
            aim = max(BLOCK_SECONDS, saving / SAVING_SHARE)
            length = agreed(max(1, round(aim * block.rounds / block.seconds)))
        warm = True


def _saved(folder: RunFolder) -> int:
    return max(checkpoint.list_rounds(folder.checkpoints), default=0)


def _status(folder: RunFolder, state: str, done: int, config: TrainConfig, **facts: Any) -> None:
    if jax.process_index() == 0:
        folder.set_status(
            state, rounds_done=done, rounds=config.num_rounds, env_steps=done * config.batch_size, **facts
        )
