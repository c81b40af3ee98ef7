"""Start a run from the parameters and statistics of another run (`init_from`).

They are stored in the new run's folder (`start.npz`), so that it can be repeated after the other run has changed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nextpolicy.config import ConfigError, TrainConfig
from nextpolicy.envs.registry import module_of
from nextpolicy.loop.population import Program
from nextpolicy.loop.replay import without_replay
from nextpolicy.loop.state import MemberState
from nextpolicy.run import arrays
from nextpolicy.run.folder import RunError, RunFolder
from nextpolicy.run.job import Job, make_job
from nextpolicy.run.run import Run

STORED = "start.npz"  # the adopted learners: arrays "0", "1", ..., each [M, ...]


def first_state(job: Job, program: Program, folder: RunFolder) -> MemberState:
    """The state before the first round."""
    state = program.init(job.seeds)
    return _adopt(job, state, _learners(job, folder.path / STORED)) if job.config.run.init_from else state


def named(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields with the path of the other run as text; it may be given as a `Path` or a `Run`."""
    given = fields.get("init_from")
    if isinstance(given, Run | Path):
        return {**fields, "init_from": str(given.path if isinstance(given, Run) else given)}
    return fields


def located(config: TrainConfig) -> TrainConfig:
    """The configuration with the absolute path of the other run, if there is one."""
    path = config.run.init_from
    return config.replace(init_from=str(Path(path).absolute())) if path else config


def check(job: Job) -> None:
    """Raise if the run named by `init_from` cannot be used."""
    if not job.config.run.init_from:
        return
    if jax.process_count() > 1:
        raise ConfigError("init_from: expected a run in one process, got several processes")
    if not hasattr(job.setup.algorithm, "adopt"):
        raise ConfigError(f"init_from: expected an algorithm with a method `adopt`, got {job.setup.algorithm.name}")
    _of_other_run(job)


def _adopt(job: Job, state: MemberState, learners: Any) -> MemberState:
    """`state` with the parameters and statistics of `learners`. Optimiser, counters and environments are new."""
    algorithm, agent = job.setup.algorithm, state.agent
    learner = jax.vmap(algorithm.adopt)(agent.learner, learners)
    # Copied, because learner and target share arrays, and each round donates both.
    put = lambda new, old: jax.device_put(jnp.copy(new), old.sharding)  # noqa: E731
    learner, target = (
        jax.tree.map(put, new, old)
        for new, old in ((learner, agent.learner), (jax.vmap(algorithm.behaviour)(learner), agent.target))
    )
    return state._replace(agent=agent._replace(learner=learner, target=target))


def _learners(job: Job, stored: Path) -> Any:
    """The learners to start from, leaves [M, ...]: those stored in this run, or else the other run's, now stored."""
    if stored.is_file():
        return arrays.load(stored, without_replay(job.template().agent.learner))
    learners = _of_other_run(job)
    arrays.save(stored, learners)
    return learners


def _of_other_run(job: Job) -> Any:
    """The other run's learners, leaves [M, ...]: one for each member, or the only one for all."""
    path, own = job.config.run.init_from, len(job.seeds)
    try:
        agents, members = _agents(job, path)
    except RunError as error:
        raise RunError(f"init_from: {error}") from None
    if members not in (1, own):
        wanted = "1 member" if own == 1 else f"1 or {own} members"
        raise RunError(f"init_from: expected a run with {wanted}, got {path} with {members}")
    wanted_learner, found = (without_replay(x) for x in (job.template().agent.learner, agents.learner))
    own_shapes, others = (arrays.shapes(arrays.of_one(x)) for x in (wanted_learner, found))
    if own_shapes != others:
        raise RunError(f"init_from: expected networks and normalisation like this run's, got others in {path}")
    return jax.tree.map(lambda x: jnp.asarray(np.asarray(x)[np.arange(own) % members]), found)


def _agents(job: Job, path: str) -> tuple[Any, int]:
    """The agents of the other run, and their number."""
    folder = RunFolder.open(path)
    config = folder.config()
    module = module_of(config.environment.env)
    if folder.raw_config().get("custom"):
        raise RunError(f"{path} was trained with objects passed from Python; choose a run without")
    if module is not None and module != module_of(job.config.environment.env):
        raise RunError(f"the environment of {path} imports {module}, which runs its code; choose another run")
    run = Run(folder, lambda: make_job(config))
    return run._agents, len(run.members)
