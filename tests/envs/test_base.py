"""Pieces that adapters share."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nextpolicy.envs.base import over_environments

pytestmark = pytest.mark.allow_key_reuse

MEMBERS, ENVS = 2, 3


def one(state: dict[str, jax.Array], key: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
    """An environment's step, as far as mapping goes."""
    return jnp.sin(state["x"]).sum() + state["y"], {"drawn": jax.random.uniform(key, (2,)), "x": state["x"]}


def inputs(*lead: int) -> tuple[dict[str, jax.Array], jax.Array]:
    values = np.random.default_rng(0).normal(size=(*lead, 5)).astype(np.float32)
    return {"x": jnp.asarray(values[..., :4]), "y": jnp.asarray(values[..., 4])}, jax.random.split(
        jax.random.key(0), lead
    )


def assert_same(a: object, b: object) -> None:
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6)


@pytest.mark.parametrize("lead", [(ENVS,), (MEMBERS, ENVS), (2, MEMBERS, ENVS)])
def test_over_environments_is_vmap(lead: tuple[int, ...]) -> None:
    ours, plain = over_environments(one), jax.vmap(one)
    for _ in lead[1:]:
        ours, plain = jax.vmap(ours), jax.vmap(plain)
    assert_same(ours(*inputs(*lead)), plain(*inputs(*lead)))
    assert_same(jax.jit(ours)(*inputs(*lead)), plain(*inputs(*lead)))


def test_members_and_environments_are_one_axis_inside() -> None:
    program = str(jax.make_jaxpr(jax.vmap(over_environments(one)))(*inputs(MEMBERS, ENVS)))
    assert f"f32[{MEMBERS * ENVS},4] = sin" in program
    assert f"f32[{MEMBERS},{ENVS},4] = sin" not in program


def test_what_all_members_share_goes_to_each() -> None:
    state, _ = inputs(MEMBERS, ENVS)
    _, keys = inputs(ENVS)
    ours, plain = (jax.vmap(f, in_axes=(0, None)) for f in (over_environments(one), jax.vmap(one)))
    assert_same(ours(state, keys), plain(state, keys))
    part = {"x": 0, "y": None}
    state["y"] = state["y"][0]
    ours, plain = (jax.vmap(f, in_axes=(part, None)) for f in (over_environments(one), jax.vmap(one)))
    assert_same(ours(state, keys), plain(state, keys))


def test_leaves_of_no_size_are_mapped_too() -> None:
    """MuJoCo's states have some."""
    nothing = over_environments(lambda x, empty: (x + empty.sum(), empty))
    arguments = (jnp.ones((MEMBERS, ENVS)), jnp.zeros((MEMBERS, ENVS, 0, 4)))
    total, empty = jax.vmap(nothing)(*arguments)
    assert (total.shape, empty.shape) == ((MEMBERS, ENVS), (MEMBERS, ENVS, 0, 4))
    total, empty = jax.vmap(nothing, in_axes=(0, None))(arguments[0], arguments[1][0])
    assert (total.shape, empty.shape) == ((MEMBERS, ENVS), (MEMBERS, ENVS, 0, 4))


def test_it_runs_in_loops_and_in_a_population_mapped_one_after_another() -> None:
    step = over_environments(lambda x: x * 2.0)
    loop = lambda x: jax.lax.fori_loop(0, 3, lambda _, y: step(y), x)  # noqa: E731
    start = jnp.arange(6.0).reshape(MEMBERS, ENVS)
    np.testing.assert_array_equal(jax.vmap(loop)(start), start * 8)
    np.testing.assert_array_equal(jax.lax.map(loop, start), start * 8)
