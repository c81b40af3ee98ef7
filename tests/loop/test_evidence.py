"""What a round measures for its criterion, and environments that the critic is not trained on."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nextpolicy.algos import ppo
from nextpolicy.algos.evidence import Targets
from nextpolicy.loop.state import init_agent
from nextpolicy.types import Evidence, Networks, Rollout

from . import test_round
from .test_round import N, T, hypers_of, make_rollout, networks, setup_of

quick = pytest.mark.quick_compilation
PLAIN: dict[str, Any] = {"advantage_norm": "none", "max_grad_norm": np.inf}


def learned(data: Rollout | None = None, **fields: Any) -> tuple[Any, Any, Evidence, Targets, Rollout]:
    """(setup, learner after the round, evidence, targets, rollout), with the initial target."""
    setup = setup_of(**PLAIN | fields)
    hypers, agent = hypers_of(setup), init_agent(setup, jax.random.key(0))
    other = init_agent(setup, jax.random.key(5)).target  # not the policy that collected
    data = make_rollout(setup, agent, 1) if data is None else data
    log_prob = setup.networks.policy(other)(data.obs).log_prob(data.action)
    targets = setup.algorithm.evaluate_target(hypers.algorithm, agent.learner, data, log_prob)
    learner, evidence, _ = setup.algorithm.learn(
        hypers.algorithm, agent.learner, other, data, jax.random.key(1), jnp.zeros(())
    )
    return setup, learner, evidence, targets, data


@quick
@pytest.mark.parametrize("norm", ["none", "scale"])
def test_the_gain_is_the_advantage_of_the_next_policy_on_the_data_of_this_one(norm: str) -> None:
    setup, learner, evidence, targets, data = learned(advantage_norm=norm)
    after = setup.networks.policy(setup.algorithm.behaviour(learner))(data.obs)
    weight = np.exp(np.asarray(after.log_prob(data.action) - data.behaviour_log_prob))
    raw = np.asarray(learned()[3].advantage)  # before it is normalised
    np.testing.assert_allclose(targets.raw_advantage, raw, rtol=1e-5)
    assert abs(weight - 1).max() > 1e-3
    assert (np.abs(np.asarray(targets.advantage) - raw).max() > 0.1) == (norm == "scale")
    np.testing.assert_allclose(evidence.gain, np.mean(weight * raw), rtol=1e-4)


@quick
def test_policy_steps_and_signs_are_those_of_the_batch() -> None:
    setup, learner, evidence, targets, data = learned(learning_rate=0.5)
    after = setup.networks.policy(setup.algorithm.behaviour(learner))(data.obs)
    moved = np.asarray(data.behaviour_dist.tv(after)).ravel()
    np.testing.assert_allclose(evidence.tv_step, moved.mean(), rtol=1e-4)
    np.testing.assert_allclose(evidence.tv_step_high, np.quantile(moved, 0.95, method="inverted_cdf"), rtol=1e-4)
    assert abs(np.quantile(moved, 0.95) - np.quantile(moved, 0.5)) > 1e-3
    before = init_agent(setup, jax.random.key(0)).learner
    other = init_agent(setup, jax.random.key(5)).target
    log_prob = setup.networks.policy(other)(data.obs).log_prob(data.action)
    again = setup.algorithm._estimates(hypers_of(setup).algorithm, before, learner.params, data, log_prob)
    changed = (np.asarray(again.raw_advantage) > 0) != (np.asarray(targets.raw_advantage) > 0)
    changed = changed[:, : changed.shape[1] // 4]  # it is measured on the first quarter of the environments
    assert 0 < changed.mean() < 0.5
    np.testing.assert_allclose(evidence.sign_changes, changed.mean(), rtol=1e-6)


@quick
@pytest.mark.parametrize(("samples", "every"), [(10**6, 1), (T * N, 1), (T * N // 2, 2), (1, T)])
def test_values_are_compared_on_evenly_spaced_steps_of_a_large_batch(
    samples: int, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ppo, "_COMPARED_VALUES", samples)
    data = learned()[4]
    valid = jnp.ones_like(data.terminated).at[0, 1].set(False).at[2, 3].set(False)
    setup, learner, evidence, targets, data = learned(data._replace(valid=valid), learning_rate=0.5)
    before = init_agent(setup, jax.random.key(0)).learner
    moved = setup.networks.value(learner.params, before.obs_stats)(data.obs) - targets.value
    moved = np.where(valid, np.abs(np.asarray(moved)), np.nan)
    np.testing.assert_allclose(evidence.diff_network, np.nanmean(moved[::every]), rtol=1e-4)
    others = [np.nanmean(moved[::n]) for n in (1, 2, T) if n != every]
    assert min(abs(other / evidence.diff_network - 1) for other in others) > 1e-3


@quick
def test_both_critics_read_observations_by_the_statistics_before_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    def shifted(kind: str) -> Networks:
        def value(params: Any, stats: Any) -> Any:
            return lambda obs: plain.value(params, stats)(obs - jnp.broadcast_to(stats.mean, obs.shape))

        return (plain := networks(kind))._replace(value=value)

    monkeypatch.setattr(test_round, "networks", shifted)
    _, learner, evidence, _, _ = learned(normalise_obs=True, learning_rate=0.0)
    assert np.abs(learner.obs_stats.mean).max() > 0.01
    assert float(evidence.diff_network) == 0.0  # the statistics changed, the critic did not
    assert float(evidence.sign_changes) == 0.0


@quick
def test_signs_are_those_of_valid_samples_and_no_sample_is_not_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    data = learned()[4]
    whole = learned(learning_rate=0.5)
    valid = jnp.ones_like(data.terminated)
    before = init_agent(whole[0], jax.random.key(0)).learner
    log_prob = whole[0].networks.policy(init_agent(whole[0], jax.random.key(5)).target)(data.obs).log_prob(data.action)
    for mask in (valid.at[:5, 0].set(False), valid.at[3:, 0].set(False)):
        setup, learner, evidence, targets, _ = learned(data._replace(valid=mask), learning_rate=0.5)
        again = setup.algorithm._estimates(hypers_of(setup).algorithm, before, learner.params, data, log_prob)
        changed = (np.asarray(again.raw_advantage) > 0) != (np.asarray(targets.raw_advantage) > 0)
        np.testing.assert_allclose(evidence.sign_changes, changed[:, 0][np.asarray(mask)[:, 0]].mean(), rtol=1e-6)
    assert np.isnan(learned(data._replace(valid=valid.at[:, 0].set(False)))[2].sign_changes)
    monkeypatch.setattr(ppo, "_COMPARED_VALUES", 1)  # the first step alone
    assert np.isnan(learned(data._replace(valid=valid.at[0].set(False)))[2].diff_network)


@pytest.mark.parametrize(
    ("steps", "envs", "shards", "compared"),
    [
        (128, 8, 1, (1, 2)),
        (128, 16, 1, (2, 2)),
        (128, 64, 1, (8, 2)),
        (128, 32, 2, (8, 2)),
        (10, 2048, 1, (10, 26)),
        (10, 16, 1, (1, 4)),
        (1, 1, 1, (1, 1)),
    ],
)
def test_critics_are_compared_on_part_of_a_large_batch(
    steps: int, envs: int, shards: int, compared: tuple[int, int]
) -> None:
    assert ppo._compared(steps, envs, shards) == compared


@quick
def test_residual_and_noise_are_those_of_the_whole_batch_and_of_the_held_out_environments() -> None:
    _, _, evidence, targets, _ = learned(held_out=0.25)
    square = np.square(np.asarray(targets.value_target) - np.asarray(targets.value))
    noise = np.asarray(targets.noise)
    np.testing.assert_allclose(evidence.residual, np.sqrt(square.mean()), rtol=1e-4)
    np.testing.assert_allclose(evidence.noise, np.sqrt(noise.mean()), rtol=1e-4)
    np.testing.assert_allclose(evidence.residual_held_out, np.sqrt(square[:, N - 1].mean()), rtol=1e-4)
    np.testing.assert_allclose(evidence.noise_held_out, np.sqrt(noise[:, N - 1].mean()), rtol=1e-4)
    assert np.isnan(learned()[2].residual_held_out)


@quick
def test_the_critic_is_not_trained_on_held_out_environments() -> None:
    def critic(fields: dict[str, Any], extra: float) -> Any:
        data = learned()[4]
        reward = data.reward.at[:, N - 1].add(extra)
        return jax.tree.leaves(learned(data._replace(reward=reward), **fields)[1].params["critic"])

    same = [np.array_equal(a, b) for a, b in zip(critic({"held_out": 0.25}, 0.0), critic({"held_out": 0.25}, 7.0))]
    differ = [np.array_equal(a, b) for a, b in zip(critic({}, 0.0), critic({}, 7.0))]
    assert all(same)
    assert not any(differ)


@quick
def test_an_invalid_step_is_neither_trained_on_nor_held_out() -> None:
    data = learned()[4]
    valid = jnp.ones_like(data.terminated).at[:3, N - 1].set(False)
    _, _, evidence, targets, _ = learned(data._replace(valid=valid), held_out=0.25)
    square = np.square(np.asarray(targets.value_target) - np.asarray(targets.value))
    np.testing.assert_allclose(evidence.residual_held_out, np.sqrt(square[3:, N - 1].mean()), rtol=1e-4)
