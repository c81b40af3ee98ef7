"""V-trace and Retrace against sums written out in double precision, and the identities they must satisfy."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextpolicy.core import returns

pytestmark = pytest.mark.quick_compilation
KINDS = ("paper", "retrace", "vtrace")


def sequence(seed, steps, trailing=(), *, end_rate=0.2, max_ratio=500.0, gamma=0.97):
    """Random (ratio, reward, discount, cut, value, next_value), float64, with both kinds of episode end."""
    rng = np.random.default_rng(seed)
    shape = (steps, *trailing)
    terminated = rng.random(shape) < end_rate / 2
    truncated = ~terminated & (rng.random(shape) < end_rate / 2)
    ratio = np.where(rng.random(shape) < 0.5, rng.uniform(0, 2, shape), rng.uniform(0, max_ratio, shape))
    ratio = np.where(rng.random(shape) < 0.1, 0.0, np.minimum(ratio, max_ratio))
    reward, value, next_value = rng.normal(size=(3, *shape))
    return ratio, reward, gamma * (1.0 - terminated), terminated | truncated, value, next_value


def path_weight(discount, coefficient, cut, start, end):
    """Product of discount * coefficient over the steps start .. end-1; 0 if an episode ends on the way."""
    weight = np.ones(discount.shape[1:])
    for i in range(start, end):
        weight = weight * discount[i] * coefficient[i] * np.where(cut[i], 0.0, 1.0)
    return weight


def vtrace_by_sums(ratio, reward, discount, cut, value, next_value, lam, rho_max, rho_min=0.0):
    """y_t = value_t + sum over u >= t of (product of discount c from t to u-1) rho_u delta_u."""
    steps, c, y = len(value), np.minimum(lam, ratio), np.array(value)
    for t in range(steps):
        for u in range(t, steps):
            delta = reward[u] + discount[u] * next_value[u] - value[u]
            y[t] += path_weight(discount, c, cut, t, u) * np.minimum(np.maximum(ratio[u], rho_min), rho_max) * delta
    return y


def advantage_by_sums(kind, ratio, reward, discount, cut, value, next_value, lam, rho_max):
    """The three advantages as explicit sums over later steps."""
    steps, c = len(value), np.minimum(lam, ratio)
    delta = reward + discount * next_value - value
    advantage = np.zeros_like(value)
    if kind == "vtrace":
        excess = vtrace_by_sums(ratio, reward, discount, cut, value, next_value, lam, rho_max) - value
        for t in range(steps):
            beyond = excess[t + 1] if t + 1 < steps else 0.0
            advantage[t] = delta[t] + discount[t] * lam * np.where(cut[t], 0.0, beyond)
        return advantage
    coefficient = c if kind == "paper" else np.concatenate([c[1:], np.zeros_like(c[:1])])
    for t in range(steps):
        for u in range(t, steps):
            advantage[t] += path_weight(discount, coefficient, cut, t, u) * delta[u]
    return advantage


def assert_close(got, expected, tolerance=1e-10):
    """Within `tolerance` of the largest magnitude that occurs (at least 1)."""
    size = max(1.0, np.max(np.abs(expected), initial=0.0))
    np.testing.assert_allclose(np.asarray(got), expected, rtol=0, atol=tolerance * size)


def all_estimators(ratio, *rest, lam=0.9, rho_max=5.0):
    """Every function of the module on one sequence, by name."""
    results = {kind: returns.retrace_gae(ratio, *rest, lam=lam, kind=kind, rho_max=rho_max) for kind in KINDS}
    y, advantage = returns.on_policy(*rest, lam=lam, rho_max=rho_max, kind="vtrace")
    return results | {
        "on-policy targets": y,
        "on-policy": advantage,
        "gae": returns.gae(*rest, lam=lam),
        "targets": returns.vtrace(ratio, *rest, lam=lam, rho_max=rho_max),
    }


# Compiled once per shape: lam and the clips are traced, as in a population that mixes them.
vtrace = jax.jit(returns.vtrace)
retrace_gae = jax.jit(returns.retrace_gae, static_argnames="kind")
compiled_estimators = jax.jit(all_estimators)

sequences = {
    "seed": st.integers(0, 2**32 - 1),
    "steps": st.sampled_from([1, 2, 14]),  # longer ones, solved another way, below
    "trailing": st.sampled_from([(), (2, 3)]),
    "lam": st.floats(0.0, 1.0),
    "rho_max": st.sampled_from([1.0, 5.0, 100.0, np.inf]),
}


@given(**sequences, rho_min=st.sampled_from([0.0, 0.5]))
def test_vtrace_equals_the_written_out_sum(x64, seed, steps, trailing, lam, rho_max, rho_min):
    data = sequence(seed, steps, trailing)
    got = vtrace(*data, lam=lam, rho_max=rho_max, rho_min=rho_min)
    assert got.dtype == jnp.float64
    assert_close(got, vtrace_by_sums(*data, lam, rho_max, rho_min))


@pytest.mark.parametrize("kind", KINDS)
@given(**sequences)
def test_retrace_equals_the_written_out_sum(x64, kind, seed, steps, trailing, lam, rho_max):
    data = sequence(seed, steps, trailing)
    got = retrace_gae(*data, lam=lam, kind=kind, rho_max=rho_max)
    assert got.dtype == jnp.float64
    assert_close(got, advantage_by_sums(kind, *data, lam, rho_max))


@pytest.mark.parametrize("steps", [31, 32, 33, 75])
def test_long_rollouts_equal_the_written_out_sum_too(x64, steps):
    # From 32 steps on the recursion is solved in passes over all steps instead of one after the other.
    data, lam, rho_max = sequence(steps, steps, (2,), end_rate=0.1), 0.95, 5.0
    got = compiled_estimators(*data, lam=lam, rho_max=rho_max)
    for kind in KINDS:
        assert_close(got[kind], advantage_by_sums(kind, *data, lam, rho_max))
    assert_close(got["targets"], vtrace_by_sums(*data, lam, rho_max))
    assert_close(got["gae"], advantage_by_sums("paper", np.ones_like(data[0]), *data[1:], lam, rho_max))


@given(**sequences)
def test_on_policy_all_kinds_are_gae_and_the_target_is_advantage_plus_value(x64, seed, steps, trailing, lam, rho_max):
    _, *rest = sequence(seed, steps, trailing)
    ratio = np.ones_like(rest[0])
    got = compiled_estimators(ratio, *rest, lam=lam, rho_max=rho_max)
    gae = np.asarray(got["gae"])
    assert_close(gae, advantage_by_sums("paper", ratio, *rest, lam, rho_max))
    for kind in KINDS:
        assert_close(got[kind], gae)
    assert_close(got["targets"], gae + rest[3])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", [5, 40])
@pytest.mark.parametrize(("rho_min", "rho_max"), [(0.0, 5.0), (0.0, 0.7), (0.0, 0.0), (1.5, 5.0), (0.0, np.inf)])
def test_one_recursion_gives_both_results_on_policy(x64, kind, steps, rho_min, rho_max):
    _, *rest = sequence(steps, steps, (2,))
    options = {"lam": 0.9, "rho_max": rho_max}
    y, advantage = returns.on_policy(*rest, **options, rho_min=rho_min, kind=kind)
    ones = np.ones_like(rest[0])
    assert_close(y, vtrace_by_sums(ones, *rest, **options, rho_min=rho_min))
    assert_close(advantage, advantage_by_sums(kind, ones, *rest, **options))


@pytest.mark.quick_compilation(False)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", [5, 40])
def test_one_recursion_rounds_as_two_do(kind, steps):
    """Bit for bit, operation by operation. XLA's fusions may round differently."""
    _, *rest = (x.astype(np.float32) for x in sequence(steps, steps, (2,)))
    ones = np.ones_like(rest[0])
    got = returns.on_policy(*rest, lam=0.9, rho_max=5.0, kind=kind)
    np.testing.assert_array_equal(got[0], returns.vtrace(ones, *rest, lam=0.9, rho_max=5.0))
    np.testing.assert_array_equal(got[1], returns.retrace_gae(ones, *rest, lam=0.9, rho_max=5.0, kind=kind))


