"""Soft policy iteration and its stable-value form: what Haarnoja et al. (2018) prove of them, on random MDPs."""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import xlogy

from nextpolicy.criteria.stable_values import GateParams, StableValues
from nextpolicy.tabular import solve, theory
from nextpolicy.tabular.evaluation import (
    Evaluate,
    PartialEvaluation,
    exact_evaluation,
    noisy_evaluation,
    soft_evaluation,
)
from nextpolicy.tabular.improvement import greedy_step, soft_greedy_step
from nextpolicy.tabular.mdp import FloatArray, TabularMDP, random_mdp, random_policy
from nextpolicy.tabular.policy_iteration import History, on_policy_api, sv_api

GAMMAS = (0.0, 0.3, 0.8, 0.95, 0.99)
FIELDS = ("target", "behaviour", "q", "mu", "diff", "scale", "accepted", "target_value", "behaviour_value")


class CompiledGate(StableValues):
    """The default criterion, compiled: thousands of rounds are decided here."""

    update = staticmethod(jax.jit(StableValues().update))


class Case(NamedTuple):
    """A random MDP, often with a terminal state, a policy and a temperature alpha."""

    mdp: TabularMDP
    pi: FloatArray
    alpha: float


def draw_case(seed: int) -> Case:
    rng = np.random.default_rng(seed)
    states, gamma, sparsity = int(rng.integers(2, 9)), float(rng.choice(GAMMAS)), rng.choice([0.0, 0.5, 1.0])
    drawn = random_mdp(rng, states, int(rng.integers(2, 5)), gamma, sparsity=sparsity, reward_range=(-1.0, 1.0))
    P, R = drawn.P.copy(), drawn.R.copy()
    if rng.random() < 0.5:
        P[-1], R[-1] = np.eye(states)[-1], 0.0  # a terminal state
    mdp = TabularMDP(P, R, gamma, rng.dirichlet(np.ones(states)))
    pi = random_policy(rng, mdp, kind=str(rng.choice(["dirichlet", "deterministic", "uniform"])))
    return Case(mdp, pi, float(10.0 ** rng.uniform(-3.0, 1.0)))


cases = st.builds(draw_case, st.integers(0, 2**32 - 1))
many = settings(max_examples=300, deadline=None, derandomize=True)
some = settings(max_examples=60, deadline=None, derandomize=True)


def soft_run(case: Case, rounds: int = 8, evaluate: Evaluate | None = None) -> History:
    """Algorithm 1 with soft improvement and, by default, exact soft evaluation: soft policy iteration."""
    mdp, pi, alpha = case
    evaluate = soft_evaluation(alpha) if evaluate is None else evaluate
    rng = np.random.default_rng(0)
    return on_policy_api(mdp, pi, evaluate, soft_greedy_step(alpha), rounds=rounds, rng=rng, temperature=alpha)


def gated_run(case: Case, gate: GateParams, rounds: int = 8, evaluate: Evaluate | None = None) -> History:
    """Algorithm 2 with the same parts."""
    mdp, pi, alpha = case
    evaluate = soft_evaluation(alpha) if evaluate is None else evaluate
    options = {"rounds": rounds, "rng": np.random.default_rng(0), "temperature": alpha, "criterion": CompiledGate()}
    return sv_api(mdp, pi, evaluate, soft_greedy_step(alpha), gate, **options)


def slack(case: Case) -> float:
    """Rounding of soft values, which are up to alpha log A / (1 - gamma) larger than the rewards."""
    return float(theory.rounding(case.mdp)) * (1.0 + case.alpha * np.log(case.mdp.actions))


def falls(values: FloatArray) -> float:
    """The largest drop of values [K, S] from one row to the next."""
    return float(-np.diff(values, axis=0).min())


