"""When the gate opens, counted round by round, and the decay of k_min in exact fractions."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextpolicy.criteria import CRITERIA, Criterion
from nextpolicy.criteria.bounds import GateState
from nextpolicy.criteria.stable_values import GateParams, StableValues
from nextpolicy.types import Evidence

INF, NAN = float("inf"), float("nan")
gate = StableValues()


def evidence(diff, scale) -> Evidence:
    """A round in which both kinds of diff are the same."""
    return Evidence(*map(jnp.asarray, (diff, diff, scale, 0.0, 0.0, 0.0, 1.0)))


def update(state, diff, scale, params, progress) -> tuple[GateState, Any, dict[str, Any]]:
    return gate.update(state, evidence(diff, scale), params, progress)


def is_stable(metrics) -> np.ndarray:
    return np.asarray(metrics["stable_rounds"]) > 0


def drive(criterion, diffs, scales, params) -> Any:
    """(accepted, stats) of every round of a training as long as `diffs`; any criterion, one call."""
    rounds = len(diffs)

    def one_round(state, inputs):
        round_index, diff, scale = inputs
        state, accept, stats = criterion.update(state, evidence(diff, scale), params, round_index / rounds)
        return state, (accept, stats)

    inputs = (jnp.arange(rounds), jnp.asarray(diffs, jnp.float32), jnp.asarray(scales, jnp.float32))
    return jax.lax.scan(one_round, criterion.init(), inputs)[1]


run_gate = jax.jit(lambda diffs, scales, params: drive(gate, diffs, scales, params))


def accepted_rounds(diffs, scales, params) -> list[int]:
    """The indices of the rounds in which the target changed."""
    return np.flatnonzero(run_gate(jnp.asarray(diffs), jnp.asarray(scales), params)[0]).tolist()


def gate_in_plain_python(diffs, scales, delta_v, k_min, k_max) -> list[int]:
    """Section 4 of the specification without decay, one `if` at a time."""
    held = stable_in_a_row = 0
    accepted = []
    for i, (diff, scale) in enumerate(zip(diffs, scales)):
        finite = math.isfinite(diff) and math.isfinite(scale)
        if not finite:
            stable = False
        elif math.isinf(delta_v):
            stable = True
        else:
            stable = diff <= delta_v * scale
        stable_in_a_row = stable_in_a_row + 1 if stable else 0
        held += 1
        if stable_in_a_row >= k_min or held >= k_max:
            accepted.append(i)
            held = stable_in_a_row = 0
    return accepted


@pytest.mark.parametrize("delta_v", [0.0, 1e-3, 0.5, 1e6, INF])
@pytest.mark.parametrize("k", [1, 2, 8, 9, 50])
def test_static_accepts_once_every_k_rounds_whatever_the_values_do(delta_v, k):
    rounds = 50
    rng = np.random.default_rng(0)
    diffs, scales = rng.exponential(size=(2, rounds))
    diffs[3], scales[5], diffs[7] = 0.0, 0.0, NAN
    expected = list(range(k - 1, rounds, k))
    assert len(expected) == rounds // k
    assert accepted_rounds(diffs, scales, GateParams.static(k, delta_v)) == expected


def test_the_share_of_static_updates_is_that_of_the_published_table():
    accepted = accepted_rounds(np.ones(2441), np.ones(2441), GateParams.static(8))
    assert (len(accepted), accepted[0]) == (305, 7)


@given(
    diffs=st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), min_size=20, max_size=20),
    scales=st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), min_size=20, max_size=20),
)
def test_ppo_accepts_every_round(diffs, scales):
    assert accepted_rounds(diffs, scales, GateParams.ppo()) == list(range(20))


@given(data=st.data(), delta_v=st.sampled_from([0.0, 0.25, 0.5, 1.0, INF]), k_min=st.integers(1, 6))
def test_the_gate_equals_its_definition(data, delta_v, k_min):
    # Multiples of 1/4, exact in single precision, so that ties are ties; and every kind of nonsense.
    numbers = st.one_of(st.integers(0, 8).map(lambda n: n / 4), st.sampled_from([NAN, INF, -INF]))
    common = st.integers(0, 8).map(lambda n: n / 4)
    either = st.one_of(common, common, common, numbers)
    diffs = data.draw(st.lists(either, min_size=40, max_size=40))
    scales = data.draw(st.lists(either, min_size=40, max_size=40))
    k_max = k_min + data.draw(st.integers(0, 8))
    got = accepted_rounds(diffs, scales, GateParams.dynamic(delta_v, k_min, k_max))
    assert got == gate_in_plain_python(diffs, scales, delta_v, k_min, k_max)


def test_stable_rounds_must_be_in_a_row():
    diffs = [0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    assert accepted_rounds(diffs, np.ones(7), GateParams.dynamic(0.5, k_min=3, k_max=33)) == [5]


def test_a_difference_exactly_at_the_threshold_is_stable():
    _, accept, stats = update(gate.init(), 0.5, 2.0, GateParams.dynamic(0.25), 0.0)
    assert bool(accept)
    assert float(stats["diff_over_threshold"]) == 1.0


def test_the_statistics_are_those_of_the_decision_and_the_counters_return_to_zero():
    state = GateState(jnp.asarray(6), jnp.asarray(1))
    new, accept, stats = update(state, 1.0, 8.0, GateParams.dynamic(0.5, k_min=2, k_max=33), 0.5)
    assert bool(accept)
    assert int(stats["stable_rounds"]) == 2
    assert (float(stats["k_min"]), float(stats["k_max"]), float(stats["diff_over_threshold"])) == (2, 33, 0.25)
    assert (int(new.rounds_held), int(new.stable_rounds)) == (0, 0)
    held, accept, _ = update(state, 9.0, 8.0, GateParams.dynamic(0.5, k_min=2, k_max=33), 0.5)
    assert (bool(accept), int(held.rounds_held), int(held.stable_rounds)) == (False, 7, 0)


def exact_k(k: int, decay_fraction: Fraction, progress: Fraction) -> int:
    """ceil(1 + (k - 1) max(0, 1 - p / decay_fraction)) in rational arithmetic."""
    return math.ceil(1 + (k - 1) * max(Fraction(0), 1 - progress / decay_fraction))


@pytest.mark.parametrize("rounds", [20, 40, 195, 1220, 2441, 6103, 24414])
@pytest.mark.parametrize(
    ("k_min", "k_max", "decay_fraction"),
    [
        (9, 33, Fraction(1, 5)),
        (2, 8, Fraction(1, 20)),
        (4, 33, Fraction(1)),
        (9, 33, Fraction(3, 10)),
        (1, 1, Fraction(1, 5)),
    ],
)
def test_decay_equals_exact_fractions_in_every_round(rounds, k_min, k_max, decay_fraction):
    params = GateParams.dynamic(0.1, k_min, k_max, float(decay_fraction), decay_k_max=True)
    _, stats = run_gate(jnp.ones(rounds), jnp.ones(rounds), params)
    for k, got in ((k_min, stats["k_min"]), (k_max, stats["k_max"])):
        assert np.asarray(got).tolist() == [exact_k(k, decay_fraction, Fraction(i, rounds)) for i in range(rounds)]


@pytest.mark.parametrize("rounds", [40, 320, 10_000])
def test_decay_is_exact_outside_jit_too(rounds):
    # The compiler may order the arithmetic so that its last bits come out right by luck; step by step they do not.
    params = GateParams.dynamic(0.1, 9, 33, 0.3, decay_k_max=True)
    stats = update(gate.init(), 1.0, 1.0, params, jnp.arange(rounds) / rounds)[2]
    for k, got in ((9, stats["k_min"]), (33, stats["k_max"])):
        expected = [exact_k(k, Fraction(3, 10), Fraction(i, rounds)) for i in range(rounds)]
        assert np.asarray(got).tolist() == expected


def test_nine_falls_to_one_over_a_fifth_of_training():
    _, stats = run_gate(jnp.ones(1000), jnp.ones(1000), GateParams.dynamic(0.1, 9, 33, 0.2))
    k_min = np.asarray(stats["k_min"])
    assert k_min[0] == 9
    assert set(np.diff(k_min)) == {0, -1}
    assert np.flatnonzero(np.diff(k_min)).tolist() == [24, 49, 74, 99, 124, 149, 174, 199]
    assert np.all(k_min[200:] == 1)
    assert np.all(np.asarray(stats["k_max"]) == 33)


def test_without_a_decay_fraction_nothing_falls():
    _, stats = run_gate(jnp.ones(50), jnp.ones(50), GateParams.dynamic(0.1, 9, 33, 0.0, decay_k_max=True))
    assert np.all(np.asarray(stats["k_min"]) == 9)
    assert np.all(np.asarray(stats["k_max"]) == 33)


@pytest.mark.parametrize(("diff", "scale"), [(NAN, 1.0), (1.0, NAN), (INF, 1.0), (0.0, INF), (0.0, NAN), (-INF, 1.0)])
@pytest.mark.parametrize("delta_v", [0.0, 0.5, INF])
def test_what_is_not_finite_is_never_stable_but_reported_and_k_max_still_opens(diff, scale, delta_v):
    accept, stats = run_gate(jnp.full(8, diff), jnp.full(8, scale), GateParams.dynamic(delta_v, 1, 4))
    assert np.flatnonzero(accept).tolist() == [3, 7]
    assert not np.any(is_stable(stats))
    assert not np.any(np.asarray(stats["diff_over_threshold"]) <= 1)


def test_one_bad_round_breaks_the_row_of_stable_ones():
    accept, stats = run_gate(jnp.array([0.0, NAN, 0.0, 0.0]), jnp.ones(4), GateParams.dynamic(0.5, 2, 9))
    assert np.flatnonzero(accept).tolist() == [3]
    assert np.isnan(np.asarray(stats["diff_over_threshold"])).tolist() == [False, True, False, False]


@pytest.mark.parametrize("diff", [0.0, 3.0])
def test_an_infinite_threshold_calls_a_scale_of_zero_stable(diff):
    _, accept, stats = update(gate.init(), diff, 0.0, GateParams.dynamic(INF, 1, 33), 0.0)
    assert (bool(accept), bool(is_stable(stats)), float(stats["diff_over_threshold"])) == (True, True, 0.0)


def test_a_finite_threshold_with_a_scale_of_zero_takes_only_a_difference_of_zero():
    params = GateParams.dynamic(0.5, 1, 33)
    nothing_moved = update(gate.init(), 0.0, 0.0, params, 0.0)[2]
    assert (bool(is_stable(nothing_moved)), float(nothing_moved["diff_over_threshold"])) == (True, 0.0)
    assert not is_stable(update(gate.init(), 1e-6, 0.0, params, 0.0)[2])


MIXTURE = [
    GateParams.ppo(),
    GateParams.static(9),
    GateParams.static(8, delta_v=0.1),
    GateParams.dynamic(0.5, 2, 8, 0.05, decay_k_max=True),
    GateParams.dynamic(0.3, 9, 33, 0.2),
]


def test_a_population_mixes_ppo_static_and_dynamic_in_one_program():
    diffs, scales = np.random.default_rng(1).exponential(size=(2, len(MIXTURE), 100)).astype(np.float32)
    stacked = jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(x) for x in leaves]), *MIXTURE)
    program = jax.jit(jax.vmap(lambda diffs, scales, params: drive(gate, diffs, scales, params)))
    together, together_stats = program(diffs, scales, stacked)
    counts = set()
    for i, params in enumerate(MIXTURE):
        alone, alone_stats = run_gate(diffs[i], scales[i], params)
        np.testing.assert_array_equal(together[i], alone)
        jax.tree.map(lambda a, b, i=i: np.testing.assert_array_equal(a[i], b), together_stats, alone_stats)
        counts.add(int(np.sum(alone)))
    assert len(counts) == len(MIXTURE), "the variants must differ, or this test shows nothing"
    program(diffs, scales, jax.tree.map(lambda x: x[::-1], stacked))
    assert program._cache_size() == 1, "other numbers must not compile another program"


def test_batched_parameters_work_without_mapping():
    params = GateParams(delta_v=jnp.array([INF, 0.5]), k_min=jnp.array([1, 2]), k_max=jnp.array([1, 33]))
    state, accept, _ = update(gate.init(), 0.1, 1.0, params, 0.0)
    assert accept.tolist() == [True, False]
    assert update(state, 0.1, 1.0, params, 0.1)[1].tolist() == [True, True]


class SmallestYet(NamedTuple):
    """A criterion of one's own: accept whenever the difference is the smallest so far."""

    tolerance: float

    def init(self):
        return jnp.asarray(jnp.inf)

    def update(self, state, evidence, params, progress):
        accept = evidence.diff_target < state - self.tolerance
        smallest = jnp.minimum(state, evidence.diff_target)
        return smallest, accept, {"smallest": smallest}


