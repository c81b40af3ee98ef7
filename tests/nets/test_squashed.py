"""The squashed Gaussian against numerical integration and sampling."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from nextpolicy.envs.base import Box, Discrete, EnvSpec
from nextpolicy.nets.squashed import SquashedGaussian, SquashedGaussianHead, action_range, raw_log_std
from nextpolicy.settings import ConfigError

LOW, HIGH = (-2.0, 0.0), (2.0, 3.0)  # the scales, 2 and 1.5, do not cancel


def _dist(mean: list[float], log_std: list[float]) -> SquashedGaussian:
    return SquashedGaussian(jnp.asarray(mean), jnp.asarray(log_std), LOW, HIGH)


def _grid(dist: SquashedGaussian, points: int = 1201) -> tuple[jax.Array, float]:
    """Midpoints [P, P, 2] of the bounds, and the area around each."""
    axes = [np.linspace(a, b, points + 1)[:-1] + (b - a) / points / 2 for a, b in zip(LOW, HIGH, strict=True)]
    area = float(np.prod([(b - a) / points for a, b in zip(LOW, HIGH, strict=True)]))
    return jnp.asarray(np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)), area


def test_the_density_integrates_to_one_and_to_the_entropy(x64: None) -> None:
    dist = _dist([0.3, -0.4], [-0.7, -0.2])
    points, area = _grid(dist)
    log_prob = SquashedGaussian(*(jnp.broadcast_to(x, points.shape) for x in (dist.mean, dist.log_std)), LOW, HIGH)
    density = log_prob.log_prob(points)
    assert float(jnp.sum(jnp.exp(density)) * area) == pytest.approx(1.0, abs=1e-5)
    entropy = -float(jnp.sum(jnp.exp(density) * density) * area)
    scale = np.log(2.0) + np.log(1.5)  # from [-1, 1] to the bounds
    assert float(dist.entropy()) == pytest.approx(entropy - scale, abs=1e-4)


@pytest.mark.parametrize("log_std", [-4.0, 0.0, 1.0, 2.0])
def test_the_entropy_of_narrow_and_wide_policies(log_std: float) -> None:
    """H = -integral p log p over u; the value and its gradient are as accurate as the docstring says."""
    std = np.exp(log_std)
    for mean in (0.0, -1.0, 4.0):
        u = mean + std * np.linspace(-9, 9, 20_001)
        slope = 2 * (np.log(2.0) - u - np.logaddexp(0.0, -2 * u))
        density = stats.norm.pdf(u, mean, std)
        integral = lambda y: float(np.sum(density * y) * (u[1] - u[0]))  # noqa: B023, E731
        entropy = lambda m: SquashedGaussian(m[None], jnp.asarray([log_std]), (-1.0,), (1.0,)).entropy()  # noqa: E731
        found, gradient = jax.value_and_grad(entropy)(jnp.asarray(mean))
        assert float(found) == pytest.approx(stats.norm.entropy(mean, std) + integral(slope), abs=1e-3)
        assert float(gradient) == pytest.approx(integral(-2 * np.tanh(u)), abs=3e-3)


def test_samples_carry_their_density_on_the_unit_scale(x64: None) -> None:
    dist, noise = _dist([0.3, -0.4], [-0.7, 0.4]), jnp.asarray([0.8, -1.3])
    action, log_prob = dist.perturbed_with_unit_log_prob(noise)
    np.testing.assert_allclose(action, dist.perturbed(noise))
    u = np.asarray([0.3, -0.4]) + np.exp([-0.7, 0.4]) * np.asarray(noise)
    np.testing.assert_allclose(action, [2 * np.tanh(u[0]), 1.5 + 1.5 * np.tanh(u[1])], rtol=1e-7)
    expected = stats.norm.logpdf(u, [0.3, -0.4], np.exp([-0.7, 0.4])) - np.log(1 - np.tanh(u) ** 2)
    assert float(log_prob) == pytest.approx(expected.sum(), rel=1e-9)
    assert float(dist.log_prob(action)) == pytest.approx(expected.sum() - np.log(2.0 * 1.5), rel=1e-6)


def test_the_density_is_finite_at_and_beyond_the_bounds() -> None:
    dist = _dist([8.0, -9.0], [-2.0, 1.0])
    action, log_prob = dist.perturbed_with_unit_log_prob(jnp.asarray([3.0, -3.0]))
    assert np.isfinite(log_prob)
    assert np.isfinite(dist.log_prob(action))
    assert np.isfinite(dist.log_prob(jnp.asarray(HIGH)))
    assert ((np.asarray(LOW) <= action) & (action <= np.asarray(HIGH))).all()


def test_divergences_are_those_of_the_gaussians() -> None:
    one, two = _dist([0.3, -0.4], [-0.7, 0.4]), _dist([0.1, 0.0], [-0.5, 0.2])
    np.testing.assert_allclose(one.kl(two), one.gaussian.kl(two.gaussian))
    draws = jax.random.split(jax.random.key(0), 200_000)
    sample = jax.vmap(one.sample)(draws)
    spread = lambda d: SquashedGaussian(*(jnp.broadcast_to(x, sample.shape) for x in (d.mean, d.log_std)), LOW, HIGH)  # noqa: E731
    gap = spread(one).log_prob(sample) - spread(two).log_prob(sample)
    assert float(one.kl(two)) == pytest.approx(float(gap.mean()), abs=4 * float(gap.std()) / 200_000**0.5)
    assert float(one.tv(two)) >= 0.5 * float(jnp.abs(1 - jnp.exp(-gap)).mean()) - 0.01


def test_the_head_bounds_the_standard_deviation() -> None:
    head = SquashedGaussianHead(LOW, HIGH)
    dist = head.read(jnp.asarray([0.1, 0.2, -100.0, 100.0]), {})
    np.testing.assert_allclose(dist.mean, [0.1, 0.2])
    np.testing.assert_allclose(dist.log_std, [-5.0, 2.0])
    np.testing.assert_allclose(dist.mode(), [2 * np.tanh(0.1), 1.5 + 1.5 * np.tanh(0.2)], rtol=1e-6)


def test_the_initial_distribution() -> None:
    features = jnp.zeros((3, 5))
    for head, wanted in (
        (SquashedGaussianHead(LOW, HIGH), -1.5),
        (SquashedGaussianHead(LOW, HIGH, raw_log_std_init=raw_log_std(-0.37)), -0.37),
    ):
        params = head.init(jax.random.key(0), features)
        dist = head.apply(params, features)
        assert isinstance(dist, SquashedGaussian)
        np.testing.assert_array_equal(dist.mean, 0.0)
        np.testing.assert_allclose(dist.log_std, wanted, rtol=1e-6)
    for wrong in (-5.0, 2.0, 2.0 - 2e-16):
        with pytest.raises(ConfigError, match=f"log_std_init: expected more than -5 and less than 2 .*, got {wrong:g}"):
            raw_log_std(wrong)


def test_bounded_means_keep_the_ratios_of_saturated_actions() -> None:
    """log q(a) - log p(a) for actions a of p against that of u in float64; rounding decides it without the bounds."""
    noise = jnp.asarray(np.random.default_rng(0).normal(size=(1000, 1, 2)), jnp.float32)
    raw = jnp.asarray([[[0.3, -4.0, -1.0, -1.0], [9.0, -30.0, -0.5, 0.5], [3.0, 1e6, -0.5, -9.0]]])
    worst = {}
    for bound in (5.0, None):
        head = SquashedGaussianHead(LOW, HIGH, mean_bound=bound)
        p, q = head.read(raw, {}), head.read(raw + 0.05, {})
        scales = [[np.asarray(x, np.float64) for x in (d.mean, jnp.exp(d.log_std))] for d in (p, q)]
        u = scales[0][0] + scales[0][1] * np.asarray(noise)
        exact = np.subtract(*(stats.norm.logpdf(u, *scale).sum(-1) for scale in reversed(scales)))
        action = p.perturbed(noise)
        worst[bound] = np.abs(q.log_prob(action) - p.log_prob(action) - exact).max()
    assert worst[5.0] < 2.0  # of wide policies, beyond the last action before the bound
    assert worst[None] > 100.0
    small = SquashedGaussianHead(LOW, HIGH, mean_bound=5.0).read(jnp.asarray([0.1, -0.2, 0.0, 0.0]), {})
    np.testing.assert_allclose(small.mean, 5 * np.tanh([0.02, -0.04]), rtol=1e-6)


def test_the_range_of_actions() -> None:
    spec = lambda action: EnvSpec("mine", (3,), action)  # noqa: E731
    assert action_range(spec(Box((2,), -1.0, np.asarray([1.0, 3.0])))) == ((-1.0, -1.0), (1.0, 3.0))
    for high, got in ((np.inf, "-1 and inf for element 0"), (np.asarray([1.0, -1.0]), "-1 and -1 for element 1")):
        with pytest.raises(
            ConfigError, match=f"mine: expected finite bounds low < high for .*, got {got} of the action"
        ):
            action_range(spec(Box((2,), -1.0, high)))
    with pytest.raises(ConfigError, match="expected a variant of ppo or pqn for mine, whose actions are discrete"):
        action_range(spec(Discrete(2)))
