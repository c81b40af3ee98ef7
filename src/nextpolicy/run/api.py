"""What a user of the library calls: train, resume, load, and the run they give back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from nextpolicy import presets
from nextpolicy.config import ConfigError, Member, TrainConfig
from nextpolicy.nets import build as nets
from nextpolicy.run import checkpoint, metrics
from nextpolicy.run.folder import RunError, RunFolder, fresh_path
from nextpolicy.run.program_cache import enable_cache
from nextpolicy.run.training import Job, agreed, make_job, run_job
from nextpolicy.train.evaluate import evaluate
from nextpolicy.train.host_evaluate import actor as host_actor
from nextpolicy.train.host_evaluate import evaluate_host
from nextpolicy.types import Array, PolicySnapshot

_CUSTOM = ("env", "env_fn", "env_params", "actor", "critic", "criterion", "gate_params")
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
    if (env is None) == (env_fn is None):
        raise ConfigError("env: got both it and env_fn, or neither; takes one of them")
    _check_env_fn(env_fn)
    if env_params is not None and (env is None or isinstance(env, str)):
        raise ConfigError("env_params: got them without an environment object; env_options are for an id or env_fn")
    name = env if isinstance(env, str) else f"custom/{_label(env if env_fn is None else env_fn)}"
    config = presets.build(name, preset=preset, algo=algo, **fields)
    custom = {"env": None if isinstance(env, str) else env, "env_params": env_params, "actor": actor, "critic": critic}
    custom |= {"criterion": criterion, "gate_params": gate_params, "env_fn": env_fn}
    enable_cache()
    job = make_job(config, **custom)
    given = sorted(k for k, v in custom.items() if v is not None)
    if out is None and jax.process_count() > 1:
        raise ConfigError("out: got none for a run over several processes, takes a folder that all of them see")
    path = Path(out) if out is not None else fresh_path(config)
    folder = _in_one_process(path, lambda: RunFolder.create(path, config, {"custom": given}))
    try:
        run_job(job, folder, quiet=quiet)
    finally:
        folder.unlock()
    return Run(folder, job)


def _check_env_fn(env_fn: Any) -> None:
    if env_fn is not None and not callable(env_fn):
        got = repr(env_fn) if isinstance(env_fn, str) else f"an object of type {type(env_fn).__name__}"
        raise ConfigError(f"env_fn: got {got}, takes a callable that makes one Gymnasium environment")


def _label(thing: Any) -> str:
    return getattr(thing, "__name__", type(thing).__name__)


def resume(path: str | Path, *, quiet: bool = False, **custom: Any) -> Run:
    """Continue a run from its newest whole checkpoint to its end, bit for bit as if it had not stopped.

    What was given to `train` as objects (environment, networks, criterion) must be given again by the same names.
    """
    enable_cache()
    folder = _in_one_process(path, lambda: RunFolder.open(path).locked())
    try:
        job = make_job(folder.config(), **_same_custom(folder, custom))
        if folder.status().get("state") != "finished":
            run_job(job, folder, resume=True, quiet=quiet)
    finally:
        folder.unlock()
    return Run(folder, job)


def load(path: str | Path, **custom: Any) -> Run:
    """A run as it is on disk, finished or not."""
    folder = RunFolder.open(path)
    return Run(folder, make_job(folder.config(), **_same_custom(folder, custom)))


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
    unknown = set(custom) - set(_CUSTOM)
    if unknown:
        raise TypeError(f"unexpected arguments {sorted(unknown)}, takes {', '.join(_CUSTOM)}")
    missing = wanted - {k for k, v in custom.items() if v is not None}
    if missing:
        raise RunError(f"run: {folder.path} was trained with its own {', '.join(sorted(missing))}; give the same again")
    _check_env_fn(custom.get("env_fn"))
    return custom


class Run:
    """A trained population: its configuration, metrics, scores and policies."""

    def __init__(self, folder: RunFolder, job: Job) -> None:
        self._folder, self._job = folder, job

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, {self.status['state']}, members={len(self.members)})"

    @property
    def path(self) -> Path:
        return self._folder.path

    @property
    def config(self) -> TrainConfig:
        return self._job.config

    @property
    def members(self) -> list[Member]:
        return self.config.members()

    @property
    def status(self) -> dict[str, Any]:
        return self._folder.status()

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """One row per member and round."""
        return metrics.read(self._folder.metrics)

    def scores(self) -> pd.DataFrame:
        """Per member: mean return of the episodes that ended in the last 10 % of its steps."""
        frame = self.metrics
        late = frame[frame["env_steps"] > (1 - SCORE_SHARE) * self.config.num_rounds * self.config.batch_size]
        total = (late["episode_return"] * late["episodes"]).groupby(late["member"]).sum(min_count=1)
        count = late["episodes"].groupby(late["member"]).sum()
        rows = [
            (i, m.variant, m.seed, total.get(i, np.nan) / max(count.get(i, 0), 1)) for i, m in enumerate(self.members)
        ]
        return pd.DataFrame(rows, columns=["member", "variant", "seed", "score"])

    def snapshot(self, policy: str = "target", member: int = 0) -> PolicySnapshot:
        """Parameters and statistics of a member's policy at the newest whole checkpoint."""
        if policy not in ("target", "behaviour"):
            raise ConfigError(f"policy: got {policy!r}, takes 'target' or 'behaviour'")
        if not 0 <= member < len(self.members):
            raise ConfigError(f"member: got {member}, takes a number from 0 to {len(self.members) - 1}")
        agent = self._agents
        chosen = agent.target if policy == "target" else PolicySnapshot(agent.params["actor"], agent.obs_stats)
        return jax.tree.map(lambda x: x[member], chosen)

    def policy(self, policy: str = "target", member: int = 0) -> Callable[..., Array]:
        """`act(obs, key=None)`: an action for a raw observation or a batch of them, greedy without a key."""
        snapshot = self.snapshot(policy, member)
        spec = self._job.setup.spec
        images = nets.build(dataclasses.replace(spec, obs_table=None), self.config.net, *self._modules)
        read = jax.jit(lambda obs: images.policy(snapshot)(obs))
        table = None if spec.obs_table is None else jnp.asarray(spec.obs_table)

        def act(obs: Any, key: Array | None = None) -> Array:
            obs = jnp.asarray(obs)
            if table is not None and jnp.issubdtype(obs.dtype, jnp.integer) and obs.ndim < 3:
                obs = table[obs]
            single = obs.ndim == len(spec.obs_shape)
            if obs.shape[obs.ndim - len(spec.obs_shape) :] != spec.obs_shape:
                raise ValueError(f"obs: got shape {obs.shape}, takes {spec.obs_shape} or a batch of it")
            dist = read(obs[None] if single else obs)
            action = dist.mode() if key is None else dist.sample(key)
            return action[0] if single else action

        return act

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
        environments = episodes if num_envs is None else num_envs
        for name, number in (("episodes", episodes), ("num_envs", environments)):
            if number < 1:
                raise ConfigError(f"{name}: got {number}, takes a whole number of at least 1")
        if episodes % environments:
            raise ConfigError(f"episodes: got {episodes}, takes a multiple of num_envs, {environments}")
        env, networks = self._job.setup.env, self._job.setup.networks
        spread = {"num_envs": environments, "episodes": episodes // environments}
        run = (
            self._host_evaluation(greedy, spread)
            if env is None
            else jax.jit(lambda snapshot, key: evaluate(env, networks, snapshot, key, greedy=greedy, **spread))
        )
        rows = []
        for i, member in enumerate(self.members):
            result = jax.device_get(run(self.snapshot(policy, i), jax.random.fold_in(jax.random.key(seed), i)))
            rows.append(
                {
                    "member": i,
                    "variant": member.variant,
                    "seed": member.seed,
                    "policy": policy,
                    "episodes": int(result.finished.sum()),
                    "mean": float(result.returns.mean()),
                    "std": float(result.returns.std()),
                    "length": float(result.lengths.mean()),
                    "unfinished": int((~result.finished).sum()),
                }
            )
        return pd.DataFrame(rows)

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
        said: list[str] = []
        rounds = checkpoint.newest_whole(self._folder.checkpoints, self.config.num_rounds, said.append)
        if rounds is None:
            raise RunError(
                f"run: {self.path} has no whole checkpoint yet; resume it first{': ' + said[0] if said else ''}"
            )
        template = self._job.template()
        place = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        template = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), template)
        return checkpoint.restore(self._folder.checkpoints, rounds, template).agent
