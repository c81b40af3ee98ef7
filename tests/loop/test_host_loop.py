"""The host loop: what it collects, what it keeps from the learner, what it saves, and how it ends when things fail."""

from __future__ import annotations

import dataclasses
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from tests.compiling import QUICK

import nextpolicy
from nextpolicy.cli.main import main as cli
from nextpolicy.config import FIELDS, ConfigError
from nextpolicy.core import running_stats
from nextpolicy.envs.base import Box, EnvSpec, HostEnvError
from nextpolicy.loop import host_loop
from nextpolicy.loop.collect import random_actions
from nextpolicy.loop.host_collect import Log, Table, padded
from nextpolicy.loop.host_loop import HostLoop
from nextpolicy.run import checkpoint
from nextpolicy.run.folder import RunFolder
from nextpolicy.run.job import make_job
from nextpolicy.run.training import run_job

from .helpers import TINY, assert_close, assert_same, fetch, member, tiny

sys.path.insert(0, str(Path(__file__).parent.parent / "envs"))
from host_toys import Bandit, Counter, Spaces

# The same for as many tests as possible: programs that are equal are compiled once.
BASE: dict[str, Any] = {"normalise_obs": True, "normalise_reward": True, "total_env_steps": 32 * 30}
# The key checker loses track of keys that are stacked over members; the device program's own tests check the keys.
pytestmark = [pytest.mark.allow_key_reuse, pytest.mark.quick_compilation]
MODES = ["same-step", "next-step"]
# Fields that shape no program: members' numbers, the environment (its spaces do), and what happens between blocks.
DATA = {"env", "env_options", "warmup_steps", "total_env_steps", "algo", "seeds", "sweep", "population", "devices"}
DATA |= {"block_rounds", "tensorboard", "wandb", "keep_checkpoints"} | {n for n, f in FIELDS.items() if f.traced}


@pytest.fixture(scope="module", autouse=True)
def _compiled_once() -> Iterator[None]:
    """Loops whose programs are equal share them, in whatever way they are started."""
    real, made = host_loop.compile_functions, {}

    def once(setup: Any, env: Any) -> Any:
        config, spec = setup.config, setup.spec
        static = tuple((name, config.value(name)) for name in config.fields() if name not in DATA)
        key = (static, config.num_rounds, spec.obs_shape, str(spec.obs_dtype), str(spec.action), env.resets_in_step)
        if key not in made:
            with pytest.MonkeyPatch.context() as quick:
                quick.setattr(jax, "jit", partial(jax.jit, compiler_options=QUICK))
                made[key] = real(setup, env)
        return made[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_loop, "compile_functions", once)
        yield


def job_of(env_fn: Any, autoreset: str = "same-step", options: dict[str, Any] | None = None, **fields: Any) -> Any:
    config = tiny(env="custom/toy", env_options={"autoreset": autoreset, **(options or {})}, **{**BASE, **fields})
    return make_job(config, env_fn=env_fn)


def loop_of(job: Any) -> HostLoop:
    return HostLoop(job.setup, job.hypers, job.env, job.seeds)


def train(job: Any, blocks: list[int], loop: HostLoop | None = None) -> tuple[Any, dict[str, np.ndarray]]:
    """State and metrics [M, rounds] after blocks of these lengths."""
    loop = loop or loop_of(job)
    state, rows = loop.init(job.seeds), []
    try:
        for rounds in blocks:
            state, metrics, _ = loop.block(state, rounds)
            rows.append(metrics)
    finally:
        loop.close()
    return fetch(state.agent), jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *rows)