@given(seed=st.integers(0, 2**32 - 1), first=st.sampled_from([1, 4]), ends_in_death=st.booleans())
def test_splitting_a_rollout_at_a_cut_changes_nothing(x64, seed, first, ends_in_death):
    data = sequence(seed, 9, (2,))
    data[3][first - 1] = True
    data[2][first - 1] *= 1.0 - ends_in_death
    whole = compiled_estimators(*data)
    parts = [compiled_estimators(*(x[part] for x in data)) for part in (slice(None, first), slice(first, None))]
    for name, got in whole.items():
        assert_close(got, np.concatenate([parts[0][name], parts[1][name]]), 1e-14)


def test_three_steps_by_hand_tell_the_trace_of_this_step_from_that_of_the_next(x64):
    # With value 0 the errors are the rewards; lam = 1 makes c = min(1, ratio) = 0.5, 0.25, 1.
    reward, ratio = np.array([1.0, 2.0, 4.0]), np.array([0.5, 0.25, 2.0])
    rest = (reward, np.full(3, 0.5), np.zeros(3, bool), np.zeros(3), np.zeros(3))
    advantage = partial(returns.retrace_gae, ratio, *rest, lam=1.0)
    # A_2 = 4;  A_1 = 2 + .5 * .25 * 4;  A_0 = 1 + .5 * .5 * 2.5
    np.testing.assert_array_equal(advantage(kind="paper"), [1.625, 2.5, 4.0])
    # A_2 = 4;  A_1 = 2 + .5 * 1 * 4;  A_0 = 1 + .5 * .25 * 4
    np.testing.assert_array_equal(advantage(kind="retrace"), [1.5, 4.0, 4.0])
    # y - v: 2 * 4;  .25 * 2 + .5 * .25 * 8;  .5 * 1 + .5 * .5 * 1.5
    np.testing.assert_array_equal(returns.vtrace(ratio, *rest, lam=1.0, rho_max=np.inf), [0.875, 1.5, 8.0])
    # A_2 = 4;  A_1 = 2 + .5 * 8;  A_0 = 1 + .5 * 1.5
    np.testing.assert_array_equal(advantage(kind="vtrace"), [1.75, 6.0, 4.0])


