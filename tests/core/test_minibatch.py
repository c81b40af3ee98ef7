"""Every epoch sees every sample once, and no two epochs in the same company."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextpolicy.core import minibatch

pytestmark = pytest.mark.quick_compilation
indices = jax.jit(minibatch.indices, static_argnums=(1, 2, 3))


@given(
    seed=st.integers(0, 2**31 - 1),
    size=st.sampled_from([1, 3, 8]),
    minibatches=st.sampled_from([1, 4]),
    epochs=st.sampled_from([1, 3]),
)
def test_each_epoch_is_a_permutation(seed, size, minibatches, epochs):
    batch_size = size * minibatches
    got = np.asarray(indices(jax.random.key(seed), batch_size, epochs, minibatches))
    assert got.shape == (epochs, minibatches, size)
    for epoch in got.reshape(epochs, -1):
        assert sorted(epoch) == list(range(batch_size))


def test_samples_mix_between_epochs_one_by_one():
    minibatches, size = 8, 32
    first, second = np.asarray(minibatch.indices(jax.random.key(0), minibatches * size, 2, minibatches))
    shared = np.array([[len(np.intersect1d(a, b)) for b in second] for a in first])
    # Independent permutations share size / minibatches = 4 of 32 on average (hypergeometric, standard deviation
    # 1.75); moving whole minibatches about, the classical mistake, would share all 32 or none.
    assert shared.max() <= 14
    assert np.mean(shared == 0) < 0.1
    neighbours = [np.mean(np.abs(np.diff(epoch.ravel())) == 1) for epoch in (first, second)]
    assert max(neighbours) < 0.05, "neighbours in time must not stay neighbours"


@pytest.mark.parametrize("size", [2**16 - 1, 2**16, 2**16 + 1])
def test_large_batches_are_permuted_too(size):
    first, second = np.asarray(indices(jax.random.key(0), size, 2, 1)).reshape(2, size)
    assert np.array_equal(np.sort(first), np.arange(size))
    assert np.array_equal(np.sort(second), np.arange(size))
    assert np.mean(first == second) < 0.001
    # The rank correlation with the original order has a standard deviation of 1 / sqrt(size), about .004.
    assert abs(np.corrcoef(first, np.arange(size))[0, 1]) < 0.02


def test_the_key_decides():
    draw = lambda seed: np.asarray(minibatch.indices(jax.random.key(seed), 64, 2, 4))  # noqa: E731
    np.testing.assert_array_equal(draw(0), draw(0))
    assert np.any(draw(0) != draw(1))


def test_inside_jit_and_vmap():
    draw = jax.jit(jax.vmap(lambda key: minibatch.indices(key, 12, 2, 3)))
    got = np.asarray(draw(jax.random.split(jax.random.key(0), 5)))
    assert got.shape == (5, 2, 3, 4)
    assert np.all(np.sort(got.reshape(5, 2, 12)) == np.arange(12))
    assert np.any(got[0] != got[1])


def test_flatten_and_take_pick_the_very_samples():
    batch = {"obs": jnp.arange(24.0).reshape(3, 4, 2), "reward": jnp.arange(12).reshape(3, 4), "absent": None}
    flat = minibatch.flatten(batch)
    assert (flat["obs"].shape, flat["reward"].shape, flat["absent"]) == ((12, 2), (12,), None)
    [epoch] = minibatch.indices(jax.random.key(3), 12, 1, 3)
    for row in epoch:
        got = minibatch.take(flat, row)
        np.testing.assert_array_equal(got["reward"], row)
        np.testing.assert_array_equal(got["obs"], np.asarray(batch["obs"])[row // 4, row % 4])


@pytest.mark.parametrize("minibatches", [0, -2, 5, 24, 3.0])
def test_minibatches_must_divide_the_batch(minibatches):
    complaint = rf"^minibatches: expected a divisor of the batch size, 12, got {minibatches}$"
    with pytest.raises(ValueError, match=complaint):
        minibatch.indices(jax.random.key(0), 12, 1, minibatches)


@pytest.mark.parametrize(
    ("batch_size", "epochs", "name"), [(12, 0, "epochs"), (12, 1.5, "epochs"), (0, 1, "batch_size")]
)
def test_there_must_be_samples_and_epochs(batch_size, epochs, name):
    with pytest.raises(ValueError, match=rf"^{name}: expected a whole number of at least 1.*, got .*$"):
        minibatch.indices(jax.random.key(0), batch_size, epochs, 3)
