"""Running statistics against numpy in double precision: merged, weighted, spread over an axis, far from zero."""

from __future__ import annotations

from functools import reduce
from itertools import permutations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextpolicy.core import running_stats
from nextpolicy.types import RunningStats


def assert_describes(stats, samples, tolerance=1e-12):
    """`stats` are count, mean and sum of squares of `samples` [n, ...], relative to their scale."""
    samples = np.asarray(samples, np.float64)
    mean, m2 = samples.mean(0), samples.var(0) * len(samples)
    scale = 1.0 + np.abs(mean).max()
    np.testing.assert_allclose(stats.samples, len(samples), rtol=tolerance)
    np.testing.assert_allclose(stats.mean, mean, atol=tolerance * scale, rtol=0)
    np.testing.assert_allclose(stats.m2, m2, rtol=tolerance, atol=tolerance * len(samples) * scale**2)


batches = st.lists(st.sampled_from([1, 2, 5]), min_size=2, max_size=4)


@given(seed=st.integers(0, 2**32 - 1), sizes=batches, offset=st.sampled_from([0.0, -50.0, 1000.0]))
def test_sequential_updates_parallel_merges_and_numpy_agree(x64, seed, sizes, offset):
    rng = np.random.default_rng(seed)
    parts = [rng.normal(offset, 3.0, (n, 4)) for n in sizes]
    start = running_stats.init((4,), jnp.float64)
    sequential = reduce(running_stats.update, map(jnp.asarray, parts), start)
    parallel = reduce(running_stats.merge, [running_stats.of_batch(jnp.asarray(p)) for p in parts])
    assert_describes(sequential, np.concatenate(parts))
    assert_describes(parallel, np.concatenate(parts))


def test_the_order_of_merging_does_not_matter(x64):
    rng = np.random.default_rng(0)
    parts = [rng.normal(i, 1 + i, (n, 2)) for i, n in enumerate((1, 7, 30, 400))]
    stats = [running_stats.of_batch(jnp.asarray(p)) for p in parts]
    for order in permutations(stats):
        assert_describes(reduce(running_stats.merge, order), np.concatenate(parts))
    a, b, c, d = stats
    assert_describes(running_stats.merge(running_stats.merge(a, b), running_stats.merge(c, d)), np.concatenate(parts))


def test_merging_with_nothing_changes_nothing():
    stats = running_stats.of_batch(jnp.array([[1.0, 5.0], [3.0, 5.0]]))
    nothing = running_stats.init((2,))
    for merged in (running_stats.merge(stats, nothing), running_stats.merge(nothing, stats)):
        jax.tree.map(np.testing.assert_array_equal, merged, stats)
    empty = running_stats.merge(nothing, nothing)
    assert all(not np.any(leaf) for leaf in empty)


def test_samples_of_weight_zero_are_left_out_whatever_they_hold(x64):
    batch = np.random.default_rng(0).normal(size=(6, 3, 2))
    weight = np.random.default_rng(1).random((6, 3)) < 0.6
    spoiled = np.where(weight[..., None], batch, np.nan)
    stats = running_stats.of_batch(jnp.asarray(spoiled), jnp.asarray(weight))
    assert_describes(stats, batch[weight])
    nobody = running_stats.update(stats, jnp.asarray(spoiled), jnp.zeros((6, 3)))
    jax.tree.map(np.testing.assert_array_equal, nobody, stats)


def test_weights_may_be_fractions(x64):
    batch, weight = np.array([1.0, 3.0, 8.0]), np.array([0.1, 0.3, 0.2])
    stats = running_stats.of_batch(jnp.asarray(batch), jnp.asarray(weight))
    mean = np.average(batch, weights=weight)
    np.testing.assert_allclose(stats.mean, mean, rtol=1e-14)
    variance = np.average((batch - mean) ** 2, weights=weight)
    np.testing.assert_allclose(running_stats.variance(stats), variance, rtol=1e-14)
    again = running_stats.merge(stats, stats)
    np.testing.assert_allclose([again.mean, running_stats.variance(again)], [mean, variance], rtol=1e-14)


