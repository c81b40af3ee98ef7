"""Scatter-adds as masked sums: the same values as the scatter gave, wherever in a program it was."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nextpolicy.envs import brax
from nextpolicy.envs.ordered_sums import LARGEST, ordered

pytestmark = [pytest.mark.allow_rank_promotion, pytest.mark.allow_key_reuse, pytest.mark.quick_compilation]

ROWS, LINKS = 6, 4
INDEX = np.array([2, 0, 2, 2, 3, 0])
DATA = np.random.default_rng(0).normal(size=(ROWS, 3)).astype(np.float32)


def scatter_adds(function: Callable, *arguments: object) -> int:
    """How many there are in the program, those of inner programs included."""
    return str(jax.make_jaxpr(function)(*arguments)).count("scatter-add[")


def check(function: Callable, *arguments: object, left: int = 0) -> None:
    assert scatter_adds(function, *arguments) > 0
    assert scatter_adds(ordered(function), *arguments) == left
    expected, got = function(*arguments), ordered(function)(*arguments)
    assert jax.tree.structure(expected) == jax.tree.structure(got)
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(got), strict=True):
        assert (a.shape, a.dtype, a.weak_type) == (b.shape, b.dtype, b.weak_type)
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def add(data: jax.Array, index: np.ndarray = INDEX) -> jax.Array:
    return jax.ops.segment_sum(data, jnp.asarray(index), LINKS)


def in_a_loop(data: jax.Array) -> jax.Array:
    return jax.lax.scan(lambda total, x: (total + add(x), x.sum()), jnp.ones((LINKS, 3)), jnp.stack([data, 2 * data]))[
        0
    ]


def in_a_while(data: jax.Array) -> jax.Array:
    return jax.lax.while_loop(lambda x: x.sum() < 100.0, lambda x: x + jnp.abs(add(data)) + 1.0, jnp.zeros((LINKS, 3)))


def in_a_branch(data: jax.Array) -> jax.Array:
    return jax.lax.cond(data.sum() > 1e9, lambda x: jnp.zeros((LINKS, 3)), add, data)


@jax.custom_jvp
def with_its_own_derivative(data: jax.Array) -> jax.Array:
    return add(data)


with_its_own_derivative.defjvp(lambda primals, tangents: (add(*primals), add(*tangents)))


@pytest.mark.parametrize(
    "function",
    [add, jax.jit(add), in_a_loop, in_a_while, in_a_branch, with_its_own_derivative],
    ids=lambda f: f.__name__,
)
def test_the_same_sums_wherever_they_are(function: Callable) -> None:
    check(function, DATA)


def test_added_to_what_was_there_and_along_other_axes() -> None:
    there = jnp.arange(LINKS * 3, dtype=np.float32).reshape(LINKS, 3)
    check(lambda x, d: x.at[INDEX].add(d), there, DATA)
    check(lambda x, d: x.at[:, INDEX].add(d), there.T, DATA.T)
    check(lambda x, d: x.at[INDEX.reshape(2, 3)].add(d), there, DATA.reshape(2, 3, 3))
    check(lambda x, d: x.at[jnp.asarray([1])].add(d), there, DATA[:1])
    check(lambda x, d: x.at[INDEX].add(d), there[:, 0], DATA[:, 0])


@pytest.mark.parametrize("mode", ["drop", "clip", "promise_in_bounds"])
def test_what_lies_outside_is_treated_as_the_scatter_treats_it(mode: str) -> None:
    outside = INDEX if mode == "promise_in_bounds" else np.array([2, -9, 2, 7, 3, LINKS])
    check(lambda d: jnp.zeros((LINKS, 3)).at[outside].add(d, mode=mode), DATA)


def test_segment_numbers_below_zero_belong_to_no_segment() -> None:
    check(lambda d: add(d, np.array([-1, 0, -1, 2, 3, -1])), DATA)


def test_indices_may_be_data() -> None:
    check(lambda d, i: jnp.zeros((LINKS, 3)).at[i].add(d), DATA, INDEX)


def test_mapped_over_environments_and_differentiated() -> None:
    many = np.stack([DATA, -DATA, DATA**2])
    np.testing.assert_allclose(jax.vmap(ordered(add))(many), jax.vmap(add)(many), rtol=1e-5)
    check(jax.vmap(add), many)
    check(jax.vmap(add), many, np.stack([INDEX, INDEX[::-1], INDEX]), left=1)  # each its own index: of another kind
    loss = lambda f: jax.grad(lambda d: jnp.sum(f(d) ** 2))  # noqa: E731
    np.testing.assert_allclose(loss(ordered(add))(DATA), loss(add)(DATA), rtol=1e-5)


@pytest.mark.quick_compilation(False)
def test_nothing_spreads_from_rows_that_are_not_added() -> None:
    data = DATA.copy()
    data[INDEX == 2] = [np.nan, np.inf, -np.inf]
    np.testing.assert_array_equal(ordered(add)(data)[np.array([0, 1, 3])], add(data)[np.array([0, 1, 3])])
    assert not np.isfinite(ordered(add)(data)[2]).any()


def test_whole_numbers_large_sums_and_single_elements_stay_as_they_are() -> None:
    check(lambda d: add(d), DATA.astype(np.int32), left=1)  # whatever their order, whole numbers sum to the same
    large = np.zeros(LARGEST // LINKS + 1, np.int32)
    check(lambda d: add(d, large), np.ones((len(large), 3), np.float32), left=1)
    check(lambda d: jnp.zeros((LINKS, 3)).at[INDEX, 0].add(d), DATA[:, 0], left=1)


def test_no_rows_at_all_and_narrow_indices() -> None:
    check(lambda d: jax.ops.segment_sum(d, jnp.asarray(INDEX), 0), DATA, left=1)
    many, narrow = 300, np.array([[1], [127]], np.int8)  # 257 is 1 in eight bits
    numbers = jax.lax.ScatterDimensionNumbers((1,), (0,), (0,))
    check(lambda d: jax.lax.scatter_add(jnp.zeros((many, 3)), jnp.asarray(narrow), d, numbers), DATA[:2])


def test_programs_in_named_tuples_are_rewritten_in_place() -> None:
    def solved(data: jax.Array) -> jax.Array:
        twice = lambda x: x + add(jnp.concatenate([x, x[:2]]), np.arange(ROWS) % LINKS) * 0.0 + x  # noqa: E731
        return jax.lax.custom_linear_solve(twice, data[:LINKS], lambda _, b: b / 2.0, symmetric=True)

    check(solved, DATA)


def test_a_function_without_any_is_left_alone() -> None:
    double = lambda tree: {"a": tree["a"] * 2, "none": None}  # noqa: E731
    assert ordered(double)({"a": jnp.ones(3)})["none"] is None
    assert str(jax.make_jaxpr(ordered(double))({"a": DATA})) == str(jax.make_jaxpr(double)({"a": DATA}))


SYSTEMS = [("hopper", None), ("ant", "spring"), ("inverted_pendulum", "generalized")]


@pytest.mark.parametrize(("name", "backend"), SYSTEMS)
def test_brax_steps_without_a_scatter_add(name: str, backend: str | None) -> None:
    env = brax.make(name, backend=backend)
    keys = jax.random.split(jax.random.key(0), 3)
    start = jax.eval_shape(env._start, keys)[0]
    action = jnp.full((3, *env.spec.action.shape), 0.3)
    assert scatter_adds(jax.vmap(env._step_one), start, action) > 0
    assert scatter_adds(env._advance, start, action) == scatter_adds(env._start, keys) == 0


def test_brax_steps_the_same() -> None:
    env = brax.make("inverted_pendulum")  # the fastest to compile
    start = jax.jit(env._start)(jax.random.split(jax.random.key(0), 3))[0]
    action = jnp.full((3, *env.spec.action.shape), 0.3)
    plain = jax.vmap(env._step_one)
    assert scatter_adds(plain, start, action) > 0
    for a, b in zip(*(jax.tree.leaves(jax.jit(f)(start, action)) for f in (env._advance, plain)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