@pytest.mark.parametrize(("kind", "biased"), [("paper", True), ("retrace", True), ("vtrace", False)])
def test_errors_of_state_values_under_cut_traces_are_biased(x64, kind, biased):
    """One state, two actions worth 1 and 0, an exact critic, all rollouts of two steps weighed by their probability."""
    gamma, pi, beta = 0.9, np.array([0.9, 0.1]), np.array([0.5, 0.5])
    value = pi[0] / (1 - gamma)
    expected = np.array([1.0, 0.0]) - pi[0]  # the true advantages
    estimate = np.zeros(2)
    for first in (0, 1):
        for second in (0, 1):
            actions = np.array([first, second])
            constant = jnp.full(2, value)
            reward, ratio = jnp.asarray(1.0 - actions), jnp.asarray(pi[actions] / beta[actions])
            rest = (reward, jnp.full(2, gamma), jnp.zeros(2), constant, constant)
            estimate[first] += beta[second] * returns.retrace_gae(ratio, *rest, lam=1.0, kind=kind)[0]
    assert np.allclose(estimate, expected, atol=1e-12) != biased


def test_truncation_bootstraps_and_termination_does_not(x64):
    gamma, value, next_value = 0.9, np.array([1.0, 2.0]), np.array([10.0, 20.0])
    reward, ratio, cut = np.array([1.0, 1.0]), np.ones(2), np.array([True, True])
    truncated = all_estimators(ratio, reward, np.full(2, gamma), cut, value, next_value)
    terminated = all_estimators(ratio, reward, np.zeros(2), cut, value, next_value)
    for name in truncated:
        offset = value if name.endswith("targets") else 0.0
        assert_close(truncated[name], np.array([1 + 9 - 1, 1 + 18 - 2]) + offset)
        assert_close(terminated[name], np.array([1 - 1, 1 - 2]) + offset)


