"""The networks of SAC and PQN: two critics of scaled actions, and the values of all actions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nextpolicy.config import NetConfig
from nextpolicy.core import running_stats
from nextpolicy.envs.base import Box, Discrete, EnvSpec
from nextpolicy.nets import greedy, soft
from nextpolicy.types import PolicySnapshot

NET = NetConfig(hidden=(8, 8))
OBS = np.random.default_rng(0).normal(2.0, 3.0, size=(6, 3)).astype(np.float32)
STATS = running_stats.of_batch(jnp.asarray(OBS))
NORMALISED = running_stats.normalise(STATS, jnp.asarray(OBS))


def _wide_and_unit() -> tuple[soft.Networks, soft.Networks]:
    spec = lambda low, high: EnvSpec("mine", (3,), Box((2,), np.asarray(low), np.asarray(high)))  # noqa: E731
    return soft.build(spec([-2.0, 0.0], [2.0, 1.0]), NET), soft.build(spec([-1.0, -1.0], [1.0, 1.0]), NET)


def test_critics_read_actions_on_the_unit_scale_and_normalised_observations() -> None:
    wide, unit = _wide_and_unit()
    params = wide.init(jax.random.key(0))
    small = jnp.asarray(np.random.default_rng(1).uniform(-1, 1, size=(6, 2)), jnp.float32)
    action = small * jnp.asarray([[2.0, 0.5]]) + jnp.asarray([[0.0, 0.5]])
    assert wide.action_value is not None
    assert unit.action_value is not None
    values = wide.action_value(params["critic"], STATS)(jnp.asarray(OBS), action)
    assert values.shape == (2, 6)
    np.testing.assert_allclose(
        values, unit.action_value(params["critic"], None)(NORMALISED, small), rtol=1e-4, atol=1e-5
    )


def test_two_critics_that_start_apart_and_are_kept_apart() -> None:
    wide, _ = _wide_and_unit()
    params = wide.init(jax.random.key(0))
    assert wide.action_value is not None
    one, two = params["critic"]
    of = lambda critics: wide.action_value(critics, None)(jnp.asarray(OBS), jnp.zeros((6, 2)))  # type: ignore[misc]  # noqa: E731
    values = of((one, two))
    assert (np.abs(values[0] - values[1]) > 1e-3).all()
    np.testing.assert_array_equal(of((two, one)), values[::-1])


def test_the_value_of_a_state_is_the_smaller_critic_at_the_median_action() -> None:
    wide, _ = _wide_and_unit()
    params = wide.init(jax.random.key(0))
    assert wide.action_value is not None
    action = wide.policy(PolicySnapshot(params["actor"], STATS))(jnp.asarray(OBS)).mode()
    both = wide.action_value(params["critic"], STATS)(jnp.asarray(OBS), action)
    np.testing.assert_allclose(wide.value(params, STATS)(jnp.asarray(OBS)), np.min(both, axis=0), rtol=1e-6)


@pytest.mark.parametrize("layer_norm", [False, True])
def test_values_of_discrete_actions_and_their_policy(layer_norm: bool) -> None:
    networks = greedy.build(EnvSpec("mine", (3,), Discrete(4)), NetConfig(hidden=(8,), layer_norm=layer_norm))
    params = networks.init(jax.random.key(0))
    assert ("LayerNorm" in str(jax.tree.structure(params))) == layer_norm
    assert networks.action_value is not None
    values = networks.action_value(params["critic"], STATS)(jnp.asarray(OBS))
    np.testing.assert_allclose(values, networks.action_value(params["critic"], None)(NORMALISED), rtol=1e-4, atol=1e-5)
    assert values.shape == (6, 4)
    np.testing.assert_array_equal(networks.value(params, STATS)(jnp.asarray(OBS)), values.max(-1))
    dist = networks.policy(PolicySnapshot({**params, "epsilon": jnp.float32(1.0)}, STATS))(jnp.asarray(OBS))
    np.testing.assert_array_equal(dist.mode(), values.argmax(-1))


def test_on_a_gpu_both_critics_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same values and gradients, and half as many products of matrices."""
    rng, (wide, _) = np.random.default_rng(2), _wide_and_unit()
    obs, action = jnp.asarray(rng.normal(size=(6, 3))), jnp.asarray(rng.uniform(0, 1, size=(6, 2)))
    critics = wide.init(jax.random.key(0))["critic"]
    assert wide.action_value is not None

    def values_and_gradient() -> tuple[jax.Array, object, int]:
        of = lambda critics: wide.action_value(critics, None)(obs, action)  # type: ignore[misc]  # noqa: E731
        values, pull_back = jax.vjp(of, critics)
        products = str(jax.make_jaxpr(of)(critics)).count("dot_general")
        return values, pull_back(values + jnp.arange(1, 3, dtype=values.dtype)[:, None]), products

    values, gradient, products = values_and_gradient()
    monkeypatch.setattr(soft, "on_gpu", lambda: True)
    at_once, its_gradient, fewer = values_and_gradient()
    assert (products, fewer) == (6, 3)
    np.testing.assert_allclose(at_once, values, rtol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), its_gradient, gradient)