def collected(job: Any) -> tuple[Any, Any, np.ndarray]:
    """Buffer, log and true successors of the first round."""
    loop = loop_of(job)
    agent = member(loop.init(job.seeds).agent, 0)
    worker = loop.workers[0]
    worker.start(0)
    _, behaviour, noise = loop.compiled.begin(agent, explore=False)
    buffer, log = worker.collect(loop.compiled, behaviour, noise, loop._room(behaviour, worker), False)
    loop.close()
    next_obs = loop.compiled.successors(buffer, *padded(log, worker)) if job.env.resets_in_step else buffer.obs[1:]
    return buffer, log, np.asarray(next_obs)


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_successors_are_true_when_the_reset_is_within_the_step(end):
    buffer, log, next_obs = collected(job_of(partial(Counter, length=3, end=end)))
    counts = np.arange(9) % 3
    np.testing.assert_array_equal(np.asarray(buffer.obs)[..., 0], np.repeat(counts[:, None], 4, 1))
    np.testing.assert_array_equal(next_obs[..., 0], np.repeat((counts[:8] + 1)[:, None], 4, 1))
    over = np.repeat((counts[:8] == 2)[:, None], 4, 1)
    np.testing.assert_array_equal(getattr(log.table, end), over)
    assert not getattr(log.table, {"terminated": "truncated", "truncated": "terminated"}[end]).any()
    assert log.table.valid.all()
    np.testing.assert_array_equal(log.ended, [3 * 8, 3 * 8, 8])  # two episodes of three steps in each of four


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_successors_are_true_when_the_reset_takes_a_step(end):
    buffer, log, next_obs = collected(job_of(partial(Counter, length=3, end=end), "next-step"))
    counts = np.arange(9) % 4  # 0 1 2 3 and then the artefact from 3 to 0
    np.testing.assert_array_equal(np.asarray(buffer.obs)[..., 0], np.repeat(counts[:, None], 4, 1))
    np.testing.assert_array_equal(log.table.valid, np.repeat((counts[:8] != 3)[:, None], 4, 1))
    np.testing.assert_array_equal(getattr(log.table, end), np.repeat((counts[:8] == 2)[:, None], 4, 1))
    np.testing.assert_array_equal(
        next_obs[log.table.valid][:, 0], np.asarray(buffer.obs)[:-1][log.table.valid][:, 0] + 1
    )
    np.testing.assert_array_equal(log.ended, [3 * 8, 3 * 8, 8])


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_discounted_returns_follow_their_recursion(end):
    _, log, _ = collected(job_of(partial(Counter, length=3, end=end), gamma=0.5))
    np.testing.assert_allclose(log.table.discounted_return[:, 0], [1, 1.5, 1.75, 1, 1.5, 1.75, 1, 1.5])
    _, log, _ = collected(job_of(partial(Counter, length=3, end=end), "next-step", gamma=0.5))
    np.testing.assert_allclose(log.table.discounted_return[:, 0], [1, 1.5, 1.75, 0, 1, 1.5, 1.75, 0])


def test_a_lost_life_ends_what_is_learned_from_and_not_the_score():
    """Of a game of six steps with a life lost after three; rewards are clipped to a tenth of the score."""

    def lives(step: Any) -> Any:
        lost = step.obs[:, 0] == 3
        return step._replace(terminated=step.terminated | lost, score=10 * step.score)

    job = job_of(partial(Counter, length=6), "next-step", gamma=0.5)
    _, log, _ = collected(dataclasses.replace(job, env=Tampered(job.env, lives)))
    np.testing.assert_allclose(log.table.discounted_return[:, 0], [1, 1.5, 1.75, 1, 1.5, 1.75, 0, 1])
    np.testing.assert_array_equal(log.ended, [4 * 60, 4 * 6, 4])


def test_a_round_goes_on_where_the_last_one_ended():
    job = job_of(partial(Counter, length=100))
    loop = loop_of(job)
    agent, worker = member(loop.init(job.seeds).agent, 0), loop.workers[0]
    worker.start(0)
    key = jax.random.key_data(agent.key)
    keys, behaviour, noise = loop.compiled.begin(agent, explore=False)
    assert not np.array_equal(jax.random.key_data(keys.key_rest), key), "the next round would draw the same"
    buffer = loop._room(behaviour, worker)
    for first in (0, 8):
        buffer, _ = worker.collect(loop.compiled, behaviour, noise, buffer, False)
        np.testing.assert_array_equal(np.asarray(buffer.obs)[:, :, 0], first + np.arange(9)[:, None] + np.zeros((1, 4)))
    assert set(np.unique(buffer.action)) == {0, 1}, "actions are not sampled"
    loop.close()