@pytest.mark.parametrize("ends", [0.0, 0.3])
def test_jit_vmap_and_plain_python_agree(x64, ends):
    data = sequence(3, 6, (4,), end_rate=ends)
    plain = all_estimators(*data)
    with jax.disable_jit():
        interpreted = all_estimators(*data)
    compiled = compiled_estimators(*data)
    mapped = jax.vmap(all_estimators, in_axes=1, out_axes=1)(*data)
    for name, expected in plain.items():
        for other in (interpreted, compiled, mapped):
            assert other[name].shape == (6, 4)
            assert_close(other[name], np.asarray(expected), 1e-13)


@pytest.mark.parametrize("end_rate", [0.0, 0.01])
def test_single_precision_stays_finite_and_accurate_over_long_sequences(end_rate):
    data = [x.astype(np.float32) for x in sequence(0, 10_000, (2,), end_rate=end_rate, gamma=0.999)]
    got = compiled_estimators(*data, lam=1.0, rho_max=100.0)
    with jax.enable_x64(True):
        exact = jax.device_get(compiled_estimators(*(x.astype(np.float64) for x in data), lam=1.0, rho_max=100.0))
    for name, estimate in got.items():
        assert estimate.dtype == jnp.float32, name
        assert bool(jnp.all(jnp.isfinite(estimate))), name
        assert_close(estimate, exact[name], 1e-4)


@pytest.mark.parametrize("name", [*KINDS, "gae", "targets", "on-policy", "on-policy targets"])
def test_no_gradient_flows(name):
    data = [jnp.asarray(x, jnp.float32) for x in sequence(1, 5, (2,))]
    total = lambda data, lam, rho_max: jnp.sum(all_estimators(*data, lam=lam, rho_max=rho_max)[name])  # noqa: E731
    gradients = jax.grad(total, argnums=(0, 1, 2))(data, 0.9, 5.0)
    assert all(not np.any(g) for g in jax.tree.leaves(gradients))


def test_results_have_the_type_of_the_value(x64):
    ratio, reward, discount, cut, value, next_value = sequence(1, 5)
    for name, got in all_estimators(ratio, reward, discount, cut, value.astype(np.float32), next_value).items():
        assert got.dtype == jnp.float32, name


def test_no_steps_give_no_results():
    empty = np.zeros((0, 2), np.float32)
    assert all(got.shape == (0, 2) for got in all_estimators(*[empty] * 6).values())


ARGUMENTS = ("ratio", "reward", "discount", "cut", "value", "next_value")


@pytest.mark.parametrize("wrong", ["ratio", "reward", "discount", "cut", "next_value"])
@pytest.mark.parametrize("function", ["vtrace", "retrace_gae"])
def test_a_wrong_shape_is_named(function, wrong):
    data = dict(zip(ARGUMENTS, [np.zeros((4, 2), np.float32)] * 6))
    data[wrong] = np.zeros((4, 1), np.float32)
    options = {"lam": 0.9} | ({"rho_max": 1.0} if function == "vtrace" else {})
    with pytest.raises(ValueError, match=rf"^{wrong}: expected the shape of value, \(4, 2\).*, got shape \(4, 1\)$"):
        getattr(returns, function)(**data, **options)


def test_an_unknown_kind_is_named():
    with pytest.raises(ValueError, match=r"^kind: expected one of 'paper', 'retrace', 'vtrace'.*, got 'gae'$"):
        returns.retrace_gae(*sequence(0, 3), lam=0.9, kind="gae")


