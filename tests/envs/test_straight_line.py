"""Straight-line code gives the numbers of the function that it rewrites, without the loops and scatters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nextpolicy.envs import gymnax
from nextpolicy.envs.straight_line import LARGEST, SHORT, UNROLLED, straight_line

X = jnp.arange(24.0).reshape(2, 3, 4)
WRITES = [
    lambda x, i: x.at[i, 1, 2].set(-1.0),
    lambda x, i: x.at[0, i, 0].set(-1.0),  # an index out of bounds is not one of the next row
    lambda x, i: x.at[i].set(x[1]),
    lambda x, i: x.at[:, i].set(x[:, 0]),
    lambda x, i: x.at[1, :, i].set(jnp.arange(3.0)),
    lambda x, i: x.at[i, :, i].add(jnp.arange(3.0)),
    lambda x, i: x.at[i, i].max(7.5),
    lambda x, i: x.at[i, i].min(7.5, mode="clip"),
    lambda x, i: x.at[0, i].set(9.0, mode="clip"),
    lambda x, i: x.at[0, 1].set(i * 1.0),
]


def primitives(function, *arguments):
    """The names of all primitives of a function, without loops' bodies."""
    inner = lambda eqn: eqn.params["jaxpr"].jaxpr if eqn.primitive.name == "jit" else None  # noqa: E731
    walk = lambda jaxpr: [n for e in jaxpr.eqns for n in ([e.primitive.name] if inner(e) is None else walk(inner(e)))]  # noqa: E731
    return walk(jax.make_jaxpr(function)(*arguments).jaxpr)


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("index", [-9, -1, 0, 1, 2, 3, 4, 9])
def test_writes_at_an_index_are_selections(write, index):
    straight = straight_line(write)
    assert not any("scatter" in name for name in primitives(straight, X, index))
    np.testing.assert_array_equal(straight(X, index), write(X, index))
    np.testing.assert_array_equal(
        jax.vmap(straight, (None, 0))(X, jnp.array([index, 1])), jnp.stack([write(X, index), write(X, 1)])
    )


@pytest.mark.parametrize(
    "write",
    [
        lambda x, i: x.at[jnp.array([0, i])].set(1.0),  # several indices
        lambda x, i: x.at[i].mul(2.0),
        lambda x, i: x.at[i].apply(jnp.sqrt),
        lambda x, i: x.at[i, 0:2].set(x[0, :2]),  # a part of a dimension
        lambda x, i: jnp.zeros(LARGEST + 1).at[i].set(x[0, 0, 0]),
    ],
)
def test_other_writes_stay_as_they_are(write):
    straight = straight_line(write)
    assert any("scatter" in name for name in primitives(straight, X, 1))
    np.testing.assert_array_equal(straight(X, 1), write(X, 1))