def test_true_successors_are_padded_to_few_lengths_and_padding_lies_outside():
    worker = loop_of(job_of(Counter)).workers[0]
    log = Log(Table.empty(8, 4), [], np.zeros(3))
    log.finals.append((2, np.asarray([1, 3], np.int32), np.full((2, 1), 5.0)))
    log.finals.append((6, np.asarray([0], np.int32), np.full((1, 1), 7.0)))
    t, environment, final_obs = padded(log, worker)
    np.testing.assert_array_equal(t, [2, 2, 6, 8])
    np.testing.assert_array_equal(environment[:3], [1, 3, 0])
    np.testing.assert_array_equal(final_obs[:3, 0], [5, 5, 7])


@pytest.mark.parametrize(("groups", "sizes"), [(1, [4]), (2, [2, 2]), (3, [2, 2]), (8, [1, 1, 1, 1])])
def test_groups_are_equal_parts(groups, sizes):
    worker = loop_of(job_of(Counter, options={"groups": groups})).workers[0]
    worker.start(0)
    assert [pool.num_envs for pool in worker.pools] == sizes
    worker.close()


def test_actions_have_the_shape_the_environment_wants():
    shaped = spaces.Box(-1, 1, (2, 2), np.float32)
    job = job_of(partial(Spaces, Counter.observation_space, shaped))
    loop = loop_of(job)
    agent, worker = member(loop.init(job.seeds).agent, 0), loop.workers[0]
    worker.start(0)
    _, behaviour, noise = loop.compiled.begin(agent, explore=False)
    buffer, _ = worker.collect(loop.compiled, behaviour, noise, loop._room(behaviour, worker), False)
    got = np.stack([np.stack(env.got) for pool in worker.pools for env in pool._vector.envs], 1)
    loop.close()
    assert buffer.action.shape == (8, 4, 4)
    np.testing.assert_allclose(got, np.clip(buffer.action, -1, 1).reshape(8, 4, 2, 2))


class Tampered:
    """A host environment whose steps go through `change` on their way out."""

    def __init__(self, env: Any, change: Any) -> None:
        self.env, self.change = env, change

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def start(self, num_envs: int, render: bool = False) -> Any:
        pool = self.env.start(num_envs, render)
        recv = pool.recv
        pool.recv = lambda: self.change(recv())
        return pool


def test_an_artefact_never_reaches_a_loss_a_statistic_or_a_score():
    def poison(step: Any) -> Any:
        bad = np.where(step.valid, step.reward, np.nan).astype(np.float32)
        return step._replace(reward=bad, score=np.where(step.valid, step.score, 1e6))

    job = job_of(partial(Counter, length=3), "next-step", algo=("ppo", "sv-dynamic"))
    clean, metrics = train(job, [3])
    loop = HostLoop(job.setup, job.hypers, Tampered(job.env, poison), job.seeds)
    poisoned, poisoned_metrics = train(job, [3], loop)
    assert_same(clean, poisoned)
    assert_same(metrics, poisoned_metrics)
    assert metrics["finite"].all()
    np.testing.assert_array_equal(metrics["episode_return"], 3.0)
    # The control: were such steps taken for real ones, everything would be lost.
    believed = Tampered(job.env, lambda step: poison(step)._replace(valid=np.ones_like(step.valid)))
    assert not train(job, [3], HostLoop(job.setup, job.hypers, believed, job.seeds))[1]["finite"].any()


