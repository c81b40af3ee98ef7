"""PQN and SV-PQN: targets against NumPy, the frozen target, and whole runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nextpolicy
from nextpolicy.algos.base import Parts
from nextpolicy.algos.pqn import PQN, Learner
from nextpolicy.algos.pqn_settings import PQNSettings
from nextpolicy.core.shards import Shards
from nextpolicy.nets.greedy import epsilon_greedy
from nextpolicy.settings import ConfigError
from nextpolicy.types import Networks, PolicySnapshot, Rollout

STEPS, ENVS, OBS, ACTIONS = 6, 2, 3, 4


def _algorithm(settings: PQNSettings) -> PQN:
    """Action values that are linear in the observation."""
    values = lambda critic, stats: lambda obs: obs @ critic  # noqa: E731
    policy = lambda s: lambda obs: epsilon_greedy(obs @ s.params["critic"], s.params["epsilon"])  # noqa: E731
    networks = Networks(lambda key: {}, policy, lambda params, stats: lambda obs: obs[..., 0], action_value=values)
    return PQN(settings, Parts(networks, (OBS,), STEPS * ENVS, Shards()))


def _case(seed: int) -> tuple[Learner, PolicySnapshot, Rollout]:
    rng = np.random.default_rng(seed)
    array = lambda *shape: jnp.asarray(rng.normal(size=shape))  # noqa: E731
    learner = Learner({"critic": array(OBS, ACTIONS)}, None, (), jnp.asarray(0.1))  # type: ignore[arg-type]
    pi = PolicySnapshot({"critic": array(OBS, ACTIONS), "epsilon": jnp.asarray(0.3)}, None)
    obs = array(STEPS + 1, ENVS, OBS)
    terminated = jnp.asarray(rng.random((STEPS, ENVS)) < 0.2)
    truncated = jnp.asarray(rng.random((STEPS, ENVS)) < 0.2) & ~terminated
    ended = (terminated | truncated)[..., None]
    rollout = Rollout(
        obs=obs[:-1],
        next_obs=jnp.where(ended, array(STEPS, ENVS, OBS), obs[1:]),
        action=jnp.asarray(rng.integers(0, ACTIONS, (STEPS, ENVS))),
        reward=array(STEPS, ENVS),
        terminated=terminated,
        truncated=truncated,
        behaviour_log_prob=jnp.zeros((STEPS, ENVS)),
        behaviour_dist=epsilon_greedy(obs[:-1] @ learner.params["critic"], jnp.asarray(0.1)),
        discounted_return=jnp.zeros((STEPS, ENVS)),
    )
    return learner, pi, rollout


def _numpy_targets(settings: PQNSettings, learner: Learner, pi: PolicySnapshot, rollout: Rollout) -> np.ndarray:
    """Step by step, from the last: what the sentence says."""
    r = jax.tree.map(np.asarray, rollout)
    q, frozen = np.asarray(learner.params["critic"]), np.asarray(pi.params["critic"])
    y = np.zeros((STEPS, ENVS))
    for env in range(ENVS):
        for t in reversed(range(STEPS)):
            after = r.next_obs[t, env]
            bootstrap = (after @ q)[np.argmax(after @ frozen)]
            goes_on = t + 1 < STEPS and not r.terminated[t, env] and not r.truncated[t, env]
            if goes_on and settings.trace == "watkins":
                goes_on = r.action[t + 1, env] == np.argmax(r.obs[t + 1, env] @ frozen)
            if goes_on:
                bootstrap = (1 - settings.lam) * bootstrap + settings.lam * y[t + 1, env]
            y[t, env] = r.reward[t, env] + settings.gamma * (0.0 if r.terminated[t, env] else bootstrap)
    return y


@pytest.mark.parametrize("trace", ["peng", "watkins"])
@pytest.mark.parametrize("seed", range(4))
def test_targets_are_those_of_numpy(x64: None, seed: int, trace: str) -> None:
    settings = PQNSettings(lam=0.7, gamma=0.9, trace=trace)  # type: ignore[arg-type]
    learner, pi, rollout = _case(seed)
    y = _algorithm(settings).evaluate_target(settings, learner, pi, rollout)
    np.testing.assert_allclose(y, _numpy_targets(settings, learner, pi, rollout), rtol=1e-12, atol=1e-12)


def test_the_frozen_target_chooses_the_action_and_the_live_values_judge_it(x64: None) -> None:
    settings = PQNSettings(lam=0.0)
    learner, pi, rollout = _case(1)
    targets = lambda learner, pi: _algorithm(settings).evaluate_target(settings, learner, pi, rollout)  # noqa: E731
    alive = ~rollout.terminated
    other = PolicySnapshot({**pi.params, "critic": -pi.params["critic"]}, None)
    assert (jnp.abs(targets(learner, pi) - targets(learner, other))[alive] > 1e-3).all()
    # The share of random actions of the target is no part of it, and the largest value is that of its own policy.
    for share in (0.0, 0.9, 1.0):
        exploring = PolicySnapshot({**pi.params, "epsilon": jnp.asarray(share)}, None)
        np.testing.assert_array_equal(targets(learner, pi), targets(learner, exploring))
    greedy = PolicySnapshot({**learner.params, "epsilon": jnp.asarray(0.0)}, None)
    best = rollout.reward + 0.99 * (rollout.next_obs @ learner.params["critic"]).max(-1) * alive
    np.testing.assert_allclose(targets(learner, greedy), best, rtol=1e-12)


def test_epsilon_greedy() -> None:
    dist = epsilon_greedy(jnp.asarray([[1.0, 3.0, 2.0, 3.0]]), jnp.asarray(0.2))
    np.testing.assert_allclose(jnp.exp(dist.logits), [[0.05, 0.85, 0.05, 0.05]], rtol=1e-6)
    assert dist.mode().tolist() == [1]
    many = jax.random.normal(jax.random.key(0), (50, 40))  # PQN starts with epsilon 1
    assert (epsilon_greedy(many, jnp.float32(1.0)).mode() == many.argmax(-1)).all()
    np.testing.assert_allclose(jnp.exp(epsilon_greedy(many, jnp.float32(1.0)).logits), 1 / 40, rtol=1e-4)
    assert np.isfinite(epsilon_greedy(jnp.asarray([[1.0, 3.0]]), jnp.asarray(0.0)).logits).all()


COMMON: dict[str, Any] = {
    "seeds": 2,
    "num_envs": 4,
    "rollout_length": 8,
    "minibatch_size": 16,
    "hidden": (8, 8),
    "total_env_steps": 32 * 12,
    "epsilon_fraction": 0.5,
    "normalise_obs": True,
}


def _train(path: Path, **fields: Any) -> nextpolicy.Run:
    return nextpolicy.train("gymnax/CartPole-v1", out=path, quiet=True, **{**COMMON, **fields})


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> nextpolicy.Run:
    return _train(tmp_path_factory.mktemp("pqn") / "plain", algo="pqn")


@pytest.mark.parametrize(
    "gate", [{"algo": "sv-pqn-static", "static_k": 1}, {"algo": "sv-pqn", "delta_v": 1e30, "k_min": 1}]
)
def test_with_a_gate_that_is_always_open_it_is_pqn_bit_for_bit(
    plain: nextpolicy.Run, tmp_path: Path, gate: dict[str, Any]
) -> None:
    run = _train(tmp_path / "open", **gate)
    same = ["value_loss", "q", "entropy", "epsilon", "kl_behaviour", "kl_target", "accepted", "grad_norm"]
    np.testing.assert_array_equal(run.metrics[same], plain.metrics[same])


def test_a_held_target_changes_what_is_learned_and_epsilon_decays(plain: nextpolicy.Run, tmp_path: Path) -> None:
    run = _train(tmp_path / "held", algo="sv-pqn-static", static_k=4)
    mine = run.metrics[run.metrics["member"] == 0]
    assert np.flatnonzero(mine["accepted"]).tolist() == [3, 7, 11]
    other = plain.metrics[plain.metrics["member"] == 0]["value_loss"].to_numpy()
    assert mine["value_loss"].to_numpy()[0] == other[0]
    assert (mine["value_loss"].to_numpy()[2:] != other[2:]).any()
    # Round 0 acts with epsilon_init; half of twelve rounds later the final share is reached.
    np.testing.assert_allclose(mine["epsilon"], np.maximum(1.0 - 0.95 * np.arange(12) / 6, 0.05), rtol=1e-5)


def test_continuous_actions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected a variant of ppo or sac for gymnax/Pendulum-v1; pqn needs one"):
        nextpolicy.train("gymnax/Pendulum-v1", algo="pqn", out=tmp_path / "run", **COMMON)
    assert not (tmp_path / "run").exists()