def soft_optimum(case: Case) -> FloatArray:
    """V* [S] by value iteration with log-sum-exp, written independently of the package."""
    mdp, alpha = case.mdp, case.alpha
    V, before, over = np.zeros(mdp.states), np.inf, ends(mdp)
    while np.abs(V - before).max() > 1e-13 * max(1.0, np.abs(V).max()):
        before, V = (
            V,
            np.where(over, 0.0, alpha * np.logaddexp.reduce((mdp.R + mdp.gamma * mdp.P @ V) / alpha, axis=-1)),
        )
    return V


def ends(mdp: TabularMDP) -> list[bool]:
    """Whether each state is terminal."""
    return [bool((mdp.P[s, :, s] == 1.0).all() and not mdp.R[s].any()) for s in range(mdp.states)]


def bellman(case: Case, q: FloatArray) -> FloatArray:
    """The soft Bellman operator T^pi, written independently of the package."""
    mdp, pi, alpha = case
    inside = (pi * q - alpha * xlogy(pi, pi)).sum(-1)
    return mdp.R + mdp.gamma * np.einsum("sat,t->sa", mdp.P, np.where(ends(mdp), 0.0, inside))


@many
@given(case=cases)
def test_soft_evaluation_is_the_fixed_point_of_the_soft_bellman_operator(case: Case) -> None:
    mdp, pi, alpha = case
    Q = solve.action_value(mdp, pi, alpha)
    np.testing.assert_allclose(bellman(case, Q), Q, rtol=0, atol=slack(case))
    for evaluate in (soft_evaluation(alpha), noisy_evaluation(0.0, temperature=alpha)):
        np.testing.assert_array_equal(evaluate(mdp, pi, pi, np.random.default_rng(0)), Q)
    V = solve.state_value(mdp, pi, alpha)
    inside = (pi * Q).sum(-1) + np.where(mdp.terminal, 0.0, -alpha * xlogy(pi, pi).sum(-1))
    np.testing.assert_allclose(V, inside, rtol=0, atol=slack(case))
    assert not V[mdp.terminal].any()


@many
@given(case=cases)
def test_partial_evaluation_applies_the_operator_from_where_it_was(case: Case) -> None:
    mdp, pi, alpha = case
    evaluate, rng, mu = PartialEvaluation(2, alpha), np.random.default_rng(0), solve.visitation(mdp, pi)
    q, Q = np.zeros_like(mdp.R), solve.action_value(mdp, pi, alpha)
    for k in range(1, 4):
        q = bellman(case, bellman(case, q))
        got = evaluate(mdp, pi, mu, rng)
        np.testing.assert_allclose(got, q, rtol=0, atol=slack(case))
        assert np.abs(got - Q).max() <= mdp.gamma ** (2 * k) * np.abs(Q).max() + slack(case)


@some
@given(case=cases)
def test_temperature_zero_is_the_hard_version_bit_for_bit(case: Case) -> None:
    cold, rng = case._replace(alpha=0.0), np.random.default_rng(0)
    mdp, pi, gate = case.mdp, case.pi, GateParams.dynamic(0.05, k_max=3)
    hard = on_policy_api(mdp, pi, exact_evaluation, greedy_step(), rounds=5, rng=rng)
    gated = sv_api(mdp, pi, exact_evaluation, greedy_step(), gate, rounds=5, rng=rng, criterion=CompiledGate())
    for soft, reference in ((soft_run(cold, 5), hard), (gated_run(cold, gate, 5), gated)):
        for name in FIELDS:
            np.testing.assert_array_equal(getattr(soft, name), getattr(reference, name), err_msg=name)
        np.testing.assert_array_equal(soft.certificates.bound, reference.certificates.bound)
    tied = [[1.0, 1.0 - 1e-10, 0.5]]
    np.testing.assert_array_equal(soft_greedy_step(0.0)(np.asarray(tied), pi, pi), [[0.5, 0.5, 0.0]])
    swept = PartialEvaluation(1)(mdp, pi, hard.mu[0], rng)
    np.testing.assert_array_equal(PartialEvaluation(1, 0.0)(mdp, pi, hard.mu[0], rng), swept)
    np.testing.assert_array_equal(swept, mdp.R)


