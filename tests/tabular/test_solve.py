"""Solvers and operators against truths written elsewhere: linear programming, power sums, closed forms, sampling."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linprog

from nextpolicy.core import returns
from nextpolicy.tabular import four_rooms_mdp, operators, solve
from nextpolicy.tabular.mdp import TabularMDP, random_mdp, random_policy

RNG_SEEDS = range(5)


def chain(p: float, q: float, gamma: float) -> TabularMDP:
    """One action, two states: 0 -> 1 with probability p, 1 -> 0 with probability q; state 1 pays 1."""
    return TabularMDP(P=[[[1 - p, p]], [[q, 1 - q]]], R=[[0.0], [1.0]], gamma=gamma, start=[1, 0])


def test_two_state_chain_in_closed_form():
    p, q, gamma = 0.3, 0.1, 0.95
    mdp, pi = chain(p, q, gamma), np.ones((2, 1))
    # The two eigenvalues of the chain are 1 and 1 - p - q; V follows by hand.
    spread = (1 - gamma) * (1 - gamma * (1 - p - q))
    np.testing.assert_allclose(
        solve.state_value(mdp, pi), [gamma * p / spread, (1 - gamma * (1 - p)) / spread], rtol=1e-12
    )
    occupied = gamma * p / (1 - gamma * (1 - p - q))
    np.testing.assert_allclose(solve.visitation(mdp, pi)[:, 0], [1 - occupied, occupied], rtol=1e-12)


@pytest.mark.parametrize("seed", RNG_SEEDS)
def test_optimal_values_agree_with_linear_programming(seed):
    rng = np.random.default_rng(seed)
    mdp = random_mdp(rng, 8, 3, 0.9, sparsity=0.4)
    # The least V with V(s) >= R(s, a) + gamma P V for every s, a.
    rows = (mdp.gamma * mdp.P - np.eye(8)[:, None, :]).reshape(-1, 8)
    program = linprog(np.ones(8), A_ub=rows, b_ub=-mdp.R.ravel(), bounds=(None, None))
    best = solve.optimal(mdp)
    np.testing.assert_allclose(best.V, program.x, atol=1e-8)
    np.testing.assert_allclose(solve.value_iteration(mdp, tolerance=1e-11), best.V, atol=1e-10)
    np.testing.assert_allclose(solve.state_value(mdp, best.pi), best.V, atol=1e-9)
    np.testing.assert_allclose(best.Q.max(-1), best.V, atol=1e-10)


@pytest.mark.parametrize("seed", RNG_SEEDS)
def test_visitation_is_the_discounted_power_sum(seed):
    rng = np.random.default_rng(seed)
    mdp = random_mdp(rng, 6, 3, 0.9, sparsity=0.5)
    mdp = TabularMDP(mdp.P, mdp.R, mdp.gamma, rng.dirichlet(np.ones(6)))
    pi = random_policy(rng, mdp)
    occupied, total = mdp.start.copy(), np.zeros((6, 3))
    for n in range(400):
        total += (1 - mdp.gamma) * mdp.gamma**n * occupied[:, None] * pi
        occupied = np.einsum("s,sa,sat->t", occupied, pi, mdp.P)
    np.testing.assert_allclose(solve.visitation(mdp, pi), total, atol=1e-14)
    assert solve.visitation(mdp, pi).sum() == pytest.approx(1.0, abs=1e-13)
    mean_reward = (solve.visitation(mdp, pi) * mdp.R).sum()
    assert mean_reward / (1 - mdp.gamma) == pytest.approx(float(solve.start_value(mdp, pi)), rel=1e-12)


@pytest.mark.parametrize("seed", RNG_SEEDS)
def test_values_are_consistent(seed):
    rng = np.random.default_rng(seed)
    mdp = random_mdp(rng, 7, 3, 0.97)
    pi = random_policy(rng, mdp)
    V, Q = solve.state_value(mdp, pi), solve.action_value(mdp, pi)
    np.testing.assert_allclose((pi * Q).sum(-1), V, rtol=1e-12)
    np.testing.assert_allclose(Q, mdp.R + mdp.gamma * np.einsum("sat,t->sa", mdp.P, V), rtol=1e-12)
    np.testing.assert_allclose((pi * solve.advantage(mdp, pi)).sum(-1), 0.0, atol=1e-12)


def test_batches_equal_one_at_a_time_also_across_slices(monkeypatch):
    rng = np.random.default_rng(0)
    mdp = random_mdp(rng, 4, 2, 0.9)
    pis = random_policy(rng, mdp, batch=(3, 5))
    monkeypatch.setattr(solve, "_SLICE", 4)
    for function in (solve.state_value, solve.action_value, solve.visitation, solve.advantage, solve.start_value):
        together = function(mdp, pis)
        apart = np.stack([np.stack([function(mdp, pi) for pi in row]) for row in pis])
        assert together.shape == apart.shape
        np.testing.assert_allclose(together, apart, rtol=1e-13, atol=1e-14)


def test_ties_share_probability():
    P = np.zeros((2, 3, 2))
    P[..., 1] = 1.0
    mdp = TabularMDP(P, R=[[1.0, 1.0 - 1e-10, 0.5], [0.0, 0.0, 0.0]], gamma=0.9, start=[1, 0])
    np.testing.assert_allclose(solve.optimal(mdp).pi, [[0.5, 0.5, 0.0], [1 / 3, 1 / 3, 1 / 3]])


def test_policy_iteration_improves_everywhere_until_optimal():
    mdp = four_rooms_mdp.four_rooms()
    always_up = np.eye(4)[np.zeros(104, int)]
    run = solve.policy_iteration(mdp, always_up)
    np.testing.assert_array_equal(run.policies[0], always_up)
    assert len(run.policies) > 3
    assert (np.diff(run.values, axis=0) >= -1e-12).all()
    np.testing.assert_allclose(run.values[-1], solve.optimal(mdp).V, atol=1e-9)


def test_renormalised_visitation_drops_the_terminal_part():
    mdp = four_rooms_mdp.four_rooms()
    pi = np.full((104, 4), 0.25)
    full, alive = solve.visitation(mdp, pi), solve.renormalised_visitation(mdp, pi)
    goal = four_rooms_mdp.state_index(*four_rooms_mdp.GOAL)
    assert alive.sum() == pytest.approx(1.0)
    assert alive[goal].sum() == 0.0
    others = np.arange(104) != goal
    np.testing.assert_allclose(alive[others], full[others] / full[others].sum())


def test_value_iteration_at_gamma_zero_and_when_stopped_early():
    mdp = random_mdp(np.random.default_rng(0), 4, 2, 0.0)
    np.testing.assert_allclose(solve.value_iteration(mdp), mdp.R.max(-1))
    with pytest.raises(RuntimeError, match="after 3 iterations"):
        solve.value_iteration(random_mdp(np.random.default_rng(0), 4, 2, 0.99), iterations=3)
    with pytest.raises(RuntimeError, match="after 1 iterations"):
        solve.policy_iteration(four_rooms_mdp.four_rooms(), iterations=1)


def test_both_ends_of_the_clipping_count():
    mdp = random_mdp(np.random.default_rng(0), 1, 3, 0.9)
    pi, beta = [[0.1, 0.3, 0.6]], [[0.5, 0.3, 0.2]]
    # Ratios 0.2, 1 and 3 become 0.4, 1 and 2; times beta that is 0.2, 0.3 and 0.4.
    clipped = operators.clipped_target(mdp, pi, beta, rho_min=0.4, rho_max=2.0)
    np.testing.assert_allclose(clipped, [[2 / 9, 3 / 9, 4 / 9]])
    operator = operators.vtrace_operator(mdp, pi, beta, lam=0.8, rho_min=0.4, rho_max=2.0)
    np.testing.assert_allclose(operator.fixed_point(), solve.state_value(mdp, clipped), rtol=1e-12)


def test_value_iteration_is_as_accurate_as_asked():
    # The changes shrink by gamma only, so the last one is a hundred times smaller than what is still missing.
    mdp = random_mdp(np.random.default_rng(0), 6, 2, 0.99)
    V = solve.value_iteration(mdp, tolerance=1e-3)
    assert 1e-5 < np.abs(V - solve.optimal(mdp).V).max() <= 1e-3


@pytest.mark.parametrize("lam", [0.0, 0.7, 1.0])
def test_vtrace_fixed_point_is_the_target_value_without_clipping(lam):
    rng = np.random.default_rng(1)
    mdp = random_mdp(rng, 6, 3, 0.9, sparsity=0.3)
    pi, beta = random_policy(rng, mdp), random_policy(rng, mdp)
    free = operators.vtrace_operator(mdp, pi, beta, lam=lam)
    np.testing.assert_allclose(free.fixed_point(), solve.state_value(mdp, pi), rtol=1e-10)
    clipped = operators.vtrace_operator(mdp, pi, beta, lam=lam, rho_max=1.0)
    between = operators.clipped_target(mdp, pi, beta, rho_max=1.0)
    np.testing.assert_allclose(clipped.fixed_point(), solve.state_value(mdp, between), rtol=1e-10)
    assert np.abs(clipped.fixed_point() - free.fixed_point()).max() > 1e-3


def test_vtrace_operator_on_policy_is_td_lambda():
    rng = np.random.default_rng(2)
    mdp, lam = random_mdp(rng, 5, 2, 0.9), 0.8
    pi, v = random_policy(rng, mdp), rng.normal(size=5)
    moves, rewards = solve.transition_matrix(mdp, pi), (pi * mdp.R).sum(-1)
    # The lambda-return: (1 - lam) sum_n lam^(n-1) of the n-step returns, n = 1, 2, ...
    n_step, weighted = v, np.zeros(5)
    for n in range(400):
        n_step = rewards + mdp.gamma * moves @ n_step
        weighted += (1 - lam) * lam**n * n_step
    np.testing.assert_allclose(operators.vtrace_operator(mdp, pi, pi, lam=lam, rho_max=1.0)(v), weighted, rtol=1e-12)


@pytest.mark.parametrize("lam", [0.0, 0.9, 1.0])
def test_retrace_fixed_point_is_the_target_action_value(lam):
    rng = np.random.default_rng(3)
    mdp = random_mdp(rng, 5, 3, 0.9)
    pi, beta = random_policy(rng, mdp), random_policy(rng, mdp)
    operator = operators.retrace_operator(mdp, pi, beta, lam=lam)
    np.testing.assert_allclose(operator.fixed_point(), solve.action_value(mdp, pi), rtol=1e-10)
    q = rng.normal(size=(5, 3))
    step = mdp.R + mdp.gamma * np.einsum("sat,tb,tb->sa", mdp.P, pi, q)
    if lam == 0.0:
        np.testing.assert_allclose(operator(q), step, rtol=1e-12)
    else:
        Q = solve.action_value(mdp, pi)
        assert np.abs(operator(q) - Q).max() < 0.9 * np.abs(q - Q).max()


@pytest.mark.parametrize(("lam", "rho_max"), [(0.9, 1.5), (1.0, np.inf), (0.5, 0.7)])
def test_sampled_vtrace_targets_average_to_the_exact_operator(lam, rho_max):
    rng = np.random.default_rng(4)
    mdp = random_mdp(rng, 4, 3, 0.8)
    pi = random_policy(rng, mdp)
    beta = 0.5 * pi + 0.5 * random_policy(rng, mdp)
    v = rng.normal(size=4)
    steps, walks = 60, 20_000  # 0.8^60 = 1.5e-6: the cut tail is far below the interval
    state, s, a, t = np.zeros(walks, int), [], [], []
    for _ in range(steps):
        action = (beta.cumsum(-1)[state] < rng.random((walks, 1))).sum(-1).clip(max=2)
        following = (mdp.P.cumsum(-1)[state, action] < rng.random((walks, 1))).sum(-1).clip(max=3)
        s.append(state), a.append(action), t.append(following)
        state = following
    s, a, t = np.array(s), np.array(a), np.array(t)
    targets = returns.vtrace(
        *map(jnp.asarray, ((pi / beta)[s, a], mdp.R[s, a], np.full(s.shape, 0.8), np.zeros(s.shape, bool), v[s], v[t])),
        lam=lam,
        rho_max=rho_max,
    )
    sample = np.asarray(targets[0], np.float64)
    exact = operators.vtrace_operator(mdp, pi, beta, lam=lam, rho_max=rho_max)(v)[0]
    assert abs(sample.mean() - exact) < 4 * sample.std() / np.sqrt(walks)
    # A control: the interval is narrow enough to tell another clipping apart.
    other = operators.vtrace_operator(mdp, pi, beta, lam=0.0, rho_max=0.3)(v)[0]
    assert abs(sample.mean() - other) > 4 * sample.std() / np.sqrt(walks)


def test_improvement_operators():
    q = np.array([[1.0, 2.0, 2.0], [0.0, -1.0, -3.0]])
    pi = np.array([[0.2, 0.3, 0.5], [0.0, 0.5, 0.5]])
    np.testing.assert_allclose(operators.greedy(q), [[0, 0.5, 0.5], [1, 0, 0]])
    np.testing.assert_allclose(operators.mixture(pi, operators.greedy(q), 0.25), 0.75 * pi + 0.25 * operators.greedy(q))
    weight = pi * np.exp(0.7 * q)
    np.testing.assert_allclose(operators.mirror_descent(pi, q, 0.7), weight / weight.sum(-1, keepdims=True))
    np.testing.assert_allclose(operators.mirror_descent(pi, q, 0.0), pi)
    # Enormous steps must not overflow, and never revive an action of probability 0.
    np.testing.assert_allclose(operators.mirror_descent(pi, q, 1e6), [[0, 0.375, 0.625], [0, 1, 0]])
    np.testing.assert_allclose(operators.softmax(q, 2.0), np.exp(q / 2) / np.exp(q / 2).sum(-1, keepdims=True))


def test_bad_arguments():
    rng = np.random.default_rng(0)
    mdp = random_mdp(rng, 3, 2, 0.9)
    pi = random_policy(rng, mdp)
    two = np.stack([pi, pi])
    for call, message in [
        (lambda: solve.state_value(mdp, np.ones((3, 2))), "pi: expected .*, got probabilities that sum to 2"),
        (lambda: solve.visitation(mdp, pi[:2]), r"pi: expected .*, got shape \(2, 2\)"),
        (lambda: solve.backup(mdp, [1.0]), r"V: expected .*, got shape \(1,\)"),
        (lambda: solve.value_iteration(mdp, tolerance=0.0), "tolerance: expected .*, got 0.0"),
        (lambda: solve.policy_iteration(mdp, two), r"pi: expected one policy.*, got shape \(2, 3, 2\)"),
        (lambda: operators.vtrace_operator(mdp, two, pi), r"pi: expected one policy.*, got shape \(2, 3, 2\)"),
        (lambda: operators.vtrace_operator(mdp, pi, pi, lam=1.5), "lam: expected .*, got 1.5"),
        (lambda: operators.vtrace_operator(mdp, pi, pi, rho_max=0.0), "rho_max: expected .*, got 0.0"),
        (lambda: operators.vtrace_operator(mdp, pi, pi, rho_max=1.0, rho_min=2.0), "rho_min: expected .*, got 2.0"),
        (
            lambda: operators.vtrace_operator(mdp, [[1, 0]] * 3, [[0, 1]] * 3),
            "beta: expected .*, got no weight on any action",
        ),
        (lambda: operators.retrace_operator(mdp, pi, pi)(np.ones(3)), r"x: expected \(3, 2\).*, got shape \(3,\)"),
        (lambda: operators.greedy([1.0, 2.0]), r"q: expected .*, got shape \(2,\)"),
        (lambda: operators.greedy([[1.0, np.nan]]), "q: expected .*, got nan"),
        (lambda: operators.greedy(pi, ties=-1.0), "ties: expected .*, got -1.0"),
        (lambda: operators.mixture(pi, pi, 1.5), "alpha: expected .*, got 1.5"),
        (lambda: operators.mixture(pi, two, 0.5), "pi_new: expected .*, got shape"),
        (lambda: operators.mixture(2 * pi, pi, 0.5), "pi: expected .*, got probabilities that sum to 2"),
        (lambda: operators.mixture(pi, pi, None), "alpha: expected .*, got None"),
        (lambda: operators.mirror_descent(0 * pi, pi, 0.5), "pi: expected .*, got probabilities that sum to 0"),
        (lambda: operators.mirror_descent(pi, pi, np.inf), "step_size: expected .*, got inf"),
        (lambda: operators.softmax(pi, 0.0), "temperature: expected .*, got 0.0"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()


def test_only_terminal_starts_cannot_be_renormalised():
    mdp = TabularMDP(np.ones((1, 1, 1)), np.zeros((1, 1)), 0.9, [1.0])
    with pytest.raises(ValueError, match=r"start: expected .*, got only terminal states"):
        solve.renormalised_visitation(mdp, [[1.0]])
