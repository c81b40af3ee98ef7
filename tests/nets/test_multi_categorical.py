"""The product of categoricals against its joint distribution, which is enumerated in double precision by NumPy."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from nextpolicy.config import NetConfig
from nextpolicy.envs.base import EnvSpec
from nextpolicy.envs.nested import Leaf, MultiDiscrete
from nextpolicy.nets import build
from nextpolicy.nets.heads import MultiCategorical, MultiCategoricalHead
from nextpolicy.types import PolicySnapshot

pytestmark = pytest.mark.quick_compilation
SIZES = [(2, 1, 4, 3), (2, 2, 2)]
DRAW = np.random.default_rng(0)


def distribution(sizes: tuple[int, ...], logits: np.ndarray) -> MultiCategorical:
    return MultiCategoricalHead(sizes).read(jnp.asarray(logits), {})


def joint(sizes: tuple[int, ...], logits: np.ndarray) -> np.ndarray:
    """Probability of each joint action of one state, in the order of `itertools.product`."""
    each = [special.softmax(part) for part in np.split(logits, np.cumsum(sizes)[:-1])]
    return np.asarray([np.prod(p) for p in itertools.product(*each)])


def everything(sizes: tuple[int, ...]) -> np.ndarray:
    return np.asarray(list(itertools.product(*map(range, sizes))), np.int32)


@pytest.mark.parametrize("sizes", SIZES)
def test_it_is_the_joint_distribution(sizes: tuple[int, ...], x64: None) -> None:
    p, q = (3.0 * DRAW.normal(size=(4, sum(sizes))) for _ in range(2))
    ours, other, actions = distribution(sizes, p), distribution(sizes, q), everything(sizes)
    for i in range(4):
        one = MultiCategorical(jnp.broadcast_to(ours.logits[i], (len(actions), *ours.logits.shape[1:])))
        log_prob = np.asarray(one.log_prob(jnp.asarray(actions)))
        exact, others = joint(sizes, p[i]), joint(sizes, q[i])
        np.testing.assert_allclose(np.exp(log_prob).sum(), 1.0, rtol=1e-12)
        np.testing.assert_allclose(log_prob, np.log(exact), rtol=1e-10)
        np.testing.assert_allclose(ours.entropy()[i], stats.entropy(exact), rtol=1e-10)
        np.testing.assert_allclose(ours.kl(other)[i], stats.entropy(exact, others), rtol=1e-9)
        np.testing.assert_array_equal(ours.mode()[i], actions[exact.argmax()])
    np.testing.assert_allclose(ours.kl(ours), 0.0, atol=1e-14)


def test_gradients_are_those_of_finite_differences(x64: None) -> None:
    """With respect to raw logits; the padding must not turn them into NaN."""
    sizes = (2, 4, 3)
    x, y = DRAW.normal(size=9), DRAW.normal(size=9)

    @jax.jit
    def numbers(x: jax.Array) -> jax.Array:
        """[..., 9] -> [4, ...]"""
        p, q = distribution(sizes, x), distribution(sizes, jnp.broadcast_to(y, x.shape))
        action = jnp.broadcast_to(jnp.asarray([1, 3, 0]).reshape((1,) * (x.ndim - 1) + (3,)), (*x.shape[:-1], 3))
        return jnp.stack([p.log_prob(action), p.entropy(), p.kl(q), q.kl(p)])

    above, below = (numbers(jnp.asarray(x + step * np.eye(9))) for step in (1e-6, -1e-6))
    np.testing.assert_allclose(jax.jacrev(numbers)(jnp.asarray(x)), (above - below) / 2e-6, atol=1e-8)


def test_extreme_logits_stay_finite() -> None:
    sure = distribution((2, 3), np.asarray([80.0, -80.0, 0.0, 90.0, -90.0], np.float32))
    fair = distribution((2, 3), np.zeros(5, np.float32))
    np.testing.assert_allclose(sure.entropy(), 0.0, atol=1e-6)
    np.testing.assert_allclose(sure.kl(fair), np.log(6.0), rtol=1e-5)
    assert np.isfinite(fair.kl(sure))
    np.testing.assert_allclose(fair.entropy(), np.log(6.0), rtol=1e-6)


def test_samples_have_the_joint_distribution_and_no_value_that_does_not_exist() -> None:
    sizes = (2, 4, 3)
    logits = DRAW.normal(size=sum(sizes)).astype(np.float32)
    many = distribution(sizes, np.broadcast_to(logits, (30_000, sum(sizes))))
    samples = np.asarray(many.sample(jax.random.key(0)))
    assert (samples.dtype, samples.shape) == (np.int32, (30_000, 3))
    assert (samples.max(axis=0) == np.asarray(sizes) - 1).all()
    counts = np.bincount(np.ravel_multi_index(tuple(samples.T), sizes), minlength=24)
    assert stats.chisquare(counts, 30_000 * joint(sizes, logits.astype(np.float64))).pvalue > 1e-3


def test_the_head_starts_near_indifference_and_a_callers_logits_are_read_alike() -> None:
    sizes = (2, 4, 3)
    spec = EnvSpec("toy", (5,), MultiDiscrete(Leaf((3,), np.int64, sizes, (0, 0, 0))))
    networks = build.build(spec, NetConfig(torso="mlp", hidden=(8,)))
    actor = networks.init(jax.random.key(0))["actor"]
    obs = jax.random.normal(jax.random.key(1), (7, 5))
    dist = networks.policy(PolicySnapshot(actor, None))(obs)
    assert actor["params"]["head"]["Dense_0"]["kernel"].shape == (8, 9)
    np.testing.assert_allclose(dist.entropy(), np.log(24.0), atol=1e-2)
    raw = jnp.asarray(DRAW.normal(size=(7, 9)), jnp.float32)
    np.testing.assert_array_equal(build._wrap_output(spec, NetConfig())(raw).logits, distribution(sizes, raw).logits)
