"""The house rules of `conftest.py` really hold, and can be lifted."""

from __future__ import annotations

from functools import partialmethod

import jax
import jax.numpy as jnp
import pytest


def _use_a_key_twice() -> None:
    key = jax.random.key(0)
    jax.random.normal(key)
    jax.random.normal(key)


def test_using_a_key_twice_is_an_error():
    with pytest.raises(jax.errors.KeyReuseError):
        _use_a_key_twice()


def test_using_a_key_twice_inside_jit_is_an_error():
    with pytest.raises(jax.errors.KeyReuseError):
        jax.jit(lambda key: jax.random.normal(key) + jax.random.normal(key))(jax.random.key(0))


@pytest.mark.allow_key_reuse
def test_using_a_key_twice_can_be_allowed():
    _use_a_key_twice()


def test_key_checking_lets_proper_jit_scan_and_vmap_through():
    def walk(key):
        def step(key, _):
            key, key_draw = jax.random.split(key)
            return key, jax.random.uniform(key_draw)

        return jax.lax.scan(step, key, None, length=4)[1]

    draws = jax.jit(jax.vmap(walk))(jax.random.split(jax.random.key(0), 3))
    assert len(set(draws.ravel().tolist())) == 12


def test_broadcasting_across_ranks_is_an_error():
    with pytest.raises(ValueError, match="rank_promotion"):
        jnp.ones((2, 3)) + jnp.ones(3)


@pytest.mark.allow_rank_promotion
def test_broadcasting_across_ranks_can_be_allowed():
    assert (jnp.ones((2, 3)) + jnp.ones(3)).shape == (2, 3)


def test_double_precision_is_on_with_the_fixture(x64):
    assert jnp.asarray(0.1).dtype == jnp.float64


def test_double_precision_is_off_without_the_fixture():
    assert jnp.asarray(0.1).dtype == jnp.float32


def test_programs_are_optimised_as_in_production_without_the_marker():
    assert not jax.config.values["jax_disable_most_optimizations"]
    assert jax.stages.Lowered.compile.__qualname__ == "Lowered.compile"


@pytest.mark.quick_compilation
def test_programs_are_compiled_with_few_optimisations_with_the_marker():
    assert jax.config.values["jax_disable_most_optimizations"]
    assert isinstance(vars(jax.stages.Lowered)["compile"], partialmethod)


@pytest.mark.quick_compilation
class TestOfAQuickClass:
    @pytest.mark.quick_compilation(False)
    def test_the_marker_can_be_taken_back(self):
        assert not jax.config.values["jax_disable_most_optimizations"]