def test_whole_number_values_are_refused():
    data = [np.zeros(3, np.int32)] * 6
    with pytest.raises(ValueError, match=r"^value: expected a floating-point array.*, got dtype int32$"):
        returns.vtrace(*data, lam=0.9, rho_max=1.0)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"lam": 1.5}, r"^lam: expected a number in \[0, 1\].*, got 1\.5$"),
        ({"lam": None}, r"^lam: expected a number in \[0, 1\].*, got None$"),
        ({"rho_max": -1.0}, r"^rho_max: expected a number in \[0, inf\].*, got -1\.0$"),
        ({"rho_max": 1.0, "rho_min": 2.0}, r"^rho_min: expected a number in \[0, 1\].*, got 2\.0$"),
    ],
)
def test_numbers_out_of_range_are_named(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        returns.vtrace(*sequence(0, 3), **({"lam": 0.9, "rho_max": 5.0} | options))
    if "rho_min" not in options:
        with pytest.raises(ValueError, match=complaint):
            returns.retrace_gae(*sequence(0, 3), **({"lam": 0.9} | options))
    if "lam" in options:
        with pytest.raises(ValueError, match=complaint):
            returns.gae(*sequence(0, 3)[1:], **options)


def test_a_value_without_a_time_axis_is_refused():
    with pytest.raises(ValueError, match=r"^value: expected an array whose first axis is time, got a scalar$"):
        returns.gae(*[np.float32(0)] * 5, lam=0.9)


@given(seed=st.integers(0, 10_000), steps=st.integers(1, 40), lam=st.sampled_from([0.0, 0.9, 1.0]))
def test_noise_is_the_sum_of_squared_terms(x64, seed, steps, lam):
    arrays = sequence(seed, steps, (3,), max_ratio=3.0)
    ratio, reward, discount, cut, value, next_value = arrays
    c, delta = np.minimum(lam, ratio), reward + discount * next_value - value
    expected = np.zeros_like(value)
    for t in range(steps):
        for u in range(t, steps):
            expected[t] += (path_weight(discount, c, cut, t, u) * np.clip(ratio[u], 0.1, 2.0) * delta[u]) ** 2
    got = returns.vtrace_noise(*map(jnp.asarray, arrays), lam=lam, rho_max=2.0, rho_min=0.1)
    np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-12)


def chain(rng, samples, steps):
    """Transitions of a random MDP under beta, the ratios of pi, and the exact V^pi: arrays [T, samples]."""
    states, actions, gamma = 5, 3, 0.9
    P = rng.dirichlet(np.ones(states), size=(states, actions))
    R = rng.normal(size=(states, actions))
    pi, beta = rng.dirichlet(np.ones(actions), size=(2, states))
    V = np.linalg.solve(np.eye(states) - gamma * np.einsum("sa,sat->st", pi, P), (pi * R).sum(1))
    s, rows = rng.integers(states, size=samples), []
    for _ in range(steps):
        a = (rng.random(samples)[:, None] > beta[s].cumsum(1)).sum(1)
        after = (rng.random(samples)[:, None] > P[s, a].cumsum(1)).sum(1).clip(0, states - 1)
        rows.append((pi[s, a] / beta[s, a], R[s, a], np.full(samples, gamma), np.zeros(samples, bool), s, after))
        s = after
    ratio, reward, discount, cut, s, after = (np.stack(x) for x in zip(*rows, strict=True))
    return (ratio, reward, discount, cut), s, after, V


def test_noise_is_all_of_the_residual_for_an_exact_critic_only(x64):
    steps, s, after, V = chain(np.random.default_rng(0), 100_000, 12)
    estimate = {"lam": 0.95, "rho_max": 1e9}

    def squares(critic):
        arrays = [jnp.asarray(x) for x in (*steps, critic[s], critic[after])]
        residual = np.square(np.asarray(returns.vtrace(*arrays, **estimate)) - critic[s])
        return residual[0].mean(), np.asarray(returns.vtrace_noise(*arrays, **estimate))[0].mean()

    residual, noise = squares(V)
    assert abs(residual / noise - 1) < 0.02
    residual, noise = squares(V + 5.0)  # every value is too large: temporal-difference errors keep their sign
    assert residual > 1.3 * noise