def test_what_lies_in_an_artefact_as_observation_and_action_does_not_matter():
    """The same rollout with other bytes in its artefacts gives the same agent."""
    job = job_of(partial(Counter, length=3), "next-step")
    buffer, log, _ = collected(job)
    loop = loop_of(job)
    artefact = jnp.asarray(~log.table.valid)

    def learn(buffer: Any) -> Any:
        agent = member(loop.init(job.seeds).agent, 0)
        keys, _, _ = loop.compiled.begin(agent, explore=False)
        hypers = jax.tree.map(lambda x: jnp.asarray(x[0]), job.hypers)
        next_obs = buffer.obs[1:].at[:].set(successors)
        return loop.compiled.learn(hypers, agent, buffer, next_obs, log.table, log.ended.astype(np.float32), keys)

    successors = jnp.asarray(buffer.obs[1:])
    other = jnp.where(artefact[..., None], jnp.nan, buffer.obs[:-1])
    changed = buffer._replace(
        obs=buffer.obs.at[:-1].set(other), action=jnp.where(artefact, 1 - buffer.action, buffer.action)
    )
    assert_same(fetch(learn(buffer)), fetch(learn(changed)))


@pytest.mark.parametrize("autoreset", MODES)
def test_a_time_limit_bootstraps_and_a_death_does_not(autoreset):
    fields = {"gamma": 0.8, "lam": 0.9, "learning_rate": 1e-2, "learning_rate_final": 1e-2, "value_clip": float("inf")}

    def value_at_start(end: str) -> float:
        env_fn = partial(Counter, length=2, end=end, wrap=True)
        job = job_of(env_fn, autoreset, algo="ppo", max_grad_norm=5.0, **fields)
        agent = member(train(job, [120])[0], 0)
        value = job.setup.networks.value(agent.learner.params, agent.learner.obs_stats)(jnp.zeros((1, 1)))[0]
        return float(
            value * jnp.sqrt(running_stats.variance(agent.learner.reward_stats))
        )  # in the environment's own units

    assert value_at_start("truncated") == pytest.approx(1 / (1 - 0.8), rel=0.1)
    assert value_at_start("terminated") == pytest.approx(1 + 0.8, rel=0.1)


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_the_true_successor_of_a_reset_within_the_step_is_bootstrapped_from(end):
    """What an episode ended in, not what the next one starts from, is learned from, and only after a time limit."""

    def elsewhere(step: Any) -> Any:
        return step if step.final_obs is None else step._replace(final_obs=step.final_obs + 5)

    job = job_of(partial(Counter, length=3, end=end))
    moved = HostLoop(job.setup, job.hypers, Tampered(job.env, elsewhere), job.seeds)
    here, there = (jax.tree.leaves(train(job, [1], loop)[0].learner.params) for loop in (None, moved))
    same = all(np.array_equal(a, b) for a, b in zip(here, there, strict=True))
    assert same == (end == "terminated")


def test_how_rounds_are_cut_into_blocks_changes_nothing():
    job = job_of(partial(Counter, length=5), algo=("ppo", "sv-dynamic"))
    (whole, metrics), (parts, part_metrics) = train(job, [4]), train(job, [1, 3])
    assert_same(whole, parts)
    assert_same(metrics, part_metrics)


def test_a_member_alone_is_the_same_as_in_a_population():
    together, metrics = train(job_of(partial(Counter, length=5), algo=("ppo", "sv-dynamic"), seeds=(1, 2)), [3])
    alone, alone_metrics = train(job_of(partial(Counter, length=5), algo="sv-dynamic", seeds=(2, 7)), [3])
    assert_same(member(together, 3), member(alone, 0))
    assert_same(member(metrics, 3), member(alone_metrics, 0))


def test_groups_are_the_same_environments_stepped_in_turn():
    results = [train(job_of(partial(Counter, length=5), options={"groups": g}), [3])[0] for g in (1, 2, 4)]
    assert_close(results[0], results[1], rtol=2e-4, atol=1e-6)
    assert_close(results[0], results[2], rtol=2e-4, atol=1e-6)


