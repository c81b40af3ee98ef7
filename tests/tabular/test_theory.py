"""The statements that hold are never violated; those that do not hold have counterexamples, found by search.

Rounding: an inequality may be missed by 1e-12 times the scale 1 / (1 - gamma)^2 (`theory.rounding`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nextpolicy.tabular import four_rooms_mdp, operators, solve, theory
from nextpolicy.tabular.mdp import FloatArray, TabularMDP, random_mdp, random_policy

GAMMAS = (0.0, 0.3, 0.5, 0.8, 0.9, 0.95, 0.99)
POLICIES = ("dirichlet", "deterministic", "near", "greedy")
ESTIMATES = ("exact", "small", "bounded", "adversarial", "wild")


class Case(NamedTuple):
    """One random situation: `wild` estimates break the bounded-error assumption, the others keep it."""

    mdp: TabularMDP
    pi: FloatArray
    beta: FloatArray
    beta_next: FloatArray
    q: FloatArray
    mu: FloatArray
    bounded: bool


def draw_policy(rng: np.random.Generator, mdp: TabularMDP, kind: str, near: FloatArray, q: FloatArray) -> FloatArray:
    if kind == "near":
        return operators.mixture(near, random_policy(rng, mdp, kind="deterministic"), rng.random() ** 4)
    return operators.greedy(q) if kind == "greedy" else random_policy(rng, mdp, kind=kind)


def draw_estimate(rng: np.random.Generator, Q: FloatArray, kind: str, gamma: float) -> FloatArray:
    largest = 1.0 / (1.0 - gamma)
    error = {
        "exact": np.zeros_like(Q),
        "small": 0.01 * rng.normal(size=Q.shape).clip(-1, 1),
        "bounded": rng.uniform(-largest, largest, size=Q.shape),
        "adversarial": largest * rng.choice([-1.0, 1.0], size=Q.shape),
        "wild": 10.0 * largest * rng.normal(size=Q.shape),
    }[kind]
    return Q + error


def draw_case(seed: int, gamma: float, kinds: tuple[str, str, str], estimate: str, anywhere: bool = False) -> Case:
    """`anywhere` starts in a random state instead of state 0."""
    rng = np.random.default_rng(seed)
    mdp = random_mdp(rng, int(rng.integers(2, 9)), int(rng.integers(2, 5)), gamma, sparsity=rng.choice([0.0, 0.5, 1.0]))
    if rng.random() < 0.5:  # rewards at the ends of their range
        mdp = TabularMDP(mdp.P, mdp.R.round(), gamma, mdp.start)
    if anywhere:
        mdp = TabularMDP(mdp.P, mdp.R, gamma, np.random.default_rng([seed, 1]).dirichlet(np.ones(mdp.states)))
    pi = random_policy(rng, mdp, kind="deterministic" if kinds[0] == "deterministic" else "dirichlet")
    q = draw_estimate(rng, solve.action_value(mdp, pi), estimate, gamma)
    beta = draw_policy(rng, mdp, kinds[1], pi, q)
    beta_next = draw_policy(rng, mdp, kinds[2], beta, q)
    mu = rng.exponential(size=q.shape) ** rng.choice([1.0, 6.0])
    return Case(mdp, pi, beta, beta_next, q, mu / mu.sum(), estimate != "wild")


cases = st.builds(
    draw_case,
    seed=st.integers(0, 2**32 - 1),
    gamma=st.sampled_from(GAMMAS),
    kinds=st.tuples(*[st.sampled_from(POLICIES)] * 3),
    estimate=st.sampled_from(ESTIMATES),
    anywhere=st.booleans(),
)


def assert_what_holds(case: Case) -> None:
    """Every statement that holds, on one case."""
    mdp, pi, beta, beta_next, q, mu, bounded = case
    slack, scale = theory.rounding(mdp, q), 1.0 / (1.0 - mdp.gamma)
    one = theory.certificate(mdp, pi, beta, beta_next, q)
    gained = one.improvement

    # Performance difference lemma.
    assert abs(theory.performance_difference(mdp, pi, beta_next) - gained) <= slack
    # Theorem 1, both sides, any q.
    assert one.lower <= gained + slack
    assert gained <= one.upper + slack
    # Lemma tv: policies within delta (1 - gamma) of each other visit within delta.
    assert one.npa_distance <= one.delta + slack
    # The rest assumes a bounded error: a wild estimate is clipped first, so that every case counts.
    if not bounded:
        Q = solve.action_value(mdp, pi)
        q = Q + np.clip(q - Q, -scale, scale)
        one = theory.certificate(mdp, pi, beta, beta_next, q)
    assert one.assumptions_met
    # Lemma tv_dist, for arbitrary data, with constant 1, which is enough; the source states 2.
    error, shift = theory.weighted_error(mdp, pi, q, mu), theory.npa_distance(mdp, beta_next, mu)
    assert one.next_error <= error + scale * shift + slack
    # Corollary, for arbitrary data, and the SV-API theorem, for the data of beta.
    assert theory.npa_bound(mdp, pi, beta_next, q, mu) <= gained + slack
    assert one.bound <= gained + slack
    # Conservative policy iteration as it should read, for any mixing partner.
    delta = np.random.default_rng(len(q)).random() ** 3 * scale
    step = theory.cpi_step(mdp, pi, beta_next, delta)
    assert theory.cpi_bound(mdp, pi, beta_next, delta) <= theory.improvement(mdp, pi, step) + slack


@pytest.mark.parametrize("count", [500, pytest.param(5_000, marks=pytest.mark.slow)])
def test_no_statement_that_holds_is_ever_violated(count: int) -> None:
    given(case=cases)(settings(max_examples=count, suppress_health_check=list(HealthCheck))(assert_what_holds))()


@settings(max_examples=300, deadline=None, derandomize=True)
@given(case=cases)
def test_certificate_is_made_of_the_functions_beside_it(case):
    mdp, pi, beta, beta_next, q, _, bounded = case
    one = theory.certificate(mdp, pi, beta, beta_next, q)
    data, after = solve.visitation(mdp, beta), solve.visitation(mdp, beta_next)
    near = lambda x: pytest.approx(float(x), abs=float(10 * theory.rounding(mdp, q)))  # noqa: E731
    assert one.bound == near(theory.sv_bound(mdp, pi, beta, beta_next, q))
    assert one.improvement == near(theory.improvement(mdp, pi, beta_next))
    assert one.expected_advantage == near(theory.expected_advantage(mdp, pi, beta_next, q))
    assert one.error == near(theory.weighted_error(mdp, pi, q, data))
    assert one.next_error == near(theory.weighted_error(mdp, pi, q, after))
    assert one.npa_distance == near(theory.npa_distance(mdp, beta_next, data))
    assert one.npa_bound == near(theory.npa_bound(mdp, pi, beta_next, q, data))
    assert (one.lower, one.upper) == tuple(map(near, theory.improvement_bounds(mdp, pi, beta_next, q)))
    assert one.delta == near(theory.policy_distance(mdp, beta, beta_next) / (1 - mdp.gamma))
    assert one.largest_error == near(np.abs(solve.action_value(mdp, pi) - q).max())
    assert one.vacuous == (one.bound <= 0)
    assert one.assumptions_met or not bounded
    assert one.holds or not one.assumptions_met


def search(estimate: str, violated, tries: int = 6_000) -> list[Case]:
    """Cases, out of `tries` random ones, where `violated(case)`."""
    rng = np.random.default_rng(0)
    found = []
    for seed in range(tries):
        kinds = tuple(rng.choice(POLICIES, size=3))
        case = draw_case(seed, float(rng.choice(GAMMAS[1:])), kinds, estimate)
        if violated(case):
            found.append(case)
    return found


def test_cpi_as_printed_is_false():
    def violated(case: Case) -> bool:
        best = solve.optimal(case.mdp).pi
        delta = 0.1
        claimed = theory.cpi_bound_as_printed(case.mdp, case.pi, best, delta)
        step = theory.cpi_step(case.mdp, case.pi, best, delta)
        return bool(claimed > theory.improvement(case.mdp, case.pi, step) + 1e-6)

    assert search("exact", violated, tries=1_000)


def unseen_door() -> tuple[TabularMDP, FloatArray, FloatArray]:
    """Two states. Action 1 leads from 0 to 1 and there pays 1 and stays; action 0 leads to 0 and pays nothing.

    pi always takes action 0, so it sees no advantage in leaving; the optimal policy always takes action 1.
    """
    P = np.zeros((2, 2, 2))
    P[:, 0, 0] = P[:, 1, 1] = 1.0
    mdp = TabularMDP(P, R=[[0.0, 0.0], [0.0, 1.0]], gamma=0.9, start=[1, 0])
    return mdp, np.array([[1.0, 0.0]] * 2), np.array([[0.0, 1.0]] * 2)


def test_cpi_as_printed_fails_on_two_states():
    mdp, pi, best = unseen_door()
    delta = 0.1  # mixture coefficient 0.01
    gained = theory.improvement(mdp, pi, theory.cpi_step(mdp, pi, best, delta))
    # A step of alpha = 0.01 is taken twice before anything is paid: gamma alpha^2 / (1 - gamma) = 0.0009.
    assert gained == pytest.approx(0.9 * 0.01**2 / 0.1)
    # Printed: (0.01 x 0.9 - 2 x 0.01 x 0.9) / 0.1 is negative; at delta 0.02 it is not.
    assert theory.cpi_bound(mdp, pi, best, delta) == pytest.approx(-2 * 0.01 * 0.9 / 0.1)
    delta = 0.02
    gained = theory.improvement(mdp, pi, theory.cpi_step(mdp, pi, best, delta))
    assert gained == pytest.approx(0.9 * 0.002**2 / 0.1)
    assert theory.cpi_bound_as_printed(mdp, pi, best, delta) == pytest.approx((0.002 * 0.9 - 2 * 0.0004 * 0.9) / 0.1)
    assert theory.cpi_bound_as_printed(mdp, pi, best, delta) > 100 * gained
    assert theory.cpi_bound(mdp, pi, best, delta) < 0 < gained


def test_theorem_one_fails_with_the_estimate_in_place_of_the_true_value():
    def violated(case: Case) -> bool:
        mdp, q = case.mdp, case.q
        after = solve.visitation(mdp, case.beta_next)
        estimated = (after * (q - (case.pi * q).sum(-1, keepdims=True))).sum()
        error = theory.weighted_error(mdp, case.pi, q, after)
        lower = (estimated - error) / (1 - mdp.gamma)
        return bool(lower > theory.improvement(mdp, case.pi, case.beta_next) + 1e-6)

    assert search("bounded", violated, tries=1_000)


def test_tv_dist_needs_its_bounded_error():
    def violated(case: Case) -> bool:
        mdp, pi, q = case.mdp, case.pi, case.q
        after = solve.visitation(mdp, case.beta_next)
        shift = 2.0 / (1.0 - mdp.gamma) * theory.npa_distance(mdp, case.beta_next, case.mu)
        gap = theory.weighted_error(mdp, pi, q, after) - theory.weighted_error(mdp, pi, q, case.mu)
        return bool(gap > shift + 1e-6)

    found = search("wild", violated, tries=1_000)
    assert found
    mdp, pi, beta, beta_next, q, *_ = found[0]
    assert not theory.certificate(mdp, pi, beta, beta_next, q).assumptions_met


def test_the_sv_bound_can_fail_without_its_assumption():
    """beta and beta_next differ a little, and q is wrong by far more than 1 / (1 - gamma) just where they do."""
    mdp, pi, best = unseen_door()
    beta, beta_next = pi, operators.mixture(pi, best, 0.01)
    q = solve.action_value(mdp, pi) + np.array([[0.0, 1_000.0], [0.0, 0.0]])
    one = theory.certificate(mdp, pi, beta, beta_next, q)
    assert not one.assumptions_met
    assert not one.holds
    assert not one.vacuous


def test_tv_dist_with_constant_one_is_tight():
    """mu sits where q is right, the next policy where it is wrong by 1 / (1 - gamma)."""
    mdp, pi, best = unseen_door()
    after = solve.visitation(mdp, best)
    q = solve.action_value(mdp, pi) + np.where(after > 0, 1.0 / (1.0 - mdp.gamma), 0.0)
    mu = np.zeros((2, 2))
    mu[0, 0] = 1.0
    assert theory.weighted_error(mdp, pi, q, mu) == 0.0
    assert theory.npa_distance(mdp, best, mu) == pytest.approx(1.0)
    assert theory.weighted_error(mdp, pi, q, after) == pytest.approx(1.0 / (1.0 - mdp.gamma))


def test_certificates_take_batches():
    rng = np.random.default_rng(0)
    mdp = four_rooms_mdp.four_rooms()
    pi, beta, beta_next = (random_policy(rng, mdp, batch=(2, 3)) for _ in range(3))
    q = solve.action_value(mdp, pi) + rng.normal(size=pi.shape)
    together = theory.certificates(mdp, pi, beta, beta_next, q)
    assert together.holds.shape == (2, 3)
    for i, j in np.ndindex(2, 3):
        one = theory.certificate(mdp, pi[i, j], beta[i, j], beta_next[i, j], q[i, j])
        for name, value in vars(one).items():
            np.testing.assert_allclose(getattr(together, name)[i, j], value, rtol=1e-10, err_msg=name)


def test_a_certificate_that_promises_something():
    """An exact critic and a settled behaviour: the bound is positive, and true."""
    mdp = four_rooms_mdp.four_rooms()
    pi = np.full((104, 4), 0.25)
    best = solve.optimal(mdp).pi
    one = theory.certificate(mdp, pi, best, best, solve.action_value(mdp, pi))
    assert not one.vacuous
    assert one.assumptions_met
    assert one.bound == pytest.approx(float(one.improvement), rel=1e-9)
    assert one.improvement == pytest.approx(0.8305 - 0.0531, abs=1e-4)
    assert theory.certificate(mdp, pi, best, best, solve.action_value(mdp, pi), delta=0.5).vacuous


def test_a_promise_of_nothing_is_vacuous_and_kept():
    mdp, pi, _ = unseen_door()
    one = theory.certificate(mdp, pi, pi, pi, solve.action_value(mdp, pi))
    assert (float(one.bound), float(one.improvement)) == (0.0, 0.0)
    assert one.vacuous
    assert one.holds


def test_total_variation_is_half_the_distance():
    assert theory.total_variation([1.0, 0.0], [0.0, 1.0]) == 1.0
    np.testing.assert_allclose(theory.total_variation([[0.5, 0.5], [1, 0]], [[0.25, 0.75], [1, 0]]), [0.25, 0.0])


def test_bad_arguments():
    mdp, pi, best = unseen_door()
    q = np.zeros((2, 2))
    for call, message in [
        (
            lambda: theory.weighted_error(mdp, pi, q, np.ones((2, 2))),
            "mu: expected .*, got probabilities that sum to 4",
        ),
        (lambda: theory.weighted_error(mdp, pi, np.zeros(3), pi / 2), r"q: expected .*, got shape \(3,\)"),
        (
            lambda: theory.expected_advantage(mdp, pi, [[2, 0], [1, 0]], q),
            "^pi_next: expected .*, got probabilities that sum to 2",
        ),
        (lambda: theory.improvement(mdp, pi, pi[:1]), "^pi_next: expected .*, got shape"),
        (lambda: theory.performance_difference(mdp, pi, pi[:1]), "^pi_next: expected .*, got shape"),
        (lambda: theory.npa_distance(mdp, pi[:1], pi / 2), "^pi_next: expected .*, got shape"),
        (lambda: theory.total_variation([1.0], [1.0, 0.0]), "q: expected .*, got shape"),
        (lambda: theory.npa_distance(mdp, pi, np.zeros((2, 2))), "mu: expected .*, got probabilities that sum to 0"),
        (lambda: theory.improvement_bounds(mdp, pi, best, [[np.nan, 0]] * 2), "q: expected .*, got nan"),
        (lambda: theory.npa_bound(mdp, pi, best, q, -pi), "mu: expected .*, got a negative probability"),
        (lambda: theory.sv_bound(mdp, pi, pi, best, q, delta=1.0), r"delta: expected at least .* = 10.*, got 1"),
        (lambda: theory.certificate(mdp, pi, pi, best, q, delta=1.0), "delta: expected .*, got 1"),
        (lambda: theory.certificate(mdp, pi, [[1, 1]] * 2, best, q), "beta: expected .*, got probabilities"),
        (lambda: theory.cpi_bound(mdp, pi, best, 10.5), r"delta: expected a number in .* \[0, 10\].*, got 10.5"),
        (lambda: theory.cpi_bound_as_printed(mdp, pi, best, -1.0), "delta: expected .*, got -1.0"),
        (lambda: theory.cpi_step(mdp, pi, np.ones((2, 2)), 1.0), "pi_greedy: expected .*, got probabilities"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()
