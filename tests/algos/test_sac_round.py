"""A whole round of SAC against NumPy: what it remembers, where it bootstraps, what it tells the criterion."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nextpolicy.algos import sac
from nextpolicy.algos.base import Parts
from nextpolicy.algos.sac import SAC, Learner, Successor, Transition
from nextpolicy.algos.sac_settings import SACSettings
from nextpolicy.core import one_vector, running_stats
from nextpolicy.core.shards import Shards
from nextpolicy.loop import replay as loop_replay
from nextpolicy.loop.state import Agent
from nextpolicy.nets.squashed import SquashedGaussian
from nextpolicy.types import PolicySnapshot, Rollout

from .linear import ACTIONS, ENVS, FEATURES, HIGH, LOW, OBS, STEPS, flags, normalised, soft_networks, some_statistics

FIXED = -12.0  # log standard deviation of actions that are as good as certain
# With so small a temperature, the entropy of such actions is worth 1e-8.
SETTINGS = SACSettings(minibatch_size=7, gamma=0.9, reward_scale=2.0, temperature_init=1e-6, normalise_obs=True)
ROWS = STEPS * ENVS


def _algorithm(settings: SACSettings = SETTINGS, kind: type[SAC] = SAC, log_std: float = FIXED) -> SAC:
    return kind(settings, Parts(soft_networks(log_std), (OBS,), ROWS, Shards(), action_size=ACTIONS))


def _learner(algorithm: SAC, rng: np.random.Generator) -> Learner:
    """With statistics, and with running averages that are not the critics."""
    learner = algorithm.init(jax.random.key(0))
    average = tuple(jnp.asarray(rng.normal(size=FEATURES)) for _ in range(2))
    return learner._replace(trained=learner.trained._replace(critic_average=average), obs_stats=some_statistics(rng))


def _snapshot(rng: np.random.Generator) -> PolicySnapshot:
    return PolicySnapshot({"mean": jnp.asarray(rng.normal(size=(OBS, ACTIONS)))}, some_statistics(rng))


def _rollout(rng: np.random.Generator) -> Rollout:
    array = lambda *shape: jnp.asarray(rng.normal(size=(STEPS, ENVS, *shape)))  # noqa: E731
    return Rollout(
        obs=array(OBS),
        next_obs=array(OBS),
        action=jnp.asarray(rng.uniform(LOW, HIGH, size=(STEPS, ENVS, ACTIONS))),
        reward=array(),
        behaviour_log_prob=array(),
        behaviour_dist=SquashedGaussian(array(ACTIONS), jnp.full((STEPS, ENVS, ACTIONS), FIXED), LOW, HIGH),
        discounted_return=array(),
        **flags(rng),
    )


def _flat(x: Any) -> np.ndarray:
    return np.asarray(x).reshape(ROWS, *x.shape[2:])


def _mode(policy: PolicySnapshot, obs: np.ndarray) -> np.ndarray:
    unit = np.tanh(normalised(policy.obs_stats, obs) @ np.asarray(policy.params["mean"]))
    return np.array([0.0, 0.5]) + np.array([2.0, 0.5]) * unit


def _q(critics: Any, stats: Any, obs: np.ndarray, action: np.ndarray) -> np.ndarray:
    x = normalised(stats, obs)
    products = np.einsum("bi,bj->bij", x, action).reshape(len(x), -1)
    return np.stack([np.concatenate([x, action, products], axis=1) @ np.asarray(w) for w in critics])


def _targets(learner: Learner, pi: PolicySnapshot, rollout: Rollout) -> np.ndarray:
    after = _flat(rollout.next_obs)
    value = _q(learner.trained.critic_average, learner.obs_stats, after, _mode(pi, after)).min(0)
    return 2.0 * _flat(rollout.reward) + 0.9 * np.where(_flat(rollout.terminated), 0.0, value)


def test_a_round_bootstraps_from_the_target_at_true_successors() -> None:
    """The buffer holds one transition many times, so that which of them are drawn does not matter."""
    rng = np.random.default_rng(0)
    algorithm, pi = _algorithm(), _snapshot(rng)
    rollout = jax.tree.map(lambda x: jnp.broadcast_to(x[:1, :1], x.shape), _rollout(rng))
    rollout = rollout._replace(terminated=jnp.zeros((STEPS, ENVS), bool), truncated=jnp.ones((STEPS, ENVS), bool))
    learner = algorithm.remember(_learner(algorithm, rng), rollout._replace(valid=None))
    still = SACSettings(**{**vars(SETTINGS), "learning_rate": 0.0, "tau": 0.0})
    _, _, fit = algorithm.learn(still, learner, pi, rollout, jax.random.key(1), jnp.asarray(0.0))
    critics, obs = learner.params["critic"], _flat(rollout.obs)
    q = _q(critics, learner.obs_stats, obs, _flat(rollout.action))
    loss = 0.5 * np.square(q - _targets(learner, pi, rollout)).sum(0)[0]
    assert float(fit["value_loss"]) == pytest.approx(loss, rel=1e-3)
    assert float(fit["q"]) == pytest.approx(q[0, 0], rel=1e-6)
    own = _mode(PolicySnapshot(learner.params["actor"], learner.obs_stats), obs)
    assert float(fit["policy_loss"]) == pytest.approx(-_q(critics, learner.obs_stats, obs, own).min(0)[0], abs=1e-3)


@pytest.mark.parametrize("seed", range(2))
def test_the_evidence_is_that_of_numpy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    algorithm, pi, rollout = _algorithm(), _snapshot(rng), _rollout(rng)
    learner = algorithm.remember(_learner(algorithm, rng), rollout)
    learned, found, _ = algorithm.learn(SETTINGS, learner, pi, rollout, jax.random.key(1), jnp.asarray(0.0))
    obs, valid = _flat(rollout.obs), _flat(rollout.valid)
    mean = lambda x: float(x[valid].mean())  # noqa: E731
    value = lambda of, action: _q(of.params["critic"], learner.obs_stats, obs, action).mean(0)  # noqa: E731
    before, after = (value(each, _flat(rollout.action)) for each in (learner, learned))
    y, beta = _targets(learner, pi, rollout), algorithm.behaviour(learned)
    for name, expected in {
        "diff_target": mean(np.abs(y - before)),
        "diff_network": mean(np.abs(after - before)),
        "scale": mean(np.abs(y)),
        "residual": mean(np.square(y - before)) ** 0.5,
        "gain": mean(value(learner, _mode(beta, obs)) - value(learner, _mode(pi, obs))),
    }.items():
        assert float(getattr(found, name)) == pytest.approx(expected, rel=1e-3), name
    assert float(found.diff_network) > 1e-4


def test_only_the_round_after_has_the_new_statistics() -> None:
    rng = np.random.default_rng(0)
    algorithm, rollout = _algorithm(), _rollout(rng)
    learner = algorithm.remember(_learner(algorithm, rng), rollout)
    learned, *_ = algorithm.learn(SETTINGS, learner, None, rollout, jax.random.key(1), jnp.asarray(0.0))
    expected = running_stats.update(learner.obs_stats, _flat(rollout.obs), jnp.asarray(_flat(rollout.valid)))
    jax.tree.map(np.testing.assert_allclose, learned.obs_stats, expected)
    snapshot = algorithm.behaviour(learned)
    assert snapshot.obs_stats is learned.obs_stats
    assert snapshot.params is learned.params["actor"]


def test_what_the_buffer_holds_of_a_rollout() -> None:
    """The true successor, and a time limit that is not an end; of an invalid step, only that it is none."""
    algorithm, rollout = _algorithm(), _rollout(np.random.default_rng(0))
    learner = algorithm.remember(algorithm.init(jax.random.key(0)), rollout)
    for name in ("obs", "next_obs", "action", "reward", "terminated", "valid"):
        np.testing.assert_array_equal(getattr(learner.replay.data, name)[:ROWS], _flat(getattr(rollout, name)), name)
    assert int(learner.replay.size) == ROWS
    learner = algorithm.remember(learner, rollout._replace(valid=None))
    assert learner.replay.data.valid[ROWS : 2 * ROWS].all()


def test_artefacts_of_invalid_steps_do_not_reach_the_buffer() -> None:
    rollout = _rollout(np.random.default_rng(0))
    broken = rollout._replace(reward=jnp.where(rollout.valid, rollout.reward, jnp.nan))
    setup: Any = SimpleNamespace(algorithm=_algorithm())
    agent = Agent(setup.algorithm.init(jax.random.key(0)), *[None] * 5)  # type: ignore[arg-type]
    kept = loop_replay.remember(setup, agent, broken).learner.replay.data
    np.testing.assert_array_equal(kept.valid[:ROWS], _flat(rollout.valid))
    assert np.isfinite(kept.reward).all()


def test_the_first_learner() -> None:
    settings = SACSettings(**{**vars(SETTINGS), "temperature_init": 0.25})
    learner = _algorithm(settings).init(jax.random.key(0))
    assert float(jnp.exp(learner.trained.log_temperature)) == pytest.approx(0.25)
    jax.tree.map(np.testing.assert_array_equal, learner.trained.critic_average, learner.params["critic"])
    assert float(learner.obs_stats.samples) == 0.0  # type: ignore[union-attr]
    assert int(learner.replay.size) == 0


def test_a_round_on_a_gpu_is_that_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """There, the compiled loop has several gradient steps, and actor and critics are vectors."""
    settings = SACSettings(minibatch_size=7, updates_per_step=6 / ROWS, learning_rate=0.1)
    monkeypatch.setattr(one_vector, "_FEW", 0)  # as with more parameters
    found, loops = [], []
    for on_gpu in (False, True):
        rng = np.random.default_rng(0)
        monkeypatch.setattr(sac, "_on_gpu", lambda on_gpu=on_gpu: on_gpu)
        algorithm = _algorithm(settings)
        rollout = _rollout(rng)
        learner = algorithm.remember(_learner(algorithm, rng), rollout)
        arguments = (learner, _snapshot(rng), rollout, jax.random.key(1), jnp.asarray(0.0))
        found.append(algorithm.learn(settings, *arguments))
        loops.append(str(jax.make_jaxpr(lambda *a, it=algorithm: it.learn(settings, *a))(*arguments)))
    on_cpu, on_gpu = found
    assert "unroll=1" in loops[0]
    assert "unroll=4" in loops[1]
    assert jax.tree.structure(on_cpu) == jax.tree.structure(on_gpu)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), on_cpu, on_gpu)
    assert not np.allclose(on_gpu[0].params["actor"]["mean"], learner.params["actor"]["mean"])


@pytest.mark.parametrize(("few", "on_gpu", "arrays"), [(2**14, False, 2), (0, False, 3), (0, True, 2)])
def test_networks_are_vectors_where_that_is_faster(
    monkeypatch: pytest.MonkeyPatch, few: int, on_gpu: bool, arrays: int
) -> None:
    """On a GPU, and on a CPU if they are small: one of the actor and one of both critics."""
    monkeypatch.setattr(one_vector, "_FEW", few)
    monkeypatch.setattr(sac, "_on_gpu", lambda: on_gpu)
    algorithm = _algorithm()
    trained = algorithm.init(jax.random.key(0)).trained
    held = algorithm._forms(trained.params).pack(trained)
    assert len(jax.tree.leaves(held.params)) == arrays
    assert len(jax.tree.leaves(held.critic_average)) == arrays - 1


class _Correlated(SAC):
    """Reports the mean product of the noise of the bootstrap's actions with the noise of the actor's."""

    def gradient_step(
        self, settings: Any, trained: Any, stats: Any, batch: Transition, successor: Successor, noise: Any, forms: Any
    ) -> Any:
        dist = self._policy(PolicySnapshot(forms.unpack(trained).params["actor"], stats), batch.next_obs)
        u = jnp.arctanh((successor.action - jnp.asarray([[0.0, 0.5]])) / jnp.asarray([[2.0, 0.5]]))
        zero, own = jnp.zeros(()), (u - dist.mean) * jnp.exp(-dist.log_std)
        found = {"q": jnp.mean(own * noise), "entropy": jnp.mean(own**2)}
        return trained, {**found, "value_loss": zero, "policy_loss": zero}


def test_actions_of_the_bootstrap_and_of_the_actor_are_drawn_independently() -> None:
    rng = np.random.default_rng(0)
    settings = SACSettings(minibatch_size=200, updates_per_step=2.0)
    algorithm = _algorithm(settings, _Correlated, log_std=-2.0)
    learner, rollout = algorithm.init(jax.random.key(0)), _rollout(rng)
    small = rollout._replace(next_obs=0.1 * rollout.next_obs, valid=None)
    learner = algorithm.remember(learner, small)
    _, _, fit = algorithm.learn(settings, learner, None, small, jax.random.key(1), jnp.asarray(0.0))
    assert float(fit["entropy"]) == pytest.approx(1.0, abs=0.05)  # own variance: noise is standard normal
    assert abs(float(fit["q"])) < 0.05