def collatz(n):
    """The number of steps from n to 1, and sums of the numbers on the way."""
    step = lambda c: (jnp.where(c[0] % 2 == 0, c[0] // 2, 3 * c[0] + 1), c[1] + 1, c[2].at[c[0] % 3].add(c[0]))  # noqa: E731
    return jax.lax.while_loop(lambda c: c[0] != 1, step, (n, 0, jnp.zeros(3, jnp.int32)))[1:]


def test_a_loop_of_unknown_length_goes_on_after_its_first_iterations():
    n = jnp.arange(1, 30)  # 0 to 111 steps
    want, got = jax.vmap(collatz)(n), jax.vmap(straight_line(collatz))(n)
    assert want[0][0] == 0 and want[0][26] == 111  # noqa: PT018
    jax.tree.map(np.testing.assert_array_equal, got, want)


def test_short_loops_of_known_length_are_unrolled():
    total = lambda x, n: jax.lax.fori_loop(0, n, lambda i, y: jnp.sin(y + i), x)  # noqa: E731
    for length in (0, 2, UNROLLED, UNROLLED + 1):
        straight = straight_line(lambda x, n=length: total(x, n))
        text = jax.jit(straight).lower(1.0).as_text()
        assert ("stablehlo.while" in text) == (length > UNROLLED)
        assert straight(1.0) == total(1.0, length)


@pytest.mark.parametrize("kind", ["known length", "unknown length"])
def test_loops_with_long_bodies_stay_as_they_are(kind):
    def body(x, operations):
        for _ in range(operations):
            x = jnp.sin(x)
        return x

    def loop(x, operations):
        if kind == "known length":
            return jax.lax.fori_loop(0, 3, lambda _, y: body(y, operations), x)
        return jax.lax.while_loop(lambda y: y > 0.5, lambda y: body(y, operations), x)

    for operations in (SHORT - 20, SHORT + 1):
        straight = straight_line(lambda x, n=operations: loop(x, n))
        text = jax.jit(straight).lower(1.0).as_text()
        short = operations < SHORT
        if kind == "known length":
            assert ("stablehlo.while" in text) == (not short)
        else:  # the loop follows its first iterations
            assert text.count("stablehlo.sine") == operations * (UNROLLED + 1 if short else 1)
        assert straight(1.0) == loop(1.0, operations)


LOOPS = {
    "branches": lambda x: jax.lax.switch(x.astype(int), [lambda x: sum([jnp.sin(x)] * SHORT)] * 2, x),
    "an inner loop": lambda x: jax.lax.while_loop(lambda y: y > 0.9, jnp.sin, x),
    "an inner scan": lambda x: jax.lax.fori_loop(0, 2, lambda _, y: jnp.sin(y), x),
}


@pytest.mark.parametrize("body", LOOPS.values(), ids=LOOPS)
def test_loops_around_branches_and_loops_stay_as_they_are(body):
    loop = lambda x: jax.lax.while_loop(lambda y: y > 0.5, lambda y: body(0.9 * y), x)  # noqa: E731
    straight = straight_line(loop)
    assert primitives(straight, 1.0) == primitives(loop, 1.0)
    assert straight(1.0) == loop(1.0)


def test_loops_with_a_large_carry_stay_as_they_are():
    loop = lambda x: jax.lax.while_loop(lambda y: y[0] > 0.5, jnp.sin, x)  # noqa: E731
    for size, as_it_is in ((LARGEST, False), (LARGEST + 1, True)):
        x = jnp.ones(size)
        assert (primitives(straight_line(loop), x) == primitives(loop, x)) == as_it_is


WIDE = jax.random.randint(jax.random.key(0), (64, 100, 2), -3, 4)
MASK = jnp.all(WIDE > -2, -1) & (jnp.arange(64) != 5)[:, None]  # row 5 has no true element
REDUCTIONS = [  # and the number of elements that are left to reduce
    (lambda x: jnp.all(x > -3, -1), WIDE, 1),
    (lambda x: jnp.any(x > 2, 1), WIDE, 25),
    (lambda x: x.max(1), WIDE, 25),
    (lambda x: x.min(1), WIDE * 0.5, 25),
    (lambda x: x.sum(1), WIDE, 25),
    (lambda x: x.argmax(1), MASK, 25),
    (lambda x: x.argmax(0), MASK[5:], 59),  # a prime
    (lambda x: x.max(0), WIDE, 64),  # threads share the work of 16 elements too
    (lambda x: x.sum(1), WIDE * 0.1, 100),  # the order of floats matters
    (lambda x: x.sum(0), WIDE[0, :, 0], 100),  # one thread for each of few results would leave a GPU idle
    (lambda x: x.sum(), WIDE, 64),  # several dimensions
    (lambda x: x.sum(0), WIDE[:0], 0),
]


@pytest.mark.parametrize(("reduction", "x", "left"), REDUCTIONS)
def test_reductions_are_folded(reduction, x, left):
    straight = straight_line(reduction)
    (eqn,) = (e for e in jax.make_jaxpr(straight)(x).eqns if e.primitive.name.startswith("reduce_"))
    assert eqn.invars[0].aval.shape[eqn.params["axes"][0]] == left
    got, want = straight(x), reduction(x)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


def rollout(env, function):
    env._step_one, env._reset_one = function(env._step_one), function(env._reset_one)

    @jax.jit
    def steps(key):
        key_start, key_act, key_env = jax.random.split(key, 3)
        actions = jax.random.randint(key_act, (150, 8), 0, env.spec.action.n)
        state, _ = env.reset(key_start, 8)
        return jax.lax.scan(lambda s, x: env.step(x[0], s, x[1]), state, (jax.random.split(key_env, 150), actions))

    return steps(jax.random.key(0))


@pytest.mark.parametrize("game", [pytest.param("Asterix", marks=pytest.mark.slow), "Breakout", "SpaceInvaders"])
@pytest.mark.quick_compilation
def test_games_are_the_same_bit_for_bit(game):
    made = lambda: gymnax.make(f"{game}-MinAtar")  # noqa: E731
    want, got = rollout(made(), lambda f: f), rollout(made(), straight_line)
    assert jax.tree.structure(want) == jax.tree.structure(got)
    for a, b in zip(jax.tree.leaves(want), jax.tree.leaves(got), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    assert want[1].reward.sum() > 0


def test_gymnax_environments_are_straight_line_code_on_a_gpu(monkeypatch):
    env = gymnax.make("Freeway-MinAtar")
    key, action = jax.random.key(0), jnp.zeros(2, jnp.int32)
    state = jax.eval_shape(lambda: env.reset(key, 2)[0])
    scatters = {}
    for device in ("cpu", "gpu"):
        monkeypatch.setattr(jax, "default_backend", lambda d=device: d)
        reset = primitives(lambda: env.reset(key, 2))  # a new function, since JAX remembers traced ones
        step = primitives(lambda state: env.step(key, state, action), state)
        scatters[device] = reset.count("scatter"), step.count("scatter")
    assert scatters["cpu"] == (8 + 25, 16 + 90)
    assert scatters["gpu"] == (8, 16)  # two of the four numbers of a car, written as a slice
