"""The Python API: `train`, `resume` and `load`. Each returns a `Run`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import jax

from nextpolicy import runfiles
from nextpolicy.config import FIELDS, ConfigError, TrainConfig, nearest, presets, shown
from nextpolicy.criteria import OWN, Criterion
from nextpolicy.envs.registry import is_host, module_of
from nextpolicy.run import callbacks, checkpoint, extend, sinks, warm_start
from nextpolicy.run.callbacks import Callback, Caller
from nextpolicy.run.dry_run import describe
from nextpolicy.run.folder import RunError, RunFolder, fresh_path
from nextpolicy.run.job import Job, make_job
from nextpolicy.run.processes import agreed, idle_cores, use_all_cores
from nextpolicy.run.program_cache import enable_cache
from nextpolicy.run.restart import check_config
from nextpolicy.run.run import Run
from nextpolicy.run.training import run_job
from nextpolicy.settings import path_of

_CUSTOM = ("env", "env_fn", "env_params", "actor", "critic", "criterion", "criterion_params")
Trust = str | Sequence[str] | bool


def train(
    env: Any = None,
    *,
    env_fn: Callable[[], Any] | None = None,
    algo: str | tuple[str, ...] = "sv-dynamic",
    preset: str | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
    actor: Any = None,
    critic: Any = None,
    criterion: str | Criterion = "stable-values",
    criterion_params: Any = None,
    env_params: Any = None,
    callback: Callback | Sequence[Callback] | None = None,
    **fields: Any,
) -> Run:
    """Train a population and return its run.

    env               an id such as "gymnax/CartPole-v1", or a gymnax-style environment object
    env_params        parameters of an environment object; by default its `default_params`
    env_fn            instead of `env`: a callable that makes one Gymnasium environment
    algo              "ppo", "sv-static", "sv-dynamic", or a tuple of these, which train in one program; "sac", "pqn"
    preset            settings to start from: "corrected" (the default) or "paper" on environments of the paper; or
                      "default", "four-rooms", "minatar", "brax", "atari", "playground" or "craftax", on any environment
    out               run folder, new or empty; by default `runs/<env>-<algo>-<time>`; `run.path` says where it is
    quiet             whether to show no progress
    actor             Flax module: observation -> logits, or (mean, log_std), before tanh if policy=squashed
    critic            Flax module: observation -> value
    criterion         when the target policy is updated: a name, or your own `nextpolicy.criteria.Criterion`
    criterion_params  `params` of your own criterion; its leaves have a leading member axis
    callback          called with a `BlockEnd` after each block is saved; True stops the training, resume continues

    Other arguments are fields of the configuration (`nextpolicy train --help-all`): seeds=8, sweep={"lam": [0.9, 1]}.
    """
    _check_arguments(env, env_fn, env_params, fields := warm_start.named(fields))
    chosen = callbacks.checked(callback)
    name = env if isinstance(env, str) else f"custom/{_label(env if env_fn is None else env_fn)}"
    own = None if isinstance(criterion, str) else criterion
    config = presets.build(name, preset=preset, algo=algo, criterion=criterion if own is None else OWN, **fields)
    config = warm_start.located(config)
    custom = {"env": None if isinstance(env, str) else env, "env_params": env_params, "actor": actor, "critic": critic}
    custom |= {"criterion": own, "criterion_params": criterion_params, "env_fn": env_fn}
    _prepare()
    idle = "" if env_fn is not None or is_host(config.environment.env) else idle_cores(len(config.members()))
    if idle and not quiet:
        print(idle, file=sys.stderr)
    sinks.check(config)
    job = make_job(config, **custom)
    job.check_population()
    warm_start.check(job)
    given = sorted(k for k, v in custom.items() if v is not None)
    if out is None and jax.process_count() > 1:
        raise ConfigError("out: expected a folder that all processes can access, got none")
    path = path_of("out", out) if out is not None else fresh_path(config)
    folder = _in_one_process(path, lambda: RunFolder.create(path, config, {"custom": given}))
    try:
        _run(job, folder, chosen, quiet=quiet)
    finally:
        folder.unlock()
    return Run(folder, lambda: job)


def _run(job: Job, folder: RunFolder, callback: Callback | None, *, quiet: bool, **how: Any) -> None:
    """Train, and say so if the callback stopped it."""
    caller = Caller(callback, job, folder)
    how |= {"on_block": caller.on_block, "on_resume": caller.on_resume}
    run_job(job, folder, quiet=quiet, stop=caller.stop, longest=caller.rounds_until, **how)
    if caller.asked and folder.status()["state"] == "stopped" and not quiet:
        done, rounds = folder.status()["rounds_done"], job.config.num_rounds
        print(f"{folder.path}: stopped by its callback after {done} of {rounds} rounds", file=sys.stderr)


def dry_run(env: str, *, preset: str | None = None, **fields: Any) -> list[str]:
    """What `train` would do with the same arguments, in lines; compiles it and runs two rounds, but writes nothing."""
    _check_arguments(env, None, None, fields)
    config = presets.build(env, preset=preset, **{"algo": "sv-dynamic", **fields})
    _prepare()
    settings = [f"  {name} = {shown(value)}" for name, value in sorted(config.flat().items())]
    return [*describe(config), "settings:", *settings]


def _check_arguments(env: object, env_fn: object, env_params: object, fields: Iterable[str]) -> None:
    for name in fields:
        if name not in FIELDS:
            raise ConfigError(f"unknown field {shown(name)}{nearest(name, [*FIELDS, 'quiet', 'out', 'preset'])}")
    if (env is None) == (env_fn is None):
        raise ConfigError(f"env: expected either env or env_fn, got {'neither' if env is None else 'both'}")
    _check_env_fn(env_fn)
    if env_params is not None and (env is None or isinstance(env, str)):
        raise ConfigError("env_params: expected an environment object as env, got an id or env_fn; use env_options")


def _prepare() -> None:
    """Use all cores, unless this is one of several processes, and enable the program cache."""
    if not jax.distributed.is_initialized():
        use_all_cores()
    enable_cache()


def _check_env_fn(env_fn: Any) -> None:
    if env_fn is not None and not callable(env_fn):
        got = repr(env_fn) if isinstance(env_fn, str) else f"an object of type {type(env_fn).__name__}"
        raise ConfigError(f"env_fn: expected a callable that makes one Gymnasium environment, got {got}")


def _label(thing: Any) -> str:
    return getattr(thing, "__name__", type(thing).__name__)


def resume(
    path: str | Path,
    *,
    quiet: bool = False,
    trust: Trust = (),
    recompute_metrics: bool = False,
    total_env_steps: float | None = None,
    callback: Callback | Sequence[Callback] | None = None,
    **custom: Any,
) -> Run:
    """Resume a run from its newest intact checkpoint. Inside XLA, the result equals an
    uninterrupted run bit for bit; on the host, unfinished episodes are lost.

    Objects passed to `train` (environment, networks, criterion) must be passed again under the same names. Damaged or
    missing metrics are recomputed from an earlier checkpoint; if there is none, from round 0 with `recompute_metrics`.

    trust      modules that the run's environment id may import ("my_envs" for gym/my_envs:Maze-v0), or True for any
    total_env_steps
               extends a finished or stopped run to this many steps of each member. Schedules, such as that of the
               learning rate, then run over the new total, so the result differs from a run that was started with it
    callback   as in `train`; it is not stored
    """
    chosen = callbacks.checked(callback)
    _prepare()
    folder = _in_one_process(path, lambda: RunFolder.open(path).locked())
    try:
        folder.check_whole()
        config = folder.config() if total_env_steps is None else extend.longer(folder, total_env_steps)
        check_trust(config, trust)
        job = make_job(config, **_same_custom(folder, custom))
        if total_env_steps is not None:
            job.check_population()
            said = extend.record(folder, config) if jax.process_index() == 0 else ""
            if said and not quiet:
                print(f"{folder.path}: {said}", file=sys.stderr)
        if folder.status().get("state") != "finished" or not _is_whole(folder, config):
            job.check_population()
            _run(job, folder, chosen, quiet=quiet, resume=True, recompute_metrics=recompute_metrics)
    finally:
        folder.unlock()
    return Run(folder, lambda: job)


def load(path: str | Path, *, trust: Trust = (), **custom: Any) -> Run:
    """Load a run from disk, finished or not.

    Policies need the environment and the networks, which are built on first use. If objects were passed to `train`,
    pass them here under the same names. Configuration, metrics and scores do not need them.

    trust      modules that the run's environment id may import ("my_envs" for gym/my_envs:Maze-v0), or True for any
    """
    folder = RunFolder.open(path)
    config = folder.config()
    _check_custom_names(custom)

    def make() -> Job:
        check_trust(config, trust)
        return make_job(config, **_same_custom(folder, custom))

    return Run(folder, make)


def check_trust(config: TrainConfig, trust: Trust) -> None:
    """Raise if the environment id imports a module that is not in `trust`."""
    names = (trust,) if isinstance(trust, str) else () if isinstance(trust, bool) else trust
    if not isinstance(names, list | tuple | set | frozenset) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"trust: expected names of modules or True, got {shown(trust)}")
    module = module_of(config.environment.env)
    if module is None or trust is True or module in names:
        return
    raise RunError(
        f"environment: {config.environment.env} imports the Python module {module}, which runs its code; "
        f"if you trust it, pass trust={module!r} or --trust-module {module}"
    )


def _is_whole(folder: RunFolder, config: TrainConfig) -> bool:
    """Whether all metrics and the last checkpoint of a finished run are intact."""
    rounds = config.num_rounds
    check_config(folder)
    last = rounds in checkpoint.list_rounds(folder.checkpoints) and not checkpoint.fault(folder.checkpoints, rounds)
    return last and not runfiles.metrics_damage(folder.path, "finished", rounds)


def _in_one_process(path: str | Path, hold: Callable[[], RunFolder]) -> RunFolder:
    """Create or lock the folder in process 0. If that fails, every process raises."""
    folder, error = None, None
    if jax.process_index() == 0:
        try:
            folder = hold()
        except (ValueError, OSError) as caught:
            error = caught
    if not agreed(error is None):
        raise error or RunError(f"run: process 0 could not use {path}")
    return folder or RunFolder.open(path)


def _same_custom(folder: RunFolder, custom: dict[str, Any]) -> dict[str, Any]:
    renamed = {"gate_params": "criterion_params"}  # in version 0.1
    wanted = {renamed.get(name, name) for name in folder.raw_config().get("custom", [])}
    _check_custom_names(custom)
    missing = wanted - {k for k, v in custom.items() if v is not None}
    if missing:
        raise RunError(
            f"run: {folder.path} was trained with a custom {', '.join(sorted(missing))}; pass the same again"
        )
    for name in sorted(k for k, v in custom.items() if v is not None and k not in wanted):
        raise RunError(f"run: {folder.path} was trained without a custom {name}, got one; leave out {name}=")
    _check_env_fn(custom.get("env_fn"))
    return custom


def _check_custom_names(custom: dict[str, Any]) -> None:
    unknown = sorted(set(custom) - set(_CUSTOM))
    if unknown:
        raise TypeError(f"expected arguments among {', '.join(_CUSTOM)}, got {', '.join(unknown)}")
