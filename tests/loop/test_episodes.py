"""Episode accounting: the same numbers from NumPy and JAX, scores beside rewards, artefacts in no episode."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import nextpolicy
from nextpolicy.loop.episodes import Running, Tally, account, clip_reward, count
from nextpolicy.types import Step

pytestmark = pytest.mark.quick_compilation
N, T = 3, 40


def steps(seed: int) -> list[Step[np.ndarray]]:
    """Games whose lives end before they do, clipped rewards, and artefacts after the end of a game."""
    draw = np.random.default_rng(seed)
    made, over = [], np.zeros(N, bool)
    for _ in range(T):
        valid = ~over
        life, over = draw.random(N) < 0.2, (draw.random(N) < 0.15) & valid
        score = draw.integers(-5, 6, N).astype(np.float32)
        made.append(
            Step(
                obs=np.zeros((N, 1), np.float32),
                reward=np.sign(score),
                terminated=(life | over) & valid,
                truncated=np.zeros(N, bool),
                score=score,
                episode_over=over,
                valid=valid,
            )
        )
    return made


def by_hand(played: list[Step[np.ndarray]], gamma: float) -> tuple[list[float], list[int], np.ndarray]:
    """Returns and lengths of the episodes that ended, and the discounted returns [T, N], one number at a time."""
    returns, lengths, discounted = [], [], np.zeros((len(played), N))
    for n in range(N):
        total, length, running = 0.0, 0, 0.0
        for t, step in enumerate(played):
            if step.valid[n]:
                total, length = total + step.score[n], length + 1
            running = gamma * running + (step.reward[n] if step.valid[n] else 0.0)
            discounted[t, n] = running
            if step.terminated[n] or step.truncated[n]:
                running = 0.0
            if step.episode_over[n]:
                returns.append(float(total))
                lengths.append(length)
                total, length = 0.0, 0
    return returns, lengths, discounted


@pytest.mark.parametrize("xp", [np, jnp], ids=["host", "device"])
def test_episodes_are_counted_as_by_hand(xp: Any) -> None:
    played, gamma = steps(0), 0.9
    running = Running(xp.zeros(N), xp.zeros(N), xp.zeros(N, xp.int32))
    ended, discounted = np.zeros(3), []
    for step in played:
        given = Step(*(None if x is None else xp.asarray(x) for x in step))
        running, row, finished = account(running, given, gamma)
        discounted.append(np.asarray(row))
        ended += np.asarray(finished, np.float64)
    returns, lengths, expected = by_hand(played, gamma)
    assert len(returns) > 3
    np.testing.assert_allclose(ended, [sum(returns), sum(lengths), len(returns)], rtol=1e-6)
    np.testing.assert_allclose(np.stack(discounted), expected, rtol=1e-5, atol=1e-5)


def test_without_the_optional_parts_every_step_counts_and_the_reward_is_the_score() -> None:
    flags = np.asarray([True, False, False])
    step = Step(np.zeros(N), np.asarray([1.0, 2.0, 3.0]), flags, ~flags & np.asarray([False, True, False]))
    running = Running(np.ones(N), np.full(N, 10.0), np.full(N, 4))
    after, discounted, ended = account(running, step, 0.5)
    np.testing.assert_array_equal(discounted, [1.5, 2.5, 3.5])
    assert tuple(map(float, ended)) == (11.0 + 12.0, 10.0, 2.0)
    np.testing.assert_array_equal(after.episode_return, [0.0, 0.0, 13.0])
    np.testing.assert_array_equal(after.discounted_return, [0.0, 0.0, 3.5])


@pytest.mark.parametrize("xp", [np, jnp], ids=["host", "device"])
def test_a_tally_keeps_the_first_episodes_only(xp: Any) -> None:
    played = steps(1)
    tally = Tally(xp.zeros(N, xp.int32), xp.zeros((N, 2)), xp.zeros((N, 2), xp.int32))
    for step in played:
        tally = count(tally, Step(*(None if x is None else xp.asarray(x) for x in step)))
    for n in range(N):
        alone = [Step(*(None if x is None else x[n : n + 1] for x in step)) for step in played]
        scores, total, length = [], 0.0, 0
        for step in alone:
            total, length = total + float(step.score[0] * step.valid[0]), length + int(step.valid[0])
            if step.episode_over[0]:
                scores.append((total, length))
                total, length = 0.0, 0
        assert len(scores) >= 2, "the test needs two episodes of each environment"
        np.testing.assert_allclose(np.asarray(tally.returns)[n], [s for s, _ in scores[:2]], rtol=1e-6)
        np.testing.assert_array_equal(np.asarray(tally.lengths)[n], [k for _, k in scores[:2]])
        assert int(tally.done[n]) == len(scores)


def test_clipping_keeps_the_score() -> None:
    step = Step(np.zeros(N), np.asarray([-3.0, 0.25, 9.0]), np.zeros(N, bool), np.zeros(N, bool))
    assert clip_reward(step, float("inf")) is step
    clipped = clip_reward(step, 0.5)
    np.testing.assert_array_equal(clipped.reward, [-0.5, 0.25, 0.5])
    np.testing.assert_array_equal(clipped.score, step.reward)
    again = clip_reward(clipped, 0.1)
    np.testing.assert_array_equal(again.score, step.reward)


@pytest.mark.allow_key_reuse  # the checker loses track of keys that host loops take apart and put together
@pytest.mark.parametrize("env", ["probe/action", "gym/CartPole-v1"])
def test_returns_are_reported_unclipped_while_values_are_learned_clipped(env, tmp_path) -> None:
    """On a device and on the host."""
    fields = {"num_envs": 4, "rollout_length": 8, "minibatch_size": 16, "hidden": (8,), "total_env_steps": 32 * 8}
    fields |= {"normalise_reward": False, "normalise_obs": False, "algo": "ppo", "quiet": True}
    plain = nextpolicy.train(env, out=tmp_path / "plain", **fields).metrics
    clipped = nextpolicy.train(env, out=tmp_path / "clipped", reward_clip=0.125, **fields).metrics
    # The first round acts alike, so its episodes are the same; the targets of its critic are not.
    for name in ("episode_return", "episode_length", "episodes"):
        assert plain[name][0] == clipped[name][0] or (plain["episodes"][0] == 0 and env.startswith("gym"))
    assert clipped["diff_scale"][0] < 0.5 * plain["diff_scale"][0]
