"""Max-pooling against Flax's, whose gradient is XLA's own."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nextpolicy.nets.pooling import max_pool


@pytest.mark.parametrize("shape", [(8, 8), (9, 9), (5, 4), (3, 8), (1, 1), (2, 1)])
@pytest.mark.parametrize("ties", [False, True])
def test_maxima_and_gradients_are_those_of_flax(shape: tuple[int, int], ties: bool) -> None:
    x = jax.random.normal(jax.random.key(0), (2, *shape, 3)) - 2.0  # mostly negative: padding must not win
    x = jnp.round(x) if ties else x
    ours, pull = jax.vjp(max_pool, x)
    theirs, reference = jax.vjp(lambda x: nn.max_pool(x, (3, 3), (2, 2), "SAME"), x)
    np.testing.assert_array_equal(ours, theirs)
    # Whole numbers, so that the order of a sum does not matter.
    gradient = jnp.round(8 * jax.random.normal(jax.random.key(1), ours.shape))
    np.testing.assert_array_equal(pull(gradient)[0], reference(gradient)[0])


def test_a_member_axis_and_bfloat16() -> None:
    x = jax.random.normal(jax.random.key(0), (3, 2, 7, 6, 4)).astype(jnp.bfloat16)
    value, gradient = jax.vmap(jax.value_and_grad(lambda x: jnp.sum(max_pool(x).astype(jnp.float32))))(x)
    assert gradient.dtype == jnp.bfloat16
    for i in range(3):
        np.testing.assert_array_equal(gradient[i], jax.grad(lambda x: jnp.sum(max_pool(x).astype(jnp.float32)))(x[i]))
    assert jnp.isfinite(value).all()


def test_a_pixel_that_is_not_a_number_is_not_hidden() -> None:
    x = jnp.zeros((1, 4, 4, 1)).at[0, 2, 2, 0].set(jnp.nan)
    assert bool(jnp.isnan(max_pool(x)).any())
