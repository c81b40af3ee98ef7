"""The terms of the objective at hand-made points, and where their gradients must vanish."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from nextpolicy.core import losses


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected", "slope"),
    [
        (1.0, 2.0, 2.0, 2.0),  # inside: the plain product
        (1.5, 2.0, 2.4, 0.0),  # a good action already 20 % likelier: no more reward for it
        (0.5, 2.0, 1.0, 2.0),  # a good action made rarer: pull back at full strength
        (0.5, -2.0, -1.6, 0.0),  # a bad action already rarer: no more reward
        (1.5, -2.0, -3.0, -2.0),  # a bad action made likelier: pull back at full strength
    ],
)
def test_the_surrogate_and_its_slope_in_each_corner(ratio, advantage, expected, slope):
    surrogate = lambda r: losses.clipped_surrogate(r, jnp.asarray(advantage), 0.2)  # noqa: E731
    value, gradient = jax.value_and_grad(surrogate)(jnp.asarray(ratio))
    np.testing.assert_allclose([value, gradient], [expected, slope], rtol=1e-6)


@given(seed=st.integers(0, 2**32 - 1), clip=st.floats(0.01, 0.9))
def test_the_surrogate_never_exceeds_the_plain_product(seed, clip):
    rng = np.random.default_rng(seed)
    ratio, advantage = rng.exponential(size=50).astype(np.float32), rng.normal(size=50).astype(np.float32)
    got = np.asarray(losses.clipped_surrogate(ratio, advantage, clip))
    assert np.all(got <= ratio * advantage)
    inside = np.abs(ratio - 1) < 0.99 * clip
    np.testing.assert_array_equal(got[inside], (ratio * advantage)[inside])


@pytest.mark.parametrize(
    ("value", "before", "target", "expected", "slope"),
    [
        (0.1, 0.0, 1.0, 0.405, -0.9),  # within the clip: the squared error
        (0.5, 0.0, 1.0, 0.32, 0.0),  # ran ahead towards the target: judged where the clip holds it, no pull
        (-0.5, 0.0, 1.0, 1.125, -1.5),  # ran away from the target: judged where it is, pulled back
        (3.0, 0.0, 1.0, 2.0, 2.0),  # overshot beyond what the clip would cost: pulled back
    ],
)
def test_the_value_loss_and_its_slope_in_each_corner(value, before, target, expected, slope):
    loss = lambda v: losses.clipped_value_loss(v, jnp.asarray(before), jnp.asarray(target), 0.2)  # noqa: E731
    got, gradient = jax.value_and_grad(loss)(jnp.asarray(value))
    np.testing.assert_allclose([got, gradient], [expected, slope], rtol=1e-5, atol=1e-7)


def test_an_infinite_value_clip_is_the_squared_error_with_its_gradient(x64):
    value, before, target = np.random.default_rng(0).normal(size=(3, 40)) * 10
    loss = lambda v: jnp.sum(losses.clipped_value_loss(v, before, target, jnp.inf))  # noqa: E731
    got, gradient = jax.value_and_grad(loss)(value)
    np.testing.assert_allclose(got, 0.5 * np.sum((target - value) ** 2), rtol=1e-13)
    np.testing.assert_allclose(gradient, value - target, rtol=1e-12, atol=1e-12)


@given(seed=st.integers(0, 2**32 - 1), spread=st.sampled_from([0.1, 1.0, 30.0]))
def test_categorical_entropy_equals_scipys(x64, seed, spread):
    logits = np.random.default_rng(seed).normal(size=(3, 2, 5)) * spread + 1000.0
    p = np.exp(logits - logits.max(-1, keepdims=True))
    expected = scipy.stats.entropy(p / p.sum(-1, keepdims=True), axis=-1)
    np.testing.assert_allclose(losses.categorical_entropy(logits), expected, rtol=1e-9, atol=1e-12)


def test_impossible_actions_add_no_entropy_and_no_nan_gradient():
    logits = jnp.array([0.0, 0.0, -jnp.inf])
    entropy, gradient = jax.value_and_grad(losses.categorical_entropy)(logits)
    np.testing.assert_allclose(entropy, np.log(2), rtol=1e-6)
    np.testing.assert_allclose(gradient, np.zeros(3), atol=1e-7)


def test_extreme_logits_have_finite_entropy_and_gradient():
    entropy, gradient = jax.value_and_grad(losses.categorical_entropy)(jnp.array([1e4, -1e4, 0.0]))
    assert float(entropy) == 0.0
    assert bool(jnp.all(jnp.isfinite(gradient)))


def test_gaussian_entropy_equals_scipys(x64):
    log_std = np.random.default_rng(0).normal(size=(4, 3))
    expected = scipy.stats.norm(scale=np.exp(log_std)).entropy().sum(-1)
    np.testing.assert_allclose(losses.gaussian_entropy(log_std), expected, rtol=1e-12)


def test_wrong_shapes_are_named():
    with pytest.raises(ValueError, match=r"^ratio: expected the shape of advantage, \(3,\).*, got shape \(3, 1\)$"):
        losses.clipped_surrogate(np.ones((3, 1)), np.ones(3), 0.2)
    with pytest.raises(
        ValueError, match=r"^value_before: expected the shape of value_target, \(3,\).*, got shape \(2,\)$"
    ):
        losses.clipped_value_loss(np.ones(3), np.ones(2), np.ones(3), 0.2)