@pytest.mark.parametrize("weighted", [False, True])
def test_a_mapped_axis_gives_every_part_the_statistics_of_the_whole(x64, weighted):
    batch = np.random.default_rng(0).normal(5.0, 2.0, (4, 6, 3))
    weight = np.random.default_rng(1).random((4, 6)) < (0.5 if weighted else 2.0)
    part = lambda x, w: running_stats.of_batch(x, w if weighted else None, axis_name="device")  # noqa: E731
    spread = jax.vmap(part, axis_name="device")(jnp.asarray(batch), jnp.asarray(weight))
    for device in range(4):
        assert_describes(jax.tree.map(lambda x, d=device: x[d], spread), batch[weight])


@pytest.mark.parametrize("offset", [1e3, 1e5, 1e6])
def test_single_precision_stays_accurate_far_from_zero(offset):
    batch = np.random.default_rng(0).normal(offset, 10.0, (40, 500, 2)).astype(np.float32)
    stats = reduce(jax.jit(running_stats.update), jnp.asarray(batch), running_stats.init((2,)))
    exact = batch.reshape(-1, 2).astype(np.float64)
    np.testing.assert_allclose(running_stats.variance(stats), exact.var(0), rtol=1e-3)
    np.testing.assert_allclose(stats.mean, exact.mean(0), rtol=1e-6)


def test_single_precision_still_learns_after_a_billion_samples():
    count, mean, variance = 1e9, np.array([100.0, -3.0]), np.array([4.0, 0.25])
    stats = RunningStats(jnp.float32(count), jnp.asarray(mean, jnp.float32), jnp.asarray(variance * count, jnp.float32))
    batches = np.random.default_rng(0).normal([150.0, 2.0], 1.0, (50, 20_480, 2)).astype(np.float32)
    merged = reduce(jax.jit(running_stats.update), jnp.asarray(batches), stats)
    new = batches.reshape(-1, 2).astype(np.float64)
    total = count + len(new)
    shift = new.mean(0) - mean
    exact_variance = (variance * count + new.var(0) * len(new) + shift**2 * count * len(new) / total) / total
    moved = running_stats.variance(merged) - variance
    np.testing.assert_allclose(merged.samples, total, rtol=1e-6)
    np.testing.assert_allclose(merged.mean - mean, shift * len(new) / total, rtol=1e-2)
    np.testing.assert_allclose(moved, exact_variance - variance, rtol=1e-2)


@pytest.mark.parametrize("dtype", [np.uint8, np.bool_, np.float16])
def test_narrow_types_count_as_single_precision(dtype):
    batch = np.random.default_rng(0).integers(0, 2, (4000, 2)).astype(dtype)
    stats = running_stats.of_batch(jnp.asarray(batch))
    assert {x.dtype for x in stats} == {np.dtype(np.float32)}
    assert_describes(stats, batch, 1e-6)


def test_before_the_first_sample_normalising_only_clips():
    x = jnp.array([[-50.0, 0.5], [2.0, 50.0]])
    np.testing.assert_allclose(running_stats.normalise(running_stats.init((2,)), x), np.clip(x, -10, 10), rtol=1e-6)


def test_normalised_samples_have_mean_zero_and_variance_one(x64):
    x = np.random.default_rng(0).normal([3.0, -200.0], [0.1, 40.0], (8, 50, 2))
    stats = running_stats.of_batch(jnp.asarray(x), jnp.ones((8, 50)))
    z = np.asarray(running_stats.normalise(stats, x, epsilon=0.0)).reshape(-1, 2)
    np.testing.assert_allclose(z.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(z.std(0), 1, rtol=1e-12)
    assert np.abs(running_stats.normalise(stats, x, clip=0.5)).max() == 0.5


def test_a_constant_feature_normalises_to_zero():
    x = jnp.full((10, 1), 7.0)
    assert not np.any(running_stats.normalise(running_stats.of_batch(x), x))


def test_epsilon_is_added_to_the_variance():
    stats = RunningStats(jnp.float32(4), jnp.array([1.0]), jnp.array([4 * 0.75]))
    np.testing.assert_allclose(running_stats.normalise(stats, jnp.array([3.0]), epsilon=0.25), [2.0], rtol=1e-6)
