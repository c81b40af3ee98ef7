"""A run may start from another: parameters and statistics are taken over, all else is new."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
import pytest

import nextpolicy
from nextpolicy.config import ConfigError
from nextpolicy.run import training, warm_start
from nextpolicy.run.folder import RunError, RunFolder
from nextpolicy.run.job import make_job

from .helpers import SMALL, assert_same_run

pytestmark = [
    pytest.mark.allow_rank_promotion,
    pytest.mark.allow_key_reuse,
    pytest.mark.quick_compilation,
    pytest.mark.usefixtures("programs_kept"),
]
FIELDS: dict[str, Any] = {**SMALL, "env": "gymnax/CartPole-v1", "quiet": True, "total_env_steps": 32 * 3}
FIELDS |= {"algo": ("sv-dynamic",), "normalise_obs": True, "normalise_reward": True}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> nextpolicy.Run:
    """Two members."""
    return nextpolicy.train(**FIELDS, seeds=2, out=tmp_path_factory.mktemp("runs") / "source")


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> nextpolicy.Run:
    return nextpolicy.train(**FIELDS, seeds=(7,), out=tmp_path_factory.mktemp("runs") / "single")


def first_state(tmp: Path, source: nextpolicy.Run, **fields: Any) -> Any:
    config = source.config.replace(**{"init_from": str(source.path), "seeds": (5, 6), **fields})
    job = make_job(config)
    program = job.program()
    return program.init(job.seeds), warm_start.first_state(job, program, RunFolder(tmp))


def assert_equal(a: Any, b: Any) -> None:
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(x, y)


def test_parameters_and_statistics_are_taken_over_and_nothing_else(source: nextpolicy.Run, tmp_path: Path) -> None:
    fresh, state = first_state(tmp_path, source)
    agent, old = state.agent, source._agents
    assert_equal(agent.learner.params, old.learner.params)
    assert_equal(agent.learner.obs_stats, old.learner.obs_stats)
    assert_equal(agent.learner.reward_stats, old.learner.reward_stats)
    assert_equal((agent.target.params, agent.target.obs_stats), (old.learner.params["actor"], old.learner.obs_stats))
    assert_equal(agent.learner.opt_state, fresh.agent.learner.opt_state)
    assert_equal((agent.round, agent.rounds_held), (fresh.agent.round, fresh.agent.rounds_held))
    assert_equal(state.workers, fresh.workers)
    assert all(np.any(x) for x in jax.tree.leaves(old.learner.obs_stats))


def test_one_member_serves_all(single: nextpolicy.Run, tmp_path: Path) -> None:
    _, state = first_state(tmp_path, single)
    for i in range(2):
        mine = jax.tree.map(lambda x, i=i: x[i : i + 1], state.agent.learner.params)
        assert_equal(mine, single._agents.learner.params)


def test_a_replay_buffer_is_neither_taken_over_nor_stored(tmp_path: Path) -> None:
    fields = {"env": "gymnax/Pendulum-v1", "algo": "sac", "num_envs": 2, "rollout_length": 4, "hidden": (8,)}
    fields |= {"minibatch_size": 4, "replay_size": 5000, "total_env_steps": 16, "warmup_steps": 0}
    other = nextpolicy.train(**fields, out=tmp_path / "other", quiet=True)
    assert int(other._agents.learner.replay.size[0]) == 16
    fresh, state = first_state(tmp_path, other, replay_size=80)
    learner, old = state.agent.learner, other._agents.learner
    assert_equal(learner.params, jax.tree.map(lambda x: np.concatenate([x, x]), old.params))
    for name in ("critic_average", "log_temperature"):
        mine = getattr(learner.trained, name)
        assert_equal(mine, jax.tree.map(lambda x: np.concatenate([x, x]), getattr(old.trained, name)))
    assert_equal(learner.trained.opt_state, fresh.agent.learner.trained.opt_state)
    assert (learner.replay.size.tolist(), learner.replay.data.obs.shape) == ([0, 0], (2, 80, 3))
    assert (tmp_path / "start.npz").stat().st_size < 50_000
    job = make_job(other.config.replace(init_from=str(other.path), seeds=(5, 6), replay_size=80))
    assert_equal(warm_start._learners(job, tmp_path / "start.npz").params, learner.params)


def test_a_run_that_is_killed_before_its_first_checkpoint_starts_from_there_again(
    single: nextpolicy.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def kill(*arguments: Any, **named: Any) -> None:
        raise Killed

    fields = {**FIELDS, "seeds": 1, "init_from": single}  # a run, a Path or text
    whole = nextpolicy.train(**fields, out=tmp_path / "whole")
    cold = nextpolicy.train(**{**fields, "init_from": ""}, out=tmp_path / "cold")
    assert not np.array_equal(whole.metrics["entropy"], cold.metrics["entropy"])
    with monkeypatch.context() as patch:
        patch.setattr(training, "run_block", kill)
        with pytest.raises(Killed):
            nextpolicy.train(**{**fields, "init_from": single.path}, out=tmp_path / "cut")
    assert_same_run(nextpolicy.resume(tmp_path / "cut", quiet=True), whole)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"init_from": "nowhere"}, "init_from: run: expected a run folder, got .*nowhere without config.json"),
        ({"seeds": 3}, "init_from: expected a run with 1 or 3 members, got .*source with 2"),
        ({"hidden": (16,)}, "init_from: expected networks and normalisation like this run's, got others in .*source"),
        ({"normalise_obs": False}, "init_from: expected networks and normalisation like this run's"),
        ({"env": "gymnax/Acrobot-v1"}, "init_from: expected networks and normalisation like this run's"),
    ],
)
def test_what_cannot_be_taken_over_is_one_line_before_anything_is_written(
    source: nextpolicy.Run, tmp_path: Path, fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(RunError, match=words) as refusal:
        nextpolicy.train(**{**FIELDS, "seeds": 2, "init_from": str(source.path), **fields}, out=tmp_path / "run")
    assert len(str(refusal.value).splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_objects_that_are_not_stored_are_refused(source: nextpolicy.Run, tmp_path: Path) -> None:
    copy = shutil.copytree(source.path, tmp_path / "own")
    text = (copy / "config.json").read_text()
    (copy / "config.json").write_text(text.replace('"custom": []', '"custom": ["actor"]'))
    assert RunFolder.open(copy).raw_config()["custom"] == ["actor"]
    with pytest.raises(RunError, match=r"init_from: .*own was trained with objects passed from Python"):
        nextpolicy.train(**{**FIELDS, "seeds": 2, "init_from": str(copy)}, out=tmp_path / "run")


def test_the_start_is_stored_so_that_the_other_run_may_change(single: nextpolicy.Run, tmp_path: Path) -> None:
    source = Path(shutil.copytree(single.path, tmp_path / "source"))
    run = nextpolicy.train(**{**FIELDS, "seeds": 1, "init_from": str(source)}, out=tmp_path / "run")
    before = run.metrics
    shutil.rmtree(source)
    first, *_ = sorted((run.path / "metrics").iterdir())
    first.unlink()
    again = nextpolicy.resume(run.path, quiet=True, recompute_metrics=True)
    drop = ["steps_per_second"]
    pd.testing.assert_frame_equal(again.metrics.drop(columns=drop), before.drop(columns=drop))
    assert again.status["state"] == "finished"
    (run.path / "start.npz").write_bytes(b"PK damaged")
    first.unlink()
    with pytest.raises(RunError, match=r"start.npz cannot be read .*; train a new run"):
        nextpolicy.resume(run.path, quiet=True, recompute_metrics=True)
    assert nextpolicy.load(run.path).status["state"] == "finished", "the run itself is still whole"


def test_there_is_no_warm_up_whose_data_would_mix_with_the_statistics(single: nextpolicy.Run, tmp_path: Path) -> None:
    assert single.config.replace(warmup_steps=64).warm_up_rounds == 8
    assert single.config.replace(warmup_steps=64, init_from="x").warm_up_rounds == 0


def test_an_algorithm_without_adopt_and_a_module_that_nobody_named(
    single: nextpolicy.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = {**FIELDS, "seeds": 1, "init_from": str(single.path)}
    with monkeypatch.context() as patch:
        patch.delattr("nextpolicy.algos.ppo.PPO.adopt")
        with pytest.raises(ConfigError, match="init_from: expected an algorithm with a method `adopt`, got ppo"):
            nextpolicy.train(**fields, out=tmp_path / "run")
    monkeypatch.setattr(warm_start, "module_of", lambda env: {single.config.environment.env: "evil"}.get(env))
    with pytest.raises(RunError, match=r"init_from: the environment of .* imports evil, which runs its code"):
        nextpolicy.train(**{**fields, "env": "gymnax/Acrobot-v1"}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
