"""Parameters as one vector and back: nothing lost, nothing mixed up, and the same steps of Adam."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nextpolicy.core import one_vector


def tree(seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)  # noqa: E731
    return {"actor": {"w": draw(3, 5), "log_std": draw(2)}, "critic": [draw(40, 3), draw(), draw(1)]}


def same(got: Any, expected: Any) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, got, expected)


def test_there_and_back() -> None:
    form = one_vector.like(tree())
    vector = form.pack(tree(1))
    assert vector.shape == (256,), "120 + 15 + 2 + 1 + 1 elements, up to a multiple of 128"
    np.testing.assert_array_equal(vector[139:], 0.0)
    np.testing.assert_array_equal(vector[:120], np.ravel(tree(1)["critic"][0]), "the largest leaf is the first")
    same(form.unpack(vector), tree(1))


def test_adams_moments_go_along_and_the_rest_stays() -> None:
    form, state = one_vector.like(tree()), optax.scale_by_adam().init(tree())
    packed = form.pack((tree(2), state._replace(mu=tree(3), nu=tree(4))))
    assert [leaf.shape for leaf in jax.tree.leaves(packed)] == [(256,), (), (256,), (256,)]
    same(form.unpack(packed), (tree(2), state._replace(mu=tree(3), nu=tree(4))))


def test_a_step_on_the_vector_is_the_step_on_the_tree() -> None:
    form, adam = one_vector.like(tree()), optax.scale_by_adam()
    loss = lambda p: sum(jnp.sum(jnp.cos(leaf) * (i + 1)) for i, leaf in enumerate(jax.tree.leaves(p)))  # noqa: E731
    apart, together = (tree(5), adam.init(tree(5))), form.pack((tree(5), adam.init(tree(5))))
    for _ in range(3):
        grads, flat = jax.grad(loss)(apart[0]), jax.grad(lambda v: loss(form.unpack(v)))(together[0])
        np.testing.assert_allclose(optax.tree.norm(flat), optax.tree.norm(grads), rtol=1e-6)
        step, state = adam.update(grads, apart[1])
        apart = (jax.tree.map(lambda p, d: p - 0.1 * d, apart[0], step), state)
        step, state = adam.update(flat, together[1])
        together = (together[0] - 0.1 * step, state)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), form.unpack(together), apart)
    np.testing.assert_array_equal(together[0][139:], 0.0)


def test_every_member_has_its_own() -> None:
    members = [tree(seed) for seed in range(3)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *members)

    def there_and_back(params: Any) -> Any:
        form = one_vector.like(params)
        return form.unpack(2.0 * form.pack(params))

    got = jax.jit(jax.vmap(there_and_back))(stacked)
    for i, member in enumerate(members):
        same(jax.tree.map(lambda x, i=i: x[i], got), jax.tree.map(lambda x: 2.0 * x, member))


def test_identity_leaves_everything() -> None:
    form = one_vector.identity()
    assert form.unpack(form.pack(state := tree())) is state


def test_it_pays_on_a_cpu_for_few_parameters_of_one_type() -> None:
    assert jax.default_backend() == "cpu"
    assert one_vector.pays_on_cpu([jnp.zeros((64, 64)), jnp.zeros(64)])
    assert not one_vector.pays_on_cpu([jnp.zeros((128, 128)), jnp.zeros(128)])
    assert not one_vector.pays_on_cpu([jnp.zeros(4), jnp.zeros(4, jnp.bfloat16)])


def test_types_are_not_mixed() -> None:
    with pytest.raises(ValueError, match=r"^example: expected leaves of one dtype, got bfloat16, float32$"):
        one_vector.like({"a": jnp.zeros(2), "b": jnp.zeros(2, jnp.bfloat16)})