class Told:
    """A host environment that says what its groups, a, b, ..., are asked to do."""

    def __init__(self, env: Any) -> None:
        self.env, self.started, self.order = env, 0, []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def start(self, num_envs: int, render: bool = False) -> Any:
        pool, name = self.env.start(num_envs, render), "abcd"[self.started]
        self.started += 1
        send, recv = pool.send, pool.recv
        pool.send = lambda action: (self.order.append(f"send {name}"), send(action))[1]
        pool.recv = lambda: (self.order.append(f"recv {name}"), recv())[1]
        return pool


@pytest.mark.parametrize(
    ("groups", "order"),
    [
        (1, "send a, recv a, send a, recv a, send a"),
        (2, "send a, send b, recv a, send a, recv b, send b, recv a, send a"),
        # Of four, one has not been answered when the next one asks, and the other two step.
        (4, "send a, send b, send c, recv a, send d, recv b, send a, recv c, send b, recv d, send c, recv a, send d"),
    ],
)
def test_groups_step_while_others_are_acted_for(groups, order):
    job = job_of(Counter, options={"groups": groups})
    told = Told(job.env)
    train(job, [1], HostLoop(job.setup, job.hypers, told, job.seeds))
    expected = order.split(", ")
    assert told.order[: len(expected)] == expected
    assert len(told.order) == 2 * groups * 8
    assert told.order[-groups:] == [f"recv {name}" for name in "abcd"[:groups]]


def test_nothing_is_compiled_after_the_first_round():
    compiled: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, *_, **__: compiled.append(name) if "backend_compile" in name else None
    )
    job = job_of(partial(Counter, length=2), rollout_length=4)  # a program that no other test has
    loop = loop_of(job)
    state, _, _ = loop.block(loop.init(job.seeds), 1)
    assert compiled
    compiled.clear()
    loop.block(state, 3)
    loop.close()
    assert not compiled


def test_the_start_is_that_of_a_device_program():
    job = job_of(Counter, seeds=(4,))
    from nextpolicy.loop.state import init_agent

    key_agent, _, _ = jax.random.split(jax.random.key(4), 3)
    expected = jax.jit(partial(init_agent, job.setup), compiler_options=QUICK)(key_agent)
    assert_same(member(fetch(loop_of(job).init(job.seeds).agent), 0), fetch(expected))


def test_warm_up_fills_the_statistics_and_learns_nothing():
    job = job_of(partial(Counter, length=5), warmup_steps=20)
    loop = loop_of(job)
    start = member(loop.init(job.seeds).agent, 0)
    before = fetch(start.learner.params)
    (warmed,) = loop._start([start])
    loop.close()
    assert_same(before, fetch(warmed.learner.params))
    assert float(warmed.learner.obs_stats.samples) == pytest.approx(
        3 * 32, abs=1
    )  # 20 steps are three rounds of 8, times 4
    assert int(warmed.round) == 0
    assert_same(fetch(warmed.learner.obs_stats), fetch(warmed.target.obs_stats))
    assert loop.buffer is not None
    assert set(np.unique(loop.buffer.action)) == {0, 1}
    # One that goes on from round 3 is warm already, and its environments are others.
    later = member(loop.init(job.seeds).agent, 0)._replace(round=jnp.int32(3))
    asked: list[int] = []
    loop.workers[0].start = asked.append  # type: ignore[method-assign]
    (resumed,) = loop._start([later])
    assert asked == [3]
    assert float(resumed.learner.obs_stats.samples) == float(later.learner.obs_stats.samples)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(-3.0, 5.0, (-3, 5)), (-np.inf, np.inf, (-1, 1)), (4.0, np.inf, (4, 6)), (-np.inf, 4.0, (2, 4))],
)
def test_warm_up_acts_where_the_environment_has_no_bounds(low, high, expected):
    spec = EnvSpec("toy", (1,), Box((2,), low, high))
    drawn = np.asarray(random_actions(spec, jax.random.key(0), (500,)))
    assert drawn.shape == (500, 2)
    np.testing.assert_allclose((drawn.min(), drawn.max()), expected, atol=0.1)
    assert drawn.min() >= expected[0]
    assert drawn.max() <= expected[1]


