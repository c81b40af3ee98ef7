"""A whole round of PQN against NumPy: gradient steps, learning rate, statistics, and what it tells the criterion."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nextpolicy.algos.base import Parts
from nextpolicy.algos.pqn import PQN, Learner
from nextpolicy.algos.pqn_settings import PQNSettings
from nextpolicy.config import presets
from nextpolicy.core import running_stats
from nextpolicy.core.shards import Shards
from nextpolicy.nets.greedy import epsilon_greedy
from nextpolicy.types import PolicySnapshot, Rollout

from .linear import ACTIONS, ENVS, OBS, STEPS, flags, greedy_networks, normalised, some_statistics

ROWS, PROGRESS, ROUNDS = STEPS * ENVS, 0.5, 10
SETTINGS = PQNSettings(
    epochs=2,
    minibatch_size=ROWS,
    learning_rate=0.4,
    learning_rate_final=0.1,
    gamma=0.9,
    lam=0.7,
    max_grad_norm=0.3,
    epsilon_init=0.8,
    epsilon_final=0.2,
    epsilon_fraction=0.9,
    normalise_obs=True,
)


def _algorithm(**parts: Any) -> PQN:
    return PQN(SETTINGS, Parts(greedy_networks(), (OBS,), ROWS, Shards(), num_rounds=ROUNDS, **parts))


def _case(seed: int) -> tuple[PQN, Learner, PolicySnapshot, Rollout]:
    rng = np.random.default_rng(seed)
    array = lambda *shape: jnp.asarray(rng.normal(size=(STEPS, ENVS, *shape)))  # noqa: E731
    algorithm = _algorithm()
    learner = algorithm.init(jax.random.key(0))._replace(obs_stats=some_statistics(rng))
    pi = PolicySnapshot(
        {"critic": jnp.asarray(rng.normal(size=(OBS, ACTIONS))), "epsilon": jnp.asarray(1.0)}, some_statistics(rng)
    )
    rollout = Rollout(
        obs=array(OBS),
        next_obs=array(OBS),
        action=jnp.asarray(rng.integers(0, ACTIONS, (STEPS, ENVS))),
        reward=3.0 * array(),
        behaviour_log_prob=array(),
        behaviour_dist=epsilon_greedy(array(ACTIONS), jnp.asarray(0.3)),
        discounted_return=array(),
        **flags(rng),
    )
    return algorithm, learner, pi, rollout


def _learn(algorithm: PQN, learner: Learner, pi: PolicySnapshot | None, rollout: Rollout) -> Any:
    return algorithm.learn(SETTINGS, learner, pi, rollout, jax.random.key(1), jnp.asarray(PROGRESS))


def _descend(
    w: np.ndarray, x: np.ndarray, action: np.ndarray, y: np.ndarray, valid: np.ndarray
) -> tuple[np.ndarray, float]:
    """Two steps of RAdam, which for its first five are those of momentum; the bound on the norm comes first.

    Returns the weights and the mean of both steps' losses.
    """
    rate = 0.4 + PROGRESS * (0.1 - 0.4)
    momentum, rows, loss = np.zeros_like(w), np.arange(len(x)), 0.0
    for step in (1, 2):
        error = np.where(valid, (x @ w)[rows, action] - y, 0.0)
        loss += 0.5 * float((error**2).sum() / valid.sum()) / 2
        gradient = x.T @ (error[:, None] * np.eye(ACTIONS)[action]) / valid.sum()
        norm = np.linalg.norm(gradient)
        assert norm > 0.3
        momentum = 0.9 * momentum + 0.1 * gradient * 0.3 / norm
        w = w - rate * momentum / (1.0 - 0.9**step)
    return w, loss


@pytest.mark.parametrize("seed", range(2))
def test_a_round_is_that_of_numpy(x64: None, seed: int) -> None:
    algorithm, learner, pi, rollout = _case(seed)
    y = np.asarray(algorithm.evaluate_target(SETTINGS, learner, pi, rollout)).ravel()  # see test_pqn.py
    learned, found, metrics = _learn(algorithm, learner, pi, rollout)
    x = normalised(learner.obs_stats, rollout.obs).reshape(ROWS, OBS)
    action, valid = (np.asarray(z).ravel() for z in (rollout.action, rollout.valid))
    before = np.asarray(learner.params["critic"])
    after, loss = _descend(before, x, action, y, valid)
    np.testing.assert_allclose(learned.params["critic"], after, rtol=1e-6)

    mean = lambda z: float(z[valid].mean())  # noqa: E731
    rows = np.arange(ROWS)
    old, new = (x @ before)[rows, action], (x @ after)[rows, action]
    greedy = lambda w, stats: (normalised(stats, rollout.obs).reshape(ROWS, OBS) @ np.asarray(w)).argmax(1)  # noqa: E731
    better, worse = greedy(after, learned.obs_stats), greedy(pi.params["critic"], pi.obs_stats)
    for name, expected in {
        "diff_target": mean(np.abs(y - old)),
        "diff_network": mean(np.abs(new - old)),
        "scale": mean(np.abs(y)),
        "gain": mean((x @ before)[rows, better] - (x @ before)[rows, worse]),
    }.items():
        assert float(getattr(found, name)) == pytest.approx(expected, rel=1e-6), name
    assert float(metrics["learning_rate"]) == pytest.approx(0.25)
    assert float(metrics["value_loss"]) == pytest.approx(loss, rel=1e-6)


def test_the_next_round_has_its_epsilon_and_the_new_statistics(x64: None) -> None:
    algorithm, learner, pi, rollout = _case(0)
    learned, _, metrics = _learn(algorithm, learner, pi, rollout)
    assert float(metrics["epsilon"]) == pytest.approx(0.8)
    assert float(learned.epsilon) == pytest.approx(0.8 - 0.6 * (PROGRESS + 1 / ROUNDS) / 0.9)
    obs, valid = (z.reshape(ROWS, *z.shape[2:]) for z in (rollout.obs, rollout.valid))  # type: ignore[union-attr]
    expected = running_stats.update(learner.obs_stats, obs, valid)  # type: ignore[arg-type]
    jax.tree.map(np.testing.assert_allclose, learned.obs_stats, expected)
    snapshot = algorithm.behaviour(learned)
    assert snapshot.obs_stats is learned.obs_stats
    assert snapshot.params["epsilon"] is learned.epsilon


def test_numbers_of_states_are_not_normalised() -> None:
    assert _algorithm().init(jax.random.key(0)).obs_stats is not None
    assert _algorithm(numbered_obs=True).init(jax.random.key(0)).obs_stats is None


def test_another_run_gives_parameters_and_statistics_but_not_epsilon(x64: None) -> None:
    algorithm, learner, pi, rollout = _case(0)
    learned, *_ = _learn(algorithm, learner, pi, rollout)
    adopted = algorithm.adopt(learner, learned)
    assert (adopted.params, adopted.obs_stats) == (learned.params, learned.obs_stats)
    assert adopted.epsilon is learner.epsilon
    assert adopted.opt_state is learner.opt_state


@pytest.mark.parametrize(
    "env", ["gymnax/CartPole-v1", "gymnax/Breakout-MinAtar", "four-rooms", "craftax/Craftax-Symbolic-v1"]
)
def test_presets_have_layer_norm(env: str) -> None:
    config = presets.build(env, algo="pqn")
    assert config.value("layer_norm")
    assert (config.value("learning_rate"), config.value("learning_rate_final")) == (5e-4, 0.0)
