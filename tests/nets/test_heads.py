"""Distributions against SciPy, and the heads that make them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from nextpolicy.nets import heads
from nextpolicy.nets.heads import Categorical, CategoricalHead, DiagonalGaussian, GaussianHead, ValueHead

pytestmark = pytest.mark.quick_compilation
DRAW = np.random.default_rng(0)


def categorical(batch: tuple[int, ...] = (5, 3), actions: int = 4) -> tuple[Categorical, np.ndarray]:
    raw = 3.0 * DRAW.normal(size=(*batch, actions))
    return Categorical(jax.nn.log_softmax(jnp.asarray(raw))), special.softmax(raw, axis=-1)


def gaussian(batch: tuple[int, ...] = (5, 3), size: int = 2) -> DiagonalGaussian:
    return DiagonalGaussian(
        jnp.asarray(DRAW.normal(size=(*batch, size))), jnp.asarray(DRAW.normal(size=(*batch, size)))
    )


def test_categorical_against_scipy(x64: None) -> None:
    (p, probabilities), (q, others) = categorical(), categorical()
    action = DRAW.integers(4, size=(5, 3))
    expected = np.log(np.take_along_axis(probabilities, action[..., None], axis=-1)[..., 0])
    np.testing.assert_allclose(p.log_prob(jnp.asarray(action)), expected, rtol=1e-10)
    np.testing.assert_allclose(p.entropy(), stats.entropy(probabilities, axis=-1), rtol=1e-10)
    np.testing.assert_allclose(p.kl(q), stats.entropy(probabilities, others, axis=-1), rtol=1e-10)
    np.testing.assert_array_equal(p.mode(), probabilities.argmax(-1))
    np.testing.assert_allclose(p.kl(p), 0.0, atol=1e-15)


def test_categorical_with_an_impossible_action() -> None:
    p = Categorical(jnp.log(jnp.asarray([0.5, 0.5, 0.0])))
    q = Categorical(jnp.log(jnp.asarray([0.25, 0.25, 0.5])))
    np.testing.assert_allclose(p.kl(q), np.log(2), rtol=1e-6)
    np.testing.assert_allclose(p.entropy(), np.log(2), rtol=1e-6)


def test_gaussian_against_scipy(x64: None) -> None:
    p, q = gaussian(), gaussian()
    action = DRAW.normal(size=(5, 3, 2))
    normals = stats.norm(np.asarray(p.mean), np.exp(np.asarray(p.log_std)))
    np.testing.assert_allclose(p.log_prob(jnp.asarray(action)), normals.logpdf(action).sum(-1), rtol=1e-10)
    np.testing.assert_allclose(p.entropy(), normals.entropy().sum(-1), rtol=1e-10)
    np.testing.assert_array_equal(p.mode(), p.mean)
    np.testing.assert_allclose(p.kl(p), 0.0, atol=1e-14)
    # KL by Gauss-Hermite quadrature, exact for the quadratic log-ratio of two normals.
    nodes, weights = np.polynomial.hermite_e.hermegauss(8)
    x = np.asarray(p.mean)[..., None] + np.exp(np.asarray(p.log_std))[..., None] * nodes
    log_ratio = stats.norm.logpdf(x, np.asarray(p.mean)[..., None], np.exp(p.log_std)[..., None]) - stats.norm.logpdf(
        x, np.asarray(q.mean)[..., None], np.exp(q.log_std)[..., None]
    )
    expected = (log_ratio * weights / weights.sum()).sum(-1).sum(-1)
    np.testing.assert_allclose(p.kl(q), expected, rtol=1e-9)


@pytest.mark.parametrize("kind", ["categorical", "gaussian"])
def test_samples_have_the_distribution(kind: str) -> None:
    if kind == "categorical":
        one, probabilities = categorical(batch=())
        many = Categorical(jnp.broadcast_to(one.logits, (20_000, 4)))
        counts = np.bincount(np.asarray(many.sample(jax.random.key(0))), minlength=4)
        assert stats.chisquare(counts, 20_000 * probabilities).pvalue > 1e-3
    else:
        one = gaussian(batch=())
        many = jax.tree.map(lambda x: jnp.broadcast_to(x, (20_000, 2)), one)
        samples = np.asarray(many.sample(jax.random.key(0)))
        for i in range(2):
            exact = stats.norm(float(one.mean[i]), float(np.exp(one.log_std[i])))
            assert stats.kstest(samples[:, i], exact.cdf).pvalue > 1e-3


def test_heads_start_near_indifference() -> None:
    features = jax.random.normal(jax.random.key(0), (7, 16))
    head = CategoricalHead(5)
    dist = head.init_with_output(jax.random.key(1), features)[0]
    np.testing.assert_allclose(np.exp(dist.logits), 0.2, atol=0.02)
    np.testing.assert_allclose(np.exp(dist.logits).sum(-1), 1.0, rtol=1e-6)
    dist, params = GaussianHead(3, 0.5).init_with_output(jax.random.key(1), features)
    assert dist.mean.shape == dist.log_std.shape == (7, 3)
    np.testing.assert_array_equal(dist.log_std, 0.5)
    assert params["params"]["log_std"].shape == (3,)
    assert ValueHead().init_with_output(jax.random.key(1), features)[0].shape == (7,)


def test_bfloat16_heads_give_float32() -> None:
    features = jax.random.normal(jax.random.key(0), (7, 16))
    for head in (CategoricalHead(5, jnp.bfloat16), GaussianHead(3, 0.5, jnp.bfloat16), ValueHead(jnp.bfloat16)):
        out, params = head.init_with_output(jax.random.key(1), features)
        assert {x.dtype for x in jax.tree.leaves(out)} == {jnp.dtype("float32")}
        assert {x.dtype for x in jax.tree.leaves(params)} == {jnp.dtype("float32")}


def test_a_head_is_a_plain_layer_with_all_its_derivatives() -> None:
    head, features = GaussianHead(3, 0.0), jnp.asarray(DRAW.normal(size=(4, 2, 5)), jnp.float32)
    params = head.init(jax.random.key(0), features)
    kernel, bias = params["params"]["Dense_0"]["kernel"], jnp.asarray([0.5, -1.0, 2.0])
    assert kernel.shape == (5, 3)

    def mean(kernel: jax.Array) -> jax.Array:
        dense = {"kernel": kernel, "bias": bias}
        return head.apply({"params": {**params["params"], "Dense_0": dense}}, features).mean

    plain = lambda kernel: features @ kernel + bias[None, None]  # noqa: E731
    np.testing.assert_allclose(mean(kernel), plain(kernel), rtol=1e-6)
    for derive in (jax.jacrev, jax.jacfwd):
        np.testing.assert_allclose(derive(mean)(kernel), derive(plain)(kernel), rtol=1e-6, atol=1e-6)
    each = jnp.stack([kernel, 2 * kernel])
    np.testing.assert_allclose(jax.vmap(mean)(each), jnp.stack([mean(k) for k in each]), rtol=1e-6)


def test_total_variation_is_exact_or_an_upper_bound():
    rng = np.random.default_rng(0)
    p, q = (heads.Categorical(jax.nn.log_softmax(jnp.asarray(rng.normal(size=(50, 4))))) for _ in range(2))
    np.testing.assert_allclose(p.tv(q), 0.5 * np.abs(np.exp(p.logits) - np.exp(q.logits)).sum(-1), rtol=1e-5)
    many, other = (heads.MultiCategorical(x.logits.reshape(25, 2, 4)) for x in (p, q))
    joint = [np.einsum("na,nb->nab", *np.exp(np.moveaxis(np.asarray(x.logits), 1, 0))) for x in (many, other)]
    exact = 0.5 * np.abs(joint[0] - joint[1]).sum((1, 2))
    assert (np.asarray(many.tv(other)) >= exact - 1e-6).all()
    assert (np.asarray(many.tv(other)) <= 1).all()
    x = np.linspace(-30, 30, 60_001)
    for mean, log_std in ((0.0, 0.0), (0.3, 0.1), (1.0, -1.0), (8.0, 1.0)):
        gauss = heads.DiagonalGaussian(jnp.zeros(1), jnp.zeros(1))
        moved = heads.DiagonalGaussian(jnp.asarray([mean]), jnp.asarray([log_std]))
        density = [
            np.exp(-0.5 * ((x - m) / s) ** 2) / (s * np.sqrt(2 * np.pi)) for m, s in ((0, 1), (mean, np.exp(log_std)))
        ]
        exact = 0.5 * np.trapezoid(np.abs(density[0] - density[1]), x)
        bound = float(gauss.tv(moved))
        assert exact - 1e-6 <= bound <= 1.0
    assert bound < 1.0
    assert float(gauss.tv(gauss)) == 0.0