def test_a_criterion_of_ones_own_works_by_the_same_call():
    criterion: Criterion = SmallestYet(tolerance=0.1)
    accept, stats = jax.jit(lambda d, s: drive(criterion, d, s, None))(
        jnp.array([3.0, 4.0, 2.0, 1.95, 1.0]), jnp.ones(5)
    )
    assert np.flatnonzero(accept).tolist() == [0, 2, 4]
    assert np.asarray(stats["smallest"]).tolist() == pytest.approx([3.0, 3.0, 2.0, 1.95, 1.0])


def test_the_kind_of_diff_is_a_setting() -> None:
    seen = Evidence(*map(jnp.float32, (1.0, 3.0, 4.0, 0.0, 0.0, 0.0, 1.0)))
    for kind, diff in (("target", 1.0), ("network", 3.0)):
        params = GateParams(delta_v=0.5, k_min=1, k_max=9, diff_kind=kind)
        _, accept, metrics = gate.update(gate.init(), seen, params, 0.0)
        assert (float(metrics["diff"]), bool(accept)) == (diff, diff <= 2.0)


def test_the_gate_is_registered_under_its_name() -> None:
    assert CRITERIA["stable-values"] is StableValues


def test_a_member_that_updates_periodically_reports_the_gate_of_that_period() -> None:
    gate = GateParams(delta_v=0.1, k_min=2, k_max=9, decay_fraction=0.3, decay_k_max=True, diff_kind="network")
    assert gate.periodic(4) == GateParams(delta_v=INF, k_min=4, k_max=4, diff_kind="network")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"delta_v": -0.1}, r"^delta_v: expected a number in \[0, inf\].*, got -0\.1"),
        ({"delta_v": NAN}, r"^delta_v: expected a number in \[0, inf\].*, got nan"),
        ({"delta_v": 0.1, "k_min": -1}, r"^k_min: expected a number in \[1, inf\].*, got -1"),
        ({"delta_v": 0.1, "k_min": 0}, r"^k_min: expected .*, got 0"),
        ({"delta_v": 0.1, "k_max": 0}, r"^k_max: expected .*, got 0"),
        (
            {"delta_v": 0.1, "k_min": 5, "k_max": 4},
            r"^k_min: expected a number in \[1, 4\]: k_min may not exceed k_max.*, got 5",
        ),
        (
            {"delta_v": 0.1, "k_min": np.int64(5), "k_max": np.int64(4)},
            r"^k_min: expected .*may not exceed k_max, got 5",
        ),
        ({"delta_v": 0.1, "decay_fraction": -0.1}, r"^decay_fraction: expected a number in \[0, 1\].*, got -0\.1"),
        ({"delta_v": 0.1, "decay_fraction": 1.5}, r"^decay_fraction: expected a number in \[0, 1\].*, got 1\.5"),
        ({"delta_v": 0.1, "decay_fraction": NAN}, r"^decay_fraction: expected .*, got nan"),
        ({"delta_v": "0.1"}, r"^delta_v: expected a number in \[0, inf\].*, got '0\.1'"),
        ({"delta_v": 0.1, "k_max": None}, r"^k_max: expected a number in \[1, inf\].*, got None"),
        ({"delta_v": 0.1, "k_min": np.array([2, -1])}, r"^k_min: expected a number in \[1, inf\].*, got -1"),
    ],
)
def test_bad_parameters_are_named(arguments, complaint):
    with pytest.raises(ValueError, match=complaint):
        GateParams.dynamic(**arguments)


def test_a_static_interval_below_one_is_named():
    with pytest.raises(ValueError, match=r"^k: expected a number in \[1, inf\].*, got 0"):
        GateParams.static(0)