def finished(path: Path, job: Any, **arguments: Any) -> RunFolder:
    folder = RunFolder.create(path, job.config, {"custom": ["env_fn"]})
    try:
        run_job(job, folder, quiet=True, **arguments)
    finally:
        folder.unlock()
    return folder


def saved(job: Any, folder: RunFolder, rounds: int) -> Any:
    place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    template = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), job.template())
    return fetch(checkpoint.restore(folder.checkpoints, rounds, template).agent)


def test_all_but_the_episodes_continues_exactly_after_a_resume(tmp_path, capsys):
    """On one-step episodes nothing is lost by restarting them: the resumed run equals the uninterrupted one."""
    fields = {"algo": ("ppo", "sv-dynamic"), "seeds": (0, 5), "block_rounds": 10}
    job = job_of(Bandit, **fields)
    whole = finished(tmp_path / "whole", job)
    asked: list[int] = []
    stopped = finished(tmp_path / "stopped", job, stop=lambda: asked.append(1) is None)
    assert stopped.status()["rounds_done"] == 10
    assert_same(saved(job, stopped, 10), fetch(jax.tree.map(np.asarray, train(job, [10])[0])))
    run = nextpolicy.resume(tmp_path / "stopped", env_fn=Bandit, quiet=True)
    assert "cannot save its state: episodes restart, training resumes at round 10" in capsys.readouterr().err
    assert run.status["state"] == "finished"
    assert_same(saved(job, whole, 30), saved(job, stopped, 30))
    ours, theirs = run.metrics, nextpolicy.load(tmp_path / "whole", env_fn=Bandit).metrics
    same = [name for name in ours.columns if name != "steps_per_second"]
    assert_same(ours[same].to_dict("list"), theirs[same].to_dict("list"))


def test_a_resume_with_another_environment_is_one_line_and_may_be_tried_again(tmp_path):
    job = job_of(Counter, block_rounds=1)
    finished(tmp_path / "run", job, stop=lambda: True)
    wider = partial(Spaces, spaces.Box(0, 1, (3,)), Counter.action_space)
    held = []  # as an interactive session holds the last error, and with it whatever its frames hold
    for env_fn, words in (
        (None, "was trained with a custom env_fn; pass the same again"),
        ("Counter", "env_fn: expected a callable that makes one Gymnasium environment, got 'Counter'"),
        (wider, r"agent.*: expected shape \(1, 3.*\), got \(1, 1.*\); use the environment and networks it was"),
    ):
        with pytest.raises(ValueError, match=words) as caught:
            nextpolicy.resume(tmp_path / "run", env_fn=env_fn, quiet=True)
        assert "\n" not in str(caught.value)
        held.append(caught)
    assert nextpolicy.resume(tmp_path / "run", env_fn=Counter, quiet=True).status["state"] == "finished"
    with pytest.raises(ValueError, match="use the environment and networks it was saved with"):
        nextpolicy.load(tmp_path / "run", env_fn=wider).evaluate(1)


def test_a_resumed_run_draws_other_episodes_than_the_first_start():
    job = make_job(tiny(env="gym/CartPole-v1", seeds=(0, 1)))
    seen = []
    for who, round_index in ((0, 0), (0, 0), (0, 3), (1, 0)):
        worker = loop_of(job).workers[who]
        worker.start(round_index)
        seen.append(np.concatenate([np.asarray(x) for x in worker.seen]))
        worker.close()
    np.testing.assert_array_equal(seen[0], seen[1])
    assert not np.array_equal(seen[0], seen[2])
    assert not np.array_equal(seen[0], seen[3]), "two members share a stream"
    assert len(np.unique(seen[0], axis=0)) == 4, "two environments share a stream"


