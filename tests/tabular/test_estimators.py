"""Exact expectations of advantage estimators: against sampled trajectories, and where they are known."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from nextpolicy.core import returns
from nextpolicy.tabular import solve
from nextpolicy.tabular.estimators import expected_advantage
from nextpolicy.tabular.mdp import TabularMDP

S, A, GAMMA = 4, 3, 0.8


@pytest.fixture(scope="module")
def world() -> tuple[TabularMDP, np.ndarray, np.ndarray, np.ndarray]:
    """An MDP whose last state is terminal, two policies, and a critic that is wrong."""
    rng = np.random.default_rng(0)
    P = rng.dirichlet(np.ones(S), size=(S, A))
    P[-1] = np.eye(S)[-1]
    R = rng.normal(size=(S, A))
    R[-1] = 0.0
    pi, beta = rng.dirichlet(np.ones(A), size=(2, S))
    value = rng.normal(size=S)
    value[-1] = 0.0
    return TabularMDP(P=P, R=R, gamma=GAMMA, start=np.eye(S)[0]), pi, beta, value


@pytest.mark.parametrize("kind", returns.ADVANTAGE_KINDS)
@pytest.mark.parametrize("rho_max", [1.1, np.inf])
def test_the_mean_of_sampled_trajectories(x64, world, kind, rho_max):
    mdp, pi, beta, value = world
    exact = expected_advantage(mdp, pi, beta, value, kind=kind, lam=0.9, rho_max=rho_max)
    rng = np.random.default_rng(1)
    steps, runs = 40, 60_000
    for s, a in ((0, 0), (1, 2)):
        state, action = np.full(runs, s), np.full(runs, a)
        rows = []
        for _ in range(steps):
            following = (rng.random((runs, 1)) > mdp.P[state, action].cumsum(-1)).sum(-1)
            rows.append((pi[state, action] / beta[state, action], mdp.R[state, action], state, following))
            state = following
            action = (rng.random((runs, 1)) > beta[state].cumsum(-1)).sum(-1)
        ratio, reward, before, after = (jnp.asarray(np.stack(x)) for x in zip(*rows))
        dead = jnp.asarray(mdp.terminal)[after]
        estimate = returns.retrace_gae(
            ratio, reward, GAMMA * (1.0 - dead), dead, jnp.asarray(value)[before], jnp.asarray(value)[after],
            lam=0.9, kind=kind, rho_max=rho_max,
        )[0]  # fmt: skip
        error = float(jnp.std(estimate)) / np.sqrt(runs)
        assert abs(float(jnp.mean(estimate)) - exact[s, a]) < 4 * error


@pytest.mark.parametrize("kind", returns.ADVANTAGE_KINDS)
def test_on_policy_with_an_exact_critic_all_are_exact(world, kind):
    mdp, pi, _, _ = world
    found = expected_advantage(mdp, pi, pi, kind=kind)
    np.testing.assert_allclose(found, solve.advantage(mdp, pi), atol=1e-12)


def test_off_policy_only_vtrace_without_clipping_is_exact(world):
    mdp, pi, beta, _ = world
    truth = solve.advantage(mdp, pi)
    np.testing.assert_allclose(expected_advantage(mdp, pi, beta, kind="vtrace"), truth, atol=1e-12)
    for kind, rho_max in (("paper", np.inf), ("retrace", np.inf), ("vtrace", 1.0)):
        assert abs(expected_advantage(mdp, pi, beta, kind=kind, rho_max=rho_max) - truth)[:-1].max() > 1e-2


def test_wrong_input(world):
    mdp, pi, beta, value = world
    with pytest.raises(ValueError, match="kind: expected one of 'paper', 'retrace', 'vtrace', got 'gae'"):
        expected_advantage(mdp, pi, beta, kind="gae")
    with pytest.raises(ValueError, match="value: expected 0 in terminal states"):
        expected_advantage(mdp, pi, beta, value + 1.0, kind="paper")
    blind = np.eye(A)[np.zeros(S, int)]
    with pytest.raises(ValueError, match="beta: expected positive probabilities of all actions"):
        expected_advantage(mdp, pi, blind, kind="paper")
