"""What a user of the library calls: train, resume, load, and the run they give back."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd

from nextpolicy import presets, runfiles
from nextpolicy.config import FIELDS, MOST_SEED, ConfigError, Member, TrainConfig, nearest, shown, whole
from nextpolicy.envs.registry import is_host, module_of
from nextpolicy.nets import build as nets
from nextpolicy.run import checkpoint, sinks
from nextpolicy.run.folder import RunError, RunFolder, fresh_path
from nextpolicy.run.policy import Policy
from nextpolicy.run.processes import agreed, idle_cores, use_all_cores
from nextpolicy.run.program_cache import enable_cache
from nextpolicy.run.restart import check_config
from nextpolicy.run.training import Job, make_job, run_job
from nextpolicy.train.evaluate import evaluate
from nextpolicy.train.host_evaluate import actor as host_actor
from nextpolicy.train.host_evaluate import evaluate_host
from nextpolicy.types import PolicySnapshot

_CUSTOM = ("env", "env_fn", "env_params", "actor", "critic", "criterion", "gate_params")
Trust = str | Sequence[str] | bool
ATTEMPTS = 5  # to read a checkpoint that training replaces meanwhile
MOST_EPISODES = 1_000_000  # of one evaluation, and most environments that they are spread over
SCORE_SHARE = 0.1  # a run's score is its mean return over this last share of its steps


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
    criterion: Any = None,
    gate_params: Any = None,
    env_params: Any = None,
    **fields: Any,
) -> Run:
    """Train a population and return its run.

    env        an id such as "gymnax/CartPole-v1", or a gymnax-style environment object (with `env_params`)
    env_fn     instead of `env`: a callable that makes one Gymnasium environment
    algo       "ppo", "sv-static", "sv-dynamic", or several: they train side by side in one program
    preset     "paper" (the default where the paper treats the environment) or "default", then any field by name:
               seeds=8, total_env_steps=10_000_000, num_envs=64, learning_rate=3e-4, sweep={"lam": [0.9, 0.95]}, ...
    actor      Flax module: observation -> logits, or (mean, log_std); `critic`: observation -> value
    criterion  an object with `init()` and `update(state, diff, scale, params, progress)`; see core.gate.Criterion.
               `gate_params` (leaves with a leading member axis) is what its `params` will be.
    """
    for name in fields:
        if name not in FIELDS:
            raise ConfigError(f"unknown field {shown(name)}{nearest(name, [*FIELDS, 'quiet', 'out', 'preset'])}")
    if (env is None) == (env_fn is None):
        raise ConfigError("env: got both it and env_fn, or neither; takes one of them")
    _check_env_fn(env_fn)
    if env_params is not None and (env is None or isinstance(env, str)):
        raise ConfigError("env_params: got them without an environment object; env_options are for an id or env_fn")
    name = env if isinstance(env, str) else f"custom/{_label(env if env_fn is None else env_fn)}"
    config = presets.build(name, preset=preset, algo=algo, **fields)
    custom = {"env": None if isinstance(env, str) else env, "env_params": env_params, "actor": actor, "critic": critic}
    custom |= {"criterion": criterion, "gate_params": gate_params, "env_fn": env_fn}
    _prepare()
    idle = "" if env_fn is not None or is_host(config.environment.env) else idle_cores(len(config.members()))
    if idle and not quiet:
        print(idle, file=sys.stderr)
    sinks.check(config)
    job = make_job(config, **custom)
    job.check_population()
    given = sorted(k for k, v in custom.items() if v is not None)
    if out is None and jax.process_count() > 1:
        raise ConfigError("out: got none for a run over several processes, takes a folder that all of them see")
    path = Path(out) if out is not None else fresh_path(config)
    folder = _in_one_process(path, lambda: RunFolder.create(path, config, {"custom": given}))
    try:
        run_job(job, folder, quiet=quiet)
    finally:
        folder.unlock()
    return Run(folder, lambda: job)


def _prepare() -> None:
    """What a process does before it trains: take all cores, unless it is one of several, and keep programs."""
    if not jax.distributed.is_initialized():
        use_all_cores()
    enable_cache()


def _check_env_fn(env_fn: Any) -> None:
    if env_fn is not None and not callable(env_fn):
        got = repr(env_fn) if isinstance(env_fn, str) else f"an object of type {type(env_fn).__name__}"
        raise ConfigError(f"env_fn: got {got}, takes a callable that makes one Gymnasium environment")


def _label(thing: Any) -> str:
    return getattr(thing, "__name__", type(thing).__name__)


def resume(
    path: str | Path,
    *,
    quiet: bool = False,
    trust: Trust = (),
    recompute_metrics: bool = False,
    **custom: Any,
) -> Run:
    """Continue a run from its newest whole checkpoint to its end, bit for bit as if it had not stopped.

    What was given to `train` as objects (environment, networks, criterion) must be given again by the same names.
    Damaged or missing metrics are computed again where a checkpoint allows, with `recompute_metrics` from round 0.

    trust      modules that the run's environment id may import ("my_envs" for gym/my_envs:Maze-v0), or True for any
    """
    _prepare()
    folder = _in_one_process(path, lambda: RunFolder.open(path).locked())
    try:
        config = folder.config()
        check_trust(config, trust)
        job = make_job(config, **_same_custom(folder, custom))
        if folder.status().get("state") != "finished" or not _is_whole(folder, config):
            job.check_population()
            run_job(job, folder, resume=True, quiet=quiet, recompute_metrics=recompute_metrics)
    finally:
        folder.unlock()
    return Run(folder, lambda: job)


def load(path: str | Path, *, trust: Trust = (), **custom: Any) -> Run:
    """A run as it is on disk, finished or not.

    Configuration, metrics and scores need nothing else. The environment and the networks are built when a policy is
    first asked for; what was given to `train` as objects must then have been given here by the same names.

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
    """Refuse an environment id that would import a module, unless the user has named that module."""
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
    """Whether a finished run has all its metrics and its last checkpoint."""
    rounds = config.num_rounds
    check_config(folder)
    last = rounds in checkpoint.list_rounds(folder.checkpoints) and not checkpoint.fault(folder.checkpoints, rounds)
    return last and not runfiles.metrics_damage(folder.path, "finished", rounds)


