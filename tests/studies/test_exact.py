"""The exact quantities against the spec's numbers, against sampling, and against loops written out."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest, spearmanr

from nextpolicy.config import ConfigError
from nextpolicy.studies.four_rooms import exact, proxy, report, summary
from nextpolicy.studies.four_rooms.study import configuration
from nextpolicy.tabular import four_rooms_mdp, solve, theory

from .helpers import STATES, made_up_study

GOAL = four_rooms_mdp.state_index(*four_rooms_mdp.GOAL)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return made_up_study(tmp_path_factory.mktemp("study"))


@pytest.mark.parametrize(("noise", "value"), [("fail", 0.8305), ("success", 0.4515), ("none", 0.8775)])
def test_values_of_the_spec(noise, value):
    mdp = four_rooms_mdp.four_rooms(noise)
    assert float(solve.optimal(mdp).V @ mdp.start) == pytest.approx(value, abs=5e-5)


def test_uniform_value_and_optimal_route_of_the_spec():
    mdp = four_rooms_mdp.four_rooms()
    assert float(solve.start_value(mdp, np.full((STATES, 4), 0.25))) == pytest.approx(0.0531, abs=5e-5)
    best = solve.optimal(mdp).pi
    chance = four_rooms_mdp.top_route_probability(mdp, best)
    assert chance[int(np.argmax(mdp.start))] == pytest.approx(0.879, abs=5e-4)
    # In the doorway to the bottom-left room the best policy goes on; an always-top policy would turn back.
    assert chance[exact.DOORWAY] == pytest.approx(0.0122, abs=5e-4)


def sampled_returns(mdp, policy, episodes, rng):
    """Discounted returns of whole episodes of the tabular MDP, all side by side."""
    draw = lambda cdf: (rng.random(len(cdf))[:, None] >= cdf).sum(1)  # noqa: E731
    successor = np.argsort(-mdp.P, axis=-1)[..., :5]  # a move leads to one of at most five cells
    probability = np.take_along_axis(mdp.P, successor, axis=-1)
    assert np.allclose(probability.sum(-1), 1.0)
    action_cdf, next_cdf = policy.cumsum(-1)[:, :-1], probability.cumsum(-1)[..., :-1]
    state = np.full(episodes, int(np.argmax(mdp.start)))
    returns, running, discount = np.zeros(episodes), np.arange(episodes), 1.0
    while len(running) and discount > 1e-6:
        action = draw(action_cdf[state])
        following = successor[state, action, draw(next_cdf[state, action])]
        # R(s, a) is the chance of entering the goal; what is paid is 1 on entering it.
        returns[running] += discount * (following == GOAL)
        alive = following != GOAL
        running, state, discount = running[alive], following[alive], discount * mdp.gamma
    return returns


@pytest.mark.parametrize("noise", ["fail", "success"])
def test_monte_carlo_agrees_with_the_exact_value(noise):
    rng = np.random.default_rng(7)
    mdp = four_rooms_mdp.four_rooms(noise)
    near = solve.optimal(mdp).pi * 0.8 + 0.05
    returns = sampled_returns(mdp, near, 200_000, rng)
    truth = float(solve.start_value(mdp, near))
    half_width = 2.576 * returns.std() / np.sqrt(len(returns))
    assert half_width < 0.003
    assert abs(returns.mean() - truth) < half_width
    # The control: the value of another policy lies far outside.
    assert abs(returns.mean() - float(solve.start_value(mdp, np.full((STATES, 4), 0.25)))) > 20 * half_width


def test_trajectory_treats_the_goal_as_terminal(study):
    run = study.trajectory
    np.testing.assert_allclose(run.behaviour.sum(-1), 1.0, atol=1e-12)
    np.testing.assert_allclose(run.behaviour[..., GOAL, :], 0.25)
    assert np.all(run.value[..., GOAL] == 0.0)
    np.testing.assert_array_equal(run.target[:, 0], run.behaviour[:, 0])


def test_visitations_sum_to_one(study):
    visited = solve.visitation(study.mdp, study.trajectory.behaviour)
    np.testing.assert_allclose(visited.sum((-2, -1)), 1.0, atol=1e-10)
    np.testing.assert_allclose(exact._alive(study.mdp, visited).sum((-2, -1)), 1.0, atol=1e-12)


def test_every_certificate_holds_and_columns_are_described(study):
    assert study.exact["holds"].all()
    assert study.exact["assumptions_met"].all()
    assert set(study.exact) == set(exact.COLUMNS)
    assert all(v.shape == (9, 12) for v in study.exact.values())


def test_a_round_written_out(study):
    """A round of member 7 that replaced its target, by the definitions, one number at a time."""
    m, mdp, run = 7, study.mdp, study.trajectory
    k = int(np.flatnonzero(run.accepted[m])[1])
    assert np.abs(run.target[m, k] - run.target[m, k + 1]).max() > 0.1
    pi, beta, beta_next, v = run.target[m, k], run.behaviour[m, k], run.behaviour[m, k + 1], run.value[m, k + 1]
    V = np.linalg.solve(np.eye(STATES) - 0.99 * np.einsum("sa,sat->st", pi, mdp.P), (pi * mdp.R).sum(1))
    P_next = np.einsum("sa,sat->st", beta_next, mdp.P)
    d_next = np.linalg.solve(np.eye(STATES) - 0.99 * P_next.T, 0.01 * mdp.start)
    alive = np.where(np.arange(STATES) == GOAL, 0.0, d_next)
    got = {name: column[m, k] for name, column in study.exact.items()}
    assert got["msve_next"] == pytest.approx((d_next * (V - v) ** 2).sum())
    assert got["msve_next_alive"] == pytest.approx((alive * (V - v) ** 2).sum() / alive.sum())
    q, Q = mdp.R + 0.99 * mdp.P @ v, mdp.R + 0.99 * mdp.P @ V
    assert got["epsilon_next"] == pytest.approx((d_next[:, None] * beta_next * np.abs(Q - q)).sum())
    V_next = np.linalg.solve(np.eye(STATES) - 0.99 * P_next, (beta_next * mdp.R).sum(1))
    assert got["value_behaviour"] == pytest.approx(V_next @ mdp.start)
    assert got["improvement"] == pytest.approx((V_next - V) @ mdp.start)
    delta = 0.5 * np.abs(beta - beta_next).sum(1).max() / 0.01
    assert got["delta"] == pytest.approx(delta)
    assert got["bound"] == pytest.approx(float(theory.sv_bound(mdp, pi, beta, beta_next, q)))
    room = four_rooms_mdp.room_of == four_rooms_mdp.ROOMS.index("bottom-left")
    assert got["gap_bottom_left"] == pytest.approx((solve.optimal(mdp).V - V_next)[room].mean())
    assert got["value_bias_bottom_left"] == pytest.approx((v - V)[room].mean())


def test_divergences_of_target_and_behaviour(study):
    accepted = study.trajectory.accepted
    assert np.all(study.exact["exact_kl_target"][~accepted] == 0.0)
    assert np.all(study.exact["exact_kl_target"][accepted] > 0.0)
    ppo = [i for i, m in enumerate(study.members) if m.algo == "ppo"]
    same = (study.exact["exact_kl_target"][ppo], study.exact["exact_kl_behaviour"][ppo])
    np.testing.assert_allclose(*same, rtol=1e-9)
    assert np.all(study.exact["exact_kl_drift"][ppo] == 0.0)
    assert np.all(study.exact["tv_policy_mean"] <= study.exact["tv_policy_max"])
    assert np.all(study.exact["tv_visitation"] <= study.exact["delta"] + 1e-9)


def test_rows_count_what_happened(study):
    for row, member in zip(study.rows, study.members):
        own = study.trajectory.accepted[study.index(member.algo, member.seed)]
        assert row["updates"] == own.sum()
        assert row["first_update"] == (np.argmax(own) if own.any() else -1)
        assert row["certificates"] == row["certificates_held"] == 12
        assert row["optimal_value"] == pytest.approx(0.8305, abs=1e-4)
    assert [r["updates"] for r in study.rows if r["algo"] == "sv-static"] == [3, 3, 3]


def test_diff_correlates_with_what_it_is_made_of(study):
    index = study.index("sv-dynamic", 1)
    one = {name: np.asarray(column)[index] for name, column in {**study.metrics, **study.exact}.items()}
    rounds = np.arange(12)
    # The visitation of round k and the one before are those of row k - 1.
    follows = {**one, "diff_scale": np.ones(12), "diff": np.roll(one["tv_visitation_alive"], 1) ** 3}
    found = proxy.correlations(follows)
    assert found["diff_visitation"] == pytest.approx(1.0)
    assert found["diff_visitation_detrended"] == pytest.approx(1.0)
    assert abs(found["diff_error"]) < 0.9
    opposed = proxy.correlations({**one, "diff": -one["epsilon_train"] * one["diff_scale"]})
    assert opposed["diff_error"] == pytest.approx(-1.0)
    expected = spearmanr(one["diff"] / one["diff_scale"], one["epsilon_next"]).statistic
    assert proxy.correlations(one)["diff_next_error"] == pytest.approx(expected)
    assert np.isnan(proxy.rank_correlation(rounds, np.ones(12)))
    assert np.isnan(proxy.correlations({**one, "diff_scale": np.zeros(12)})["diff_error"])
    assert np.isnan(proxy.rank_correlation(rounds, np.where(rounds == 3, np.nan, 1.0 * rounds)))


def test_a_common_trend_is_no_correlation():
    rng = np.random.default_rng(0)
    x, y = (np.arange(4000) + rng.normal(0, 1000, 4000) for _ in range(2))
    assert proxy.rank_correlation(x, y) > 0.4
    assert abs(proxy.rank_correlation(x, y, detrend=True)) < 0.05
    # The partial correlation given the index, from the three pairwise ones.
    k = np.arange(4000)
    xy, xk, yk = (spearmanr(*pair).statistic for pair in ((x, y), (x, k), (y, k)))
    expected = (xy - xk * yk) / np.sqrt((1 - xk**2) * (1 - yk**2))
    assert proxy.rank_correlation(x, y, detrend=True) == pytest.approx(expected)


@pytest.mark.parametrize(("count", "total"), [(0, 8), (7, 64), (64, 64), (1, 2)])
def test_shares_have_wilsons_interval(count, total):
    expected = binomtest(count, total).proportion_ci(method="wilson")
    assert summary.share_interval(count, total) == pytest.approx((expected.low, expected.high), abs=1e-6)


def test_a_failure_is_a_value_below_half_the_optimum(study):
    assert all(row["failed"] == (row["final_value"] < 0.5 * row["optimal_value"]) for row in study.rows)
    lines = report.failure_table(study)
    assert [line["seeds"] for line in lines] == [3, 3, 3]
    assert sum(line["failed"] for line in lines) == sum(row["failed"] for row in study.rows) > 0
    exact_quantities = {**study.exact, "value_behaviour": np.full_like(study.exact["value_behaviour"], np.nan)}
    assert all(row["failed"] for row in summary.member_rows(study.mdp, study.members, study.metrics, exact_quantities))
    with pytest.raises(ConfigError, match="init_from: expected none in a study, got 'runs/x'"):
        configuration(init_from="runs/x")


def test_intervals_and_pairs():
    flat = summary.median_interval([2.0] * summary.FEWEST)
    assert flat == (2.0, 2.0, 2.0)
    assert str(flat) == "2 [2, 2]"
    few = summary.median_interval([1.0, 2.0])
    assert str(few) == "1.5"  # no interval over two seeds
    assert np.isnan(few[1:]).all()
    some = summary.median_interval(np.arange(9.0))
    assert some.low < some.median == 4.0 < some.high
    assert np.isnan(summary.median_interval([]).median)
    assert np.isnan(summary.median_interval([1.0, np.nan]).low)
    rows = [{"algo": a, "seed": s, "x": x} for a, s, x in (("b", 1, 5.0), ("a", 0, 1.0), ("a", 1, 3.0), ("b", 0, 4.0))]
    np.testing.assert_array_equal(summary.paired(rows, "x", "a", "b"), [-3.0, -2.0])
    assert summary._largest_drop(np.array([1.0, 3.0, 0.5, 2.0, 2.9])) == 2.5