@many
@given(case=cases)
def test_the_temperature_bounds_the_distance_from_the_hard_version(case: Case) -> None:
    mdp, pi, alpha = case
    most = alpha * np.log(mdp.actions) / (1.0 - mdp.gamma) + slack(case)
    gap = solve.state_value(mdp, pi, alpha) - solve.state_value(mdp, pi)
    assert -slack(case) <= gap.min()
    assert gap.max() <= most
    q = solve.action_value(mdp, pi)
    chosen = soft_greedy_step(alpha)(q, pi, pi)
    assert ((q.max(-1) - (chosen * q).sum(-1)) <= alpha * np.log(mdp.actions) + 1e-12).all()


@many
@given(case=cases)
def test_soft_policy_iteration_improves_in_every_state(case: Case) -> None:
    run = soft_run(case)
    values = solve.state_value(case.mdp, run.target, case.alpha)
    assert falls(values) <= slack(case)
    np.testing.assert_allclose(run.target_value, values @ case.mdp.start, rtol=0, atol=slack(case))
    gained = np.diff(run.target_value)
    np.testing.assert_allclose(run.certificates.improvement, gained, rtol=0, atol=slack(case))
    assert run.certificates.holds.all()


@some
@given(case=cases)
def test_the_stable_value_form_improves_in_every_state(case: Case) -> None:
    run = gated_run(case, GateParams.static(3))
    assert np.flatnonzero(run.accepted).tolist() == [2, 5]
    np.testing.assert_array_equal(run.target, run.behaviour[[0, 0, 0, 3, 3, 3, 6, 6, 6]])
    target, behaviour = (solve.state_value(case.mdp, x, case.alpha) for x in (run.target, run.behaviour))
    assert falls(target) <= slack(case)
    assert falls(behaviour) <= slack(case)
    assert (behaviour >= target - slack(case)).all()
    np.testing.assert_allclose(run.behaviour_value, behaviour @ case.mdp.start, rtol=0, atol=slack(case))


@some
@given(case=cases)
def test_both_forms_reach_the_soft_optimum(case: Case) -> None:
    wanted = soft_optimum(case)
    most = 1e-9 * max(1.0, np.abs(wanted).max())
    for run in (soft_run(case, 15), gated_run(case, GateParams.static(2), 30)):
        V = solve.state_value(case.mdp, run.target[-1], case.alpha)
        np.testing.assert_allclose(V, wanted, rtol=0, atol=most)
        assert (solve.state_value(case.mdp, run.target, case.alpha) <= wanted + most).all()


@some
@given(case=cases)
def test_with_a_gate_that_is_always_open_it_is_soft_policy_iteration(case: Case) -> None:
    for evaluate in (lambda: soft_evaluation(case.alpha), lambda: noisy_evaluation(0.3, temperature=case.alpha)):
        plain, gated = soft_run(case, 4, evaluate()), gated_run(case, GateParams.ppo(), 4, evaluate())
        for name in FIELDS:
            np.testing.assert_array_equal(getattr(plain, name), getattr(gated, name), err_msg=name)


@many
@given(case=cases)
def test_certificates_hold_for_soft_values_and_are_tight_with_exact_ones(case: Case) -> None:
    mdp, pi, alpha = case
    rng = np.random.default_rng(1)
    beta, beta_next = random_policy(rng, mdp, batch=(2,))
    exact = solve.action_value(mdp, pi, alpha)
    one = theory.certificate(mdp, pi, beta, beta_next, exact, temperature=alpha)
    gained = solve.start_value(mdp, beta_next, alpha) - solve.start_value(mdp, pi, alpha)
    for number in (one.improvement, one.lower, one.upper):
        assert number == pytest.approx(float(gained), abs=10 * slack(case))
    noisy = exact + rng.uniform(-1.0, 1.0, exact.shape) / (1.0 - mdp.gamma)
    one = theory.certificate(mdp, pi, beta, beta_next, noisy, temperature=alpha)
    assert one.assumptions_met
    assert one.lower - slack(case) <= gained <= one.upper + slack(case)
    assert max(one.bound, one.npa_bound) <= gained + slack(case)