@pytest.mark.parametrize(
    ("fault", "reason"), [("raise", "step raised ValueError: the motor is on fire"), ("hang", "did not return within")]
)
def test_a_failing_environment_ends_the_run_cleanly_and_keeps_the_checkpoint(tmp_path, fault, reason):
    options = {"worker_timeout": 2.0}
    # The fault comes in round 3 (of 8 steps each), after two blocks of one round are safely on disk.
    job = job_of(partial(Counter, fault=fault, at=20), options=options, block_rounds=1)
    started = time.monotonic()
    with pytest.raises(HostEnvError, match=reason):
        finished(tmp_path / "run", job)
    assert time.monotonic() - started < 30
    status = RunFolder.open(tmp_path / "run").status()
    assert status["state"] == "failed"
    assert reason in status["reason"]
    assert status["rounds_done"] == 2
    run = nextpolicy.load(tmp_path / "run", env_fn=Counter)
    assert len(run.metrics) == 2
    assert run.snapshot("target").params is not None


def test_ctrl_c_while_environments_step_ends_the_run_cleanly_and_keeps_the_checkpoint(tmp_path):
    job, steps = job_of(Counter, block_rounds=1), []

    def interrupt(step: Any) -> Any:
        steps.append(1)
        if len(steps) == 2 * 20:  # two groups, round 3 of 8 steps each
            raise KeyboardInterrupt
        return step

    with pytest.raises(KeyboardInterrupt):
        finished(tmp_path / "run", dataclasses.replace(job, env=Tampered(job.env, interrupt)))
    status = RunFolder.open(tmp_path / "run").status()
    assert (status["state"], status["rounds_done"]) == ("stopped", 2)
    assert_environments_ended()


def test_environments_that_did_start_are_ended_when_another_does_not(tmp_path):
    job = job_of(Counter)
    start, started = job.env.start, []

    def second_fails(num_envs: int, render: bool = False) -> Any:
        if started:
            raise HostEnvError("no more of these")
        started.append(start(num_envs, render))
        return started[0]

    job.env.start = second_fails
    with pytest.raises(HostEnvError, match="no more of these"):
        finished(tmp_path / "run", job)
    assert started[0]._vector is None
    assert_environments_ended()


def assert_environments_ended() -> None:
    deadline = time.monotonic() + 5
    while _driving() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _driving()


def _driving() -> bool:
    return any(thread.name == "env custom/Counter" for thread in threading.enumerate())


def test_the_library_trains_evaluates_and_acts_on_a_callable(tmp_path):
    fields = {**TINY, **BASE, "advantage_kind": "paper", "learning_rate": 3e-2}
    del fields["env"]
    run = nextpolicy.train(env_fn=Bandit, algo="ppo", out=tmp_path / "r", quiet=True, **fields)
    assert run.config.environment.env == "custom/Bandit"
    table = run.evaluate(episodes=12, num_envs=4)
    assert table["mean"][0] > 0.8  # the better arm pays 1, a random one half of it
    assert table["episodes"][0] == 12
    assert table["length"][0] == 1
    assert int(run.policy()(np.full(1, 0.5, np.float32))) == 1
    with pytest.raises(ValueError, match="was trained with a custom env_fn; pass the same again"):
        nextpolicy.load(tmp_path / "r").policy()


def test_bad_combinations_are_one_line():
    with pytest.raises(ConfigError, match=r"env: expected either env or env_fn.*, got both"):
        nextpolicy.train("gym/CartPole-v1", env_fn=Bandit)
    with pytest.raises(ConfigError, match=r"env: expected either env or env_fn.*, got neither"):
        nextpolicy.train()
    for wrong, words in (("CartPole-v1", "got 'CartPole-v1'"), (Counter(), "got an object of type Counter")):
        expected = f"env_fn: expected a callable that makes one Gymnasium environment, {words}"
        with pytest.raises(ConfigError, match=expected):
            nextpolicy.train(env_fn=wrong)  # type: ignore[arg-type]
    for wrong in (Counter(), Counter):
        with pytest.raises(ValueError, match=r"expected a gymnax-style .*; pass a Gymnasium environment as env_fn"):
            nextpolicy.train(wrong)
    for mine in ({"env": "gym/CartPole-v1"}, {"env": "gymnax/CartPole-v1"}, {"env_fn": Counter}):
        with pytest.raises(ConfigError, match="env_params: expected an environment object as env"):
            nextpolicy.train(**mine, env_params=object())
    with pytest.raises(ConfigError, match="got an observer"):
        make_job(tiny(env="gym/CartPole-v1"), observer=lambda setup, state: None)


