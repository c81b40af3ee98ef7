"""Algorithms 1 and 2: with exact parts they are policy iteration, and their histories mean what they say."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from nextpolicy.criteria.stable_values import GateParams
from nextpolicy.tabular import four_rooms_mdp, operators, solve, theory
from nextpolicy.tabular.evaluation import exact_evaluation, noisy_evaluation
from nextpolicy.tabular.improvement import conservative_step, greedy_step, mirror_descent_step
from nextpolicy.tabular.mdp import random_mdp, random_policy
from nextpolicy.tabular.policy_iteration import on_policy_api, sv_api


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def small(seed: int = 0, gamma: float = 0.9):
    rng = np.random.default_rng(seed)
    mdp = random_mdp(rng, 8, 3, gamma, sparsity=0.5)
    return mdp, random_policy(rng, mdp)


@pytest.mark.parametrize("seed", range(4))
def test_exact_evaluation_and_greedy_improvement_are_policy_iteration(seed, rng):
    mdp = random_mdp(np.random.default_rng(seed), 40, 3, 0.95, sparsity=0.95)
    pi = random_policy(np.random.default_rng(seed), mdp, kind="deterministic")
    reference = solve.policy_iteration(mdp, pi)
    rounds = len(reference.policies) - 1
    run = on_policy_api(mdp, pi, exact_evaluation, greedy_step(), rounds=rounds, rng=rng)
    assert rounds >= 2
    np.testing.assert_allclose(run.target, reference.policies, atol=1e-12)
    np.testing.assert_allclose(run.target_value, reference.values @ mdp.start, rtol=1e-12)
    assert run.target_value[-1] == pytest.approx(float(solve.optimal(mdp).V @ mdp.start), rel=1e-9)


def test_policy_iteration_on_four_rooms_is_optimal(rng):
    mdp = four_rooms_mdp.four_rooms()
    run = on_policy_api(mdp, np.full((104, 4), 0.25), exact_evaluation, greedy_step(), rounds=6, rng=rng)
    assert run.target_value[0] == pytest.approx(0.0531, abs=5e-5)
    assert run.target_value[-1] == pytest.approx(0.8305, abs=5e-5)


def test_sv_api_with_an_open_gate_is_api():
    mdp, pi = small()
    evaluate, improve = noisy_evaluation(0.5, samples=10.0), mirror_descent_step(1.0)
    plain = on_policy_api(mdp, pi, evaluate, improve, rounds=12, rng=np.random.default_rng(5))
    gated = sv_api(mdp, pi, evaluate, improve, GateParams.ppo(), rounds=12, rng=np.random.default_rng(5))
    for name in ("target", "behaviour", "q", "mu", "diff", "scale", "accepted", "target_value"):
        np.testing.assert_array_equal(getattr(plain, name), getattr(gated, name), err_msg=name)
    np.testing.assert_array_equal(plain.certificates.bound, gated.certificates.bound)


def test_a_static_gate_updates_once_every_k_rounds(rng):
    mdp, pi = small()
    run = sv_api(mdp, pi, exact_evaluation, mirror_descent_step(0.5), GateParams.static(4), rounds=12, rng=rng)
    assert np.flatnonzero(run.accepted).tolist() == [3, 7, 11]
    for k in range(12):
        expected = run.behaviour[k + 1] if run.accepted[k] else run.target[k]
        np.testing.assert_array_equal(run.target[k + 1], expected)
        np.testing.assert_allclose(run.q[k], solve.action_value(mdp, run.target[k]))
        np.testing.assert_allclose(run.mu[k], solve.visitation(mdp, run.behaviour[k]))
        np.testing.assert_allclose(
            run.behaviour[k + 1], operators.mirror_descent(run.behaviour[k], run.q[k], 0.5), rtol=1e-12
        )


def test_a_dynamic_gate_waits_for_the_values_and_the_first_round_is_never_stable(rng):
    mdp, pi = small()
    params = GateParams.dynamic(delta_v=0.01, k_min=1, k_max=50)
    run = sv_api(mdp, pi, exact_evaluation, mirror_descent_step(0.5), params, rounds=10, rng=rng)
    assert run.diff[0] == np.inf
    assert not run.accepted[0]
    # The target stood still in round 0, so with an exact critic round 1 sees no movement at all.
    assert run.diff[1] == 0.0
    assert run.accepted[1]
    expected = [(run.mu[k] * np.abs(run.q[k] - run.q[k - 1])).sum() for k in range(1, 10)]
    np.testing.assert_allclose(run.diff[1:], expected)
    np.testing.assert_allclose(run.scale, (run.mu * np.abs(run.q)).sum((1, 2)))
    np.testing.assert_array_equal(run.accepted[1:], run.diff[1:] <= 0.01 * run.scale[1:])


def test_the_criterion_learns_how_far_the_run_has_come(rng):
    class Listener(NamedTuple):
        heard: list

        def init(self):
            return 0

        def update(self, state, evidence, params, progress):
            self.heard.append(float(progress))
            return state, False, {}

    mdp, pi = small()
    listener = Listener([])
    sv_api(mdp, pi, exact_evaluation, greedy_step(), None, rounds=4, rng=rng, criterion=listener)
    assert listener.heard == [0.0, 0.25, 0.5, 0.75]


def test_any_criterion_may_decide(rng):
    class Every3rd(NamedTuple):
        def init(self):
            return 0

        def update(self, state, evidence, params, progress):
            return state + 1, state % params == params - 1, {}

    mdp, pi = small()
    run = sv_api(mdp, pi, exact_evaluation, greedy_step(), 3, rounds=7, rng=rng, criterion=Every3rd())
    assert np.flatnonzero(run.accepted).tolist() == [2, 5]


def test_certificates_judge_every_round_and_hold(rng):
    mdp, pi = small(gamma=0.8)
    evaluate = noisy_evaluation(1.0, samples=50.0)
    run = sv_api(mdp, pi, evaluate, mirror_descent_step(0.3), GateParams.static(5), rounds=40, rng=rng)
    assert run.certificates.holds.shape == (40,)
    assert run.certificates.assumptions_met.all()
    assert run.certificates.holds.all()
    k = 7
    one = theory.certificate(mdp, run.target[k], run.behaviour[k], run.behaviour[k + 1], run.q[k])
    assert run.certificates.bound[k] == pytest.approx(float(one.bound), rel=1e-10)
    taken = np.flatnonzero(run.accepted)
    np.testing.assert_allclose(
        run.certificates.improvement[taken], (run.target_value[1:] - run.target_value[:-1])[taken], atol=1e-12
    )


def test_conservative_iteration_never_gets_worse_and_keeps_its_bound(rng):
    mdp, pi = small(gamma=0.8)
    run = on_policy_api(mdp, pi, exact_evaluation, conservative_step(mdp.gamma), rounds=60, rng=rng)
    gained = np.diff(run.target_value)
    assert (gained >= -1e-12).all()
    assert gained[:10].min() > 0
    for k in range(20):
        best = operators.greedy(run.q[k])
        visited = run.mu[k].sum(-1)
        gain = (visited * ((best - run.target[k]) * run.q[k]).sum(-1)).sum()
        delta = min(0.2 * gain / (4 * 0.8), 5.0)
        np.testing.assert_allclose(run.target[k + 1], theory.cpi_step(mdp, run.target[k], best, delta), atol=1e-12)
        bound = theory.cpi_bound(mdp, run.target[k], best, delta)
        assert 0 <= bound <= gained[k] + 1e-12
        for other in (0.5 * delta, 1.5 * delta):  # the step chosen is the one with the best promise
            assert theory.cpi_bound(mdp, run.target[k], best, other) <= bound


def test_conservative_iteration_with_a_fixed_step(rng):
    mdp, pi = small()
    run = on_policy_api(mdp, pi, exact_evaluation, conservative_step(mdp.gamma, delta=2.0), rounds=1, rng=rng)
    expected = 0.8 * pi + 0.2 * operators.greedy(solve.action_value(mdp, pi))
    np.testing.assert_allclose(run.target[1], expected, atol=1e-12)


def test_noise_is_largest_where_data_are_scarce():
    mdp, pi = small()
    mu = np.zeros((8, 3))
    mu[0, 0] = 1.0
    evaluate, rng = noisy_evaluation(0.5, samples=99.0), np.random.default_rng(0)
    errors = np.stack([evaluate(mdp, pi, mu, rng) for _ in range(4000)]) - solve.action_value(mdp, pi)
    assert errors[:, 0, 0].std() == pytest.approx(0.05, rel=0.05)
    assert errors[:, 3, 1].std() == pytest.approx(0.5, rel=0.05)
    wild = noisy_evaluation(1e3)(mdp, pi, mu, rng) - solve.action_value(mdp, pi)
    assert np.abs(wild).max() <= 10.0 + 1e-9
    free = noisy_evaluation(1e3, bounded=False)(mdp, pi, mu, rng) - solve.action_value(mdp, pi)
    assert np.abs(free).max() > 100.0


def test_runs_repeat_with_the_same_generator():
    mdp, pi = small()
    runs = [
        sv_api(
            mdp,
            pi,
            noisy_evaluation(1.0),
            mirror_descent_step(0.1),
            GateParams.dynamic(0.2, k_max=6),
            rounds=20,
            rng=np.random.default_rng(seed),
        )
        for seed in (1, 1, 2)
    ]
    np.testing.assert_array_equal(runs[0].target, runs[1].target)
    assert np.abs(runs[0].target[-1] - runs[2].target[-1]).max() > 1e-6


def test_bad_arguments(rng):
    mdp, pi = small()
    exact, greedy = exact_evaluation, greedy_step()
    run = lambda **changes: on_policy_api(  # noqa: E731
        **({"mdp": mdp, "pi": pi, "evaluate": exact, "improve": greedy, "rounds": 1, "rng": rng} | changes)
    )
    gated = lambda **changes: sv_api(  # noqa: E731
        **(
            {"mdp": mdp, "pi": pi, "evaluate": exact, "improve": greedy, "rounds": 1, "rng": rng}
            | {"criterion_params": GateParams.ppo()}
            | changes
        )
    )
    for call, message in [
        (lambda: run(rounds=0), "rounds: expected .*, got 0"),
        (lambda: run(rounds=2.0), "rounds: expected .*, got 2.0"),
        (lambda: run(pi=np.stack([pi, pi])), "pi: expected one policy .*, got shape"),
        (lambda: run(evaluate=lambda *_: np.zeros(8)), r"q from evaluate: expected .*, got shape \(8,\)"),
        (lambda: run(evaluate=lambda *_: np.full((8, 3), np.nan)), "q from evaluate: expected .*, got nan"),
        (
            lambda: run(improve=lambda q, policy, mu: q * 0),
            "policy from improve: expected .*, got probabilities that sum to 0",
        ),
        (lambda: gated(rounds=-1), "rounds: expected .*, got -1"),
        (lambda: gated(pi=pi[:3]), "pi: expected .*, got shape"),
        (lambda: gated(improve=lambda q, policy, mu: -policy), "policy from improve: expected .*, got a negative"),
        (lambda: noisy_evaluation(-1.0), "sigma: expected .*, got -1.0"),
        (lambda: noisy_evaluation(1.0, samples=np.inf), "samples: expected .*, got inf"),
        (lambda: conservative_step(1.0), "gamma: expected .*, got 1.0"),
        (lambda: conservative_step(0.9, delta=11.0), "delta: expected None or a number .*, got 11.0"),
        (lambda: conservative_step(0.9, delta=-1.0), "delta: expected None or a number .*, got -1.0"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()