def _in_one_process(path: str | Path, hold: Callable[[], RunFolder]) -> RunFolder:
    """The folder: process 0 alone makes and holds it, and if it cannot, none goes on."""
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
    wanted = set(folder.raw_config().get("custom", []))
    _check_custom_names(custom)
    missing = wanted - {k for k, v in custom.items() if v is not None}
    if missing:
        raise RunError(f"run: {folder.path} was trained with its own {', '.join(sorted(missing))}; give the same again")
    _check_env_fn(custom.get("env_fn"))
    return custom


def _check_custom_names(custom: dict[str, Any]) -> None:
    unknown = sorted(set(custom) - set(_CUSTOM))
    if unknown:
        raise TypeError(f"expected arguments among {', '.join(_CUSTOM)}, got {', '.join(unknown)}")


class Run:
    """A trained population: its configuration, metrics, scores and policies.

    `make` builds its environment and networks; it is called when they are first needed.
    """

    def __init__(self, folder: RunFolder, make: Callable[[], Job]) -> None:
        self._folder, self._make = folder, make

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, {self.status['state']}, members={len(self.members)})"

    @property
    def path(self) -> Path:
        return self._folder.path

    @cached_property
    def config(self) -> TrainConfig:
        return self._folder.config()

    @cached_property
    def _job(self) -> Job:
        return self._make()

    @property
    def members(self) -> list[Member]:
        return self.config.members()

    @property
    def status(self) -> dict[str, Any]:
        return self._folder.status()

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """One row per member and round; an error if rounds are missing or damaged."""
        damage = self._damage()
        if damage:
            raise RunError(
                f"run: {self.path}: {damage[0]}; `nextpolicy resume {shlex.quote(str(self.path))}` computes them again "
                "where a checkpoint allows, run.partial_metrics() gives the others"
            )
        return runfiles.read_metrics(self.path)

    def partial_metrics(self) -> pd.DataFrame:
        """The rows of all rounds whose metrics are whole, though others may be missing or damaged."""
        return runfiles.read_metrics(self.path, without=self._damage())

    def _damage(self) -> list[runfiles.Damage]:
        check_config(self._folder)
        return runfiles.metrics_damage(self.path, self.status["state"], self.config.num_rounds)

    def scores(self, allow_gaps: bool = False) -> pd.DataFrame:
        """Per member: mean return of the episodes that ended in the last 10 % of its steps.

        Missing or damaged metrics are an error; with `allow_gaps` only if they are of these last steps.
        """
        first = (1 - SCORE_SHARE) * self.config.num_rounds
        late = [d for d in self._damage() if d.last + 1 > first]
        frame = self.partial_metrics() if allow_gaps and not late else self.metrics
        if frame.empty:
            raise RunError(f"run: {self.path} has no metrics yet")
        frame = frame[frame["env_steps"] > first * self.config.batch_size]
        total = (frame["episode_return"] * frame["episodes"]).groupby(frame["member"]).sum(min_count=1)
        count = frame["episodes"].groupby(frame["member"]).sum()
        rows = [
            (i, m.variant, m.seed, total.get(i, np.nan) / max(count.get(i, 0), 1)) for i, m in enumerate(self.members)
        ]
        return pd.DataFrame(rows, columns=["member", "variant", "seed", "score"])

    def snapshot(self, policy: str = "target", member: int = 0) -> PolicySnapshot:
        """Parameters and statistics of a member's policy at the newest whole checkpoint."""
        if policy not in ("target", "behaviour"):
            raise ConfigError(f"policy: got {policy!r}, takes 'target' or 'behaviour'")
        member = whole("member", member, 0, len(self.members) - 1)
        agent = self._agents
        chosen = agent.target if policy == "target" else PolicySnapshot(agent.params["actor"], agent.obs_stats)
        return jax.tree.map(lambda x: x[member], chosen)

    def policy(self, policy: str = "target", member: int = 0) -> Policy:
        """`policy(obs, key=None)`: the environment's own observations in, its own actions out; see `Policy`."""
        job, spec = self._job, self._job.setup.spec
        networks = nets.build(dataclasses.replace(spec, obs_table=None), self.config.net, *self._modules)
        arrange = None if job.host is None else job.host.arrange
        return Policy(spec, networks, self.snapshot(policy, member), arrange)

    def evaluate(
        self,
        episodes: int = 100,
        policy: str = "target",
        greedy: bool = False,
        num_envs: int | None = None,
        seed: int = 0,
    ) -> pd.DataFrame:
        """Every member's return over a fixed number of episodes per environment.

        `episodes` in all, spread evenly over `num_envs` (default: one each), so that short ones count no more.
        """
        return pd.DataFrame(self.evaluations(range(len(self.members)), episodes, policy, greedy, num_envs, seed))

    def evaluations(
        self,
        members: Iterable[int],
        episodes: int = 100,
        policy: str = "target",
        greedy: bool = False,
        num_envs: int | None = None,
        seed: int = 0,
    ) -> Iterator[dict[str, Any]]:
        """The rows of `evaluate`, each computed when it is asked for, so that a caller may stop between members."""
        episodes = whole("episodes", episodes, 1, MOST_EPISODES)
        if not isinstance(greedy, bool | np.bool_):
            raise ConfigError(f"greedy: expected true or false, got {shown(greedy)}")
        environments = episodes if num_envs is None else whole("num_envs", num_envs, 1, MOST_EPISODES)
        seed = whole("seed", seed, 0, MOST_SEED)
        if episodes % environments:
            raise ConfigError(f"episodes: got {episodes}, takes a multiple of num_envs, {environments}")
        env, networks = self._job.setup.env, self._job.setup.networks
        spread = {"num_envs": environments, "episodes": episodes // environments}
        run = (
            self._host_evaluation(greedy, spread)
            if env is None
            else jax.jit(lambda snapshot, key: evaluate(env, networks, snapshot, key, greedy=greedy, **spread))
        )
        described = self.members
        for i in members:
            result = jax.device_get(run(self.snapshot(policy, i), jax.random.fold_in(jax.random.key(seed), i)))
            yield {
                "member": i,
                "variant": described[i].variant,
                "seed": described[i].seed,
                "policy": policy,
                "episodes": int(result.finished.sum()),
                "mean": float(result.returns.mean()),
                "std": float(result.returns.std()),
                "length": float(result.lengths.mean()),
                "unfinished": int((~result.finished).sum()),
            }

    def _host_evaluation(self, greedy: bool, spread: dict[str, int]) -> Callable[..., Any]:
        host = self._job.host
        assert host is not None
        act = host_actor(host, self._job.setup.networks, greedy)
        return lambda snapshot, key: evaluate_host(host, act, snapshot, key, **spread)

    @property
    def _modules(self) -> tuple[Any, Any]:
        return self._job.actor, self._job.critic

    @cached_property
    def _agents(self) -> Any:
        """The agents of all members, leaves [M, ...], from the newest whole checkpoint."""
        place = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        template = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), self._job.template())
        check_config(self._folder)
        folder = self._folder.checkpoints
        for _ in range(ATTEMPTS):
            said: list[str] = []
            there = checkpoint.list_rounds(folder)
            rounds = checkpoint.newest_whole(folder, self.config.num_rounds, said.append)
            if rounds != self.config.num_rounds and self.status["state"] == "finished":
                what = said[0].partition(";")[0] if said else f"checkpoint {self.config.num_rounds} is missing"
                command = f"`nextpolicy resume {shlex.quote(str(self.path))}`"
                raise RunError(
                    f"run: {self.path}: {what}; {command} makes it again from an earlier one, if there is one"
                )
            try:
                if rounds is not None:
                    agents = checkpoint.restore(folder, rounds, template).agent
                    print(*said, sep="\n", end="\n" * bool(said), file=sys.stderr)
                    return agents
            except Exception as error:  # Orbax raises many kinds
                if checkpoint.list_rounds(folder) == there:
                    raise RunError(str(error).strip().splitlines()[0]) from error
            if checkpoint.list_rounds(folder) == there:
                break  # else training has replaced it meanwhile: take the newest there is now
        because = f": {said[0].splitlines()[0]}" if said else ""
        raise RunError(f"run: {self.path} has no whole checkpoint yet; resume it first{because}")