def test_more_devices_than_are_used_are_refused(monkeypatch):
    monkeypatch.setattr(jax, "devices", lambda *_: [None, None])
    with pytest.raises(ConfigError, match=r"devices: expected 1 for environments that run on the host.*, got 2"):
        make_job(tiny(env="gym/CartPole-v1", devices=2))


def test_a_game_is_trained_evaluated_and_filmed_and_its_frames_are_stored_once(tmp_path, capsys):
    out, film = tmp_path / "run", tmp_path / "game.gif"
    small = ["image_size=12", "frame_stack=2", "threads=2", "max_frames=200"]
    fields = ["--torso", "mlp", "--hidden", "8", "--num-envs", "2", "--rollout-length", "8", "--minibatch-size", "8"]
    fields += ["--total-env-steps", "48", "--algo", "ppo,sv-dynamic", "--block-rounds", "3"]
    assert cli(["train", "atari/Breakout", "--out", str(out), "--quiet", *fields, "--env-options", *small]) == 0
    assert cli(["eval", str(out), "--episodes", "1", "--video", str(film)]) == 0
    captured = capsys.readouterr()
    assert "sv-dynamic" in captured.out
    assert film.read_bytes()[:3] == b"GIF"
    assert "frames" in captured.err
    assert cli(["resume", str(out)]) == 0
    # T + 1 rows of bytes stay on the device between rounds, and no second copy.
    job = make_job(nextpolicy.load(out).config)
    loop = loop_of(job)
    state, _, _ = loop.block(loop.init(job.seeds), 2)
    assert loop.buffer is not None
    assert loop.buffer.obs.dtype == jnp.uint8
    assert loop.buffer.obs.shape == (9, 2, 12, 12, 2)
    row = 2 * 12 * 12 * 2
    kept = sum(x.nbytes for x in jax.live_arrays() if x.dtype == jnp.uint8 and x.shape[-2:] in ((12, 12), (12, 2)))
    assert kept == 9 * row + 2 * row  # the buffer, and what the environments of both members saw last
    loop.close()
    del state


@pytest.mark.slow
@pytest.mark.parametrize("env", ["CartPole-v1", "Acrobot-v1"])
def test_a_host_environment_is_learned_as_well_as_its_twin_inside_xla(env, tmp_path):
    fields = {"algo": ("ppo", "sv-dynamic"), "seeds": 2, "total_env_steps": 300_000, "quiet": True}
    scores = {}
    for suite in ("gymnax", "gym"):
        run = nextpolicy.train(f"{suite}/{env}", out=tmp_path / suite, **fields)
        scores[suite] = run.scores().groupby("variant")["score"].mean()
    for variant in fields["algo"]:
        best, floor = {"CartPole-v1": (500.0, 400.0), "Acrobot-v1": (-60.0, -110.0)}[env]
        assert scores["gym"][variant] > floor
        assert abs(scores["gym"][variant] - scores["gymnax"][variant]) < 0.2 * abs(best)


@pytest.mark.slow
def test_pendulum_is_learned(tmp_path):
    fields = {"gamma": 0.9, "total_env_steps": 300_000, "algo": ("ppo", "sv-dynamic"), "quiet": True}
    run = nextpolicy.train("gym/Pendulum-v1", out=tmp_path / "run", **fields)
    assert (run.scores()["score"] > -500).all()  # a random policy has about -1200
