"""Evaluation and filming on the host: whole episodes, unclipped scores, no artefacts, and pools that are closed."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nextpolicy.envs import build
from nextpolicy.loop.evaluate import _on_host, actor, film
from nextpolicy.nets.heads import Categorical

sys.path.insert(0, str(Path(__file__).parent.parent / "envs"))
from host_toys import Counter


class Watched:
    """A host environment that keeps its pools, and whose scores are ten times its rewards."""

    def __init__(self, env: Any) -> None:
        self.env, self.pools = env, []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def start(self, num_envs: int, render: bool = False) -> Any:
        pool = self.env.start(num_envs, render)
        recv = pool.recv
        pool.recv = lambda: (lambda step: step._replace(score=10 * step.score))(recv())
        self.pools.append(pool)
        return pool


def counter(autoreset: str = "same-step", **options: Any) -> Watched:
    return Watched(build.make_host(partial(Counter, **options), autoreset=autoreset))


def idle(key: Any, obs: np.ndarray) -> np.ndarray:
    return np.zeros(len(obs), np.int32)


def evaluate(env: Any, act: Any, num_envs: int, episodes: int = 1, max_steps: int = 10_000) -> Any:
    return _on_host(env, act, jax.random.key(0), num_envs, episodes, max_steps * episodes)


class Idle:
    """Networks whose policy always takes action 0."""

    @staticmethod
    def policy(_: Any) -> Any:
        return lambda obs: Categorical(jnp.broadcast_to(jnp.log(jnp.asarray([1.0, 0.0])), (len(obs), 2)))


@pytest.mark.parametrize("autoreset", ["same-step", "next-step"])
def test_whole_episodes_are_counted_without_the_steps_of_auto_reset(autoreset):
    env = counter(autoreset, length=3)
    result = evaluate(env, idle, num_envs=2, episodes=4)
    np.testing.assert_array_equal(result.returns, np.full((2, 4), 30.0))
    np.testing.assert_array_equal(result.lengths, np.full((2, 4), 3))
    assert result.finished.all()
    assert env.pools[0]._vector is None, "left open"


def test_the_last_of_several_episodes_has_time_for_its_auto_reset():
    env = counter("next-step", length=3)
    result = evaluate(env, idle, num_envs=1, episodes=4, max_steps=3)
    assert result.finished.all()


def test_what_does_not_end_within_the_limit_is_said_to_be_unfinished():
    result = evaluate(counter(length=5), idle, num_envs=2, episodes=2, max_steps=3)
    np.testing.assert_array_equal(result.finished, [[True, False]] * 2)
    np.testing.assert_array_equal(result.lengths[:, 0], [5, 5])
    assert (result.lengths[:, 1] > 0).all()


def test_every_step_has_a_key_of_its_own_and_a_failing_policy_leaves_no_environments():
    env, keys = counter(length=4), []

    def notes(key: Any, obs: np.ndarray) -> np.ndarray:
        keys.append(tuple(np.asarray(jax.random.key_data(key))))
        if len(keys) > 4:
            raise ZeroDivisionError
        return idle(key, obs)

    evaluate(env, notes, num_envs=1)
    assert len(set(keys)) == 4
    with pytest.raises(ZeroDivisionError):
        evaluate(env, notes, num_envs=1)
    assert env.pools[1]._vector is None


class Picture(Counter):
    """A counter whose picture is its count."""

    render_mode = "rgb_array"

    def render(self) -> np.ndarray:
        return np.full((2, 2, 3), self.steps, np.uint8)


def test_a_film_is_one_episode_and_ends_with_it():
    env = Watched(build.make_host(partial(Picture, length=4)))
    assert env.can_render
    frames, total, ended = film(env, Idle, None, jax.random.key(0), greedy=True, max_steps=100)
    assert [int(frame[0, 0, 0]) for frame in frames] == [
        0,
        1,
        2,
        3,
    ]  # the picture after the last step is the next start
    assert (total, ended) == (40, True)
    frames, total, ended = film(env, Idle, None, jax.random.key(0), greedy=True, max_steps=2)
    assert (len(frames), total, ended) == (2, 20, False)
    assert all(pool._vector is None for pool in env.pools)


def test_an_actor_samples_or_takes_the_most_probable_action():
    env = build.make_host(Counter)
    logits = jax.nn.log_softmax(jnp.asarray([0.2, 0.0]))
    networks: Any = SimpleNamespace(policy=lambda _: lambda obs: Categorical(jnp.broadcast_to(logits, (len(obs), 2))))
    obs = np.zeros((400, 1), np.float32)
    assert not actor(env, networks, greedy=True)(None)(jax.random.key(0), obs).any()
    share = actor(env, networks, greedy=False)(None)(jax.random.key(1), obs).mean()
    assert 0.35 < share < 0.55