def test_entropy_with_the_wrong_sign_lets_values_fall() -> None:
    """Soft values are linear in alpha, so those of -alpha are 2 Q - Q_alpha. Everything else is as above."""
    fell = 0
    for seed in range(200):
        case = draw_case(seed)

        def wrong(mdp: TabularMDP, pi: FloatArray, _: FloatArray, __: np.random.Generator, alpha=case.alpha):
            return 2.0 * solve.action_value(mdp, pi) - solve.action_value(mdp, pi, alpha)

        run = soft_run(case, evaluate=wrong)
        fell += falls(solve.state_value(case.mdp, run.target, case.alpha)) > 1e-6
    assert fell > 20, fell


def test_the_last_step_of_an_episode_in_closed_form() -> None:
    """One decision, then the end: pi* is the softmax of the rewards, V* their log-sum-exp, and the end is worth 0."""
    P = np.zeros((2, 2, 2))
    P[..., 1] = 1.0
    mdp, alpha = TabularMDP(P, [[1.0, 0.5], [0.0, 0.0]], 0.9, [1, 0]), 0.5
    run = soft_run(Case(mdp, np.full((2, 2), 0.5), alpha), 2)
    odds = np.exp([2.0, 1.0])
    np.testing.assert_allclose(run.target[-1, 0], odds / odds.sum(), rtol=1e-12)
    assert run.target_value[-1] == pytest.approx(alpha * np.log(odds.sum()), rel=1e-12)
    np.testing.assert_array_equal(solve.entropy_bonus(mdp, run.target[-1], alpha)[1], 0.0)


def test_the_target_waits_until_partial_evaluation_has_settled() -> None:
    mdp = random_mdp(np.random.default_rng(0), 8, 3, 0.9, sparsity=0.5)
    case = Case(mdp, random_policy(np.random.default_rng(0), mdp), 0.1)
    run = gated_run(case, GateParams.dynamic(0.001, k_max=1000), 200, PartialEvaluation(2, case.alpha))
    taken = np.flatnonzero(run.accepted)
    np.testing.assert_array_equal(run.accepted[1:], run.diff[1:] <= 0.001 * run.scale[1:])
    assert taken[0] > 10  # from q = 0, at a rate of 0.81 a round
    assert len(taken) > 5
    error = np.abs(run.q - solve.action_value(mdp, run.target[:-1], case.alpha)).max((1, 2))
    # While the target is held, each round shrinks the error by gamma^sweeps.
    held = ~run.accepted[:-1]
    assert (error[1:][held] <= 0.9**2 * error[:-1][held] + 1e-12).all()
    assert (error[taken] <= 0.05).all()
    values = solve.state_value(mdp, run.target, case.alpha)
    assert falls(values) <= 1e-3
    np.testing.assert_allclose(values[-1], soft_optimum(case), atol=1e-3)


def test_bad_arguments() -> None:
    case = draw_case(0)
    for call, message in [
        (lambda: soft_evaluation(-1.0), r"^temperature: expected a number in \[0, inf\), got -1.0$"),
        (lambda: soft_greedy_step(np.nan), "^temperature: expected .*, got nan$"),
        (lambda: PartialEvaluation(0), "^sweeps: expected a whole number of at least 1, got 0$"),
        (lambda: PartialEvaluation(1, np.inf), "^temperature: expected .*, got inf$"),
        (lambda: noisy_evaluation(1.0, temperature=-0.1), "^temperature: expected .*, got -0.1$"),
        (lambda: soft_run(case._replace(alpha=1.0), evaluate=lambda *_: 0.0), "^q from evaluate: expected .*, got"),
        (lambda: solve.state_value(case.mdp, case.pi, "hot"), "^temperature: expected .*, got 'hot'$"),
        (
            lambda: gated_run(case._replace(alpha=-1.0), GateParams.ppo(), evaluate=exact_evaluation),
            "^temperature: expected .*, got -1.0$",
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            call()
