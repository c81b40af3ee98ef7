"""Exact values, visitations and optimal policies by linear algebra. Policies are [..., S, A] with any leading axes.

V^pi = (I - gamma P_pi)^-1 R_pi
Q^pi(s, a) = R(s, a) + gamma sum_t P(s, a, t) V^pi(t)
d^pi(s, a) = (1 - gamma) sum_n gamma^n P(s_n = s, a_n = a),   which sums to 1

With a temperature alpha > 0, values are soft (Haarnoja et al., 2018): each state that is not terminal also pays alpha
times the entropy of the policy there,

    V^pi(s) = sum_a pi(a|s) (Q^pi(s, a) - alpha log pi(a|s)),   Q^pi as above
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from nextpolicy.core import check
from nextpolicy.tabular.mdp import FloatArray, TabularMDP, as_policy, finite_array
from nextpolicy.tabular.operators import TIES, greedy

# Policies per linear solve. Limits memory to matrices [512, S, S].
_SLICE = 512


class Optimal(NamedTuple):
    """V* [S], Q* [S, A] and the optimal policy [S, A] that is uniform over tied actions."""

    V: FloatArray
    Q: FloatArray
    pi: FloatArray


class PolicyIteration(NamedTuple):
    """The policies [K, S, A], from the initial to the optimal policy, and their values [K, S]."""

    policies: FloatArray
    values: FloatArray


def state_value(mdp: TabularMDP, pi: ArrayLike, temperature: float = 0.0) -> FloatArray:
    """V^pi [..., S]."""
    policy = as_policy(mdp, pi)
    rewards = (policy * mdp.R).sum(-1) + entropy_bonus(mdp, policy, temperature)
    return _solve_per_policy(mdp, policy, rewards, transposed=False)


def action_value(mdp: TabularMDP, pi: ArrayLike, temperature: float = 0.0) -> FloatArray:
    """Q^pi [..., S, A]."""
    return backup(mdp, state_value(mdp, pi, temperature))


def entropy_bonus(mdp: TabularMDP, pi: ArrayLike, temperature: float) -> FloatArray:
    """-temperature sum_a pi(a|s) log pi(a|s), [..., S]; 0 in terminal states, where the episode is over."""
    check.number("temperature", temperature, 0.0, np.inf, open_high=True)
    policy = as_policy(mdp, pi)
    entropy = -(policy * np.log(policy, out=np.zeros_like(policy), where=policy > 0)).sum(-1)
    return np.asarray(temperature * np.where(mdp.terminal, 0.0, entropy))


def advantage(mdp: TabularMDP, pi: ArrayLike) -> FloatArray:
    """A^pi = Q^pi - V^pi, [..., S, A]; its mean under pi is 0 in every state."""
    V = state_value(mdp, pi)
    return np.asarray(backup(mdp, V) - V[..., None])


def start_value(mdp: TabularMDP, pi: ArrayLike, temperature: float = 0.0) -> FloatArray:
    """V^pi(s_0), the mean of V^pi over the start distribution, [...]."""
    return np.asarray(state_value(mdp, pi, temperature) @ mdp.start)


def visitation(mdp: TabularMDP, pi: ArrayLike) -> FloatArray:
    """d^pi [..., S, A]: normalised discounted visitation, including terminal states."""
    policy = as_policy(mdp, pi)
    start = np.broadcast_to((1.0 - mdp.gamma) * mdp.start, policy.shape[:-1])
    return np.asarray(_solve_per_policy(mdp, policy, start, transposed=True)[..., None] * policy)


def renormalised_visitation(mdp: TabularMDP, pi: ArrayLike) -> FloatArray:
    """d^pi without terminal states, renormalised to sum to 1; used in figures of episodic tasks."""
    alive = np.where(mdp.terminal[:, None], 0.0, visitation(mdp, pi))
    mass = alive.sum((-2, -1), keepdims=True)
    if (mass <= 0.0).any():
        raise ValueError("start: expected at least one start state that is not terminal, got only terminal states")
    return np.asarray(alive / mass)


def backup(mdp: TabularMDP, V: ArrayLike) -> FloatArray:
    """Action values R + gamma P V [..., S, A] from state values V [..., S]."""
    values = finite_array("V", V)
    if values.shape[-1:] != (mdp.states,):
        raise ValueError(f"V: expected [..., S] = [..., {mdp.states}], got shape {values.shape}")
    onward = values @ mdp.P.reshape(-1, mdp.states).T
    return np.asarray(mdp.R + mdp.gamma * onward.reshape(*values.shape[:-1], mdp.states, mdp.actions))


def value_iteration(mdp: TabularMDP, *, tolerance: float = 1e-10, iterations: int = 1_000_000) -> FloatArray:
    """V* [S] by iterating V <- max_a (R + gamma P V).

    Stops once the contraction guarantees |V - V*| <= tolerance, or at the limit of float64 precision. Raises
    RuntimeError if it does not converge within `iterations`.
    """
    _positive("tolerance", tolerance)
    _positive("iterations", iterations)
    V = np.zeros(mdp.states)
    for _ in range(iterations):
        following = backup(mdp, V).max(-1)
        change, V = np.abs(following - V).max(), following
        if mdp.gamma * change <= max(tolerance * (1.0 - mdp.gamma), 4.0 * np.finfo(float).eps * np.abs(V).max()):
            return V
    raise RuntimeError(
        f"value iteration: expected convergence, got a change of {change:g} after {iterations} iterations"
    )


def policy_iteration(
    mdp: TabularMDP, pi: ArrayLike | None = None, *, ties: float = TIES, iterations: int = 1_000
) -> PolicyIteration:
    """Alternate exact evaluation and greedy improvement until there is no improvement.

    Starts from `pi` [S, A], by default the uniform policy. Actions within `ties` of the best share probability. Stops
    if max_s (max_a Q - V) is at most `ties` or within rounding error.
    """
    _positive("iterations", iterations)
    policy = as_policy(mdp, np.full((mdp.states, mdp.actions), 1.0 / mdp.actions) if pi is None else pi)
    if policy.ndim != 2:
        raise ValueError(f"pi: expected one policy [S, A], got shape {policy.shape}")
    policies, values = [policy], [state_value(mdp, policy)]
    for _ in range(iterations):
        Q = backup(mdp, values[-1])
        gain = (Q.max(-1) - values[-1]).max()
        if gain <= max(ties, _rounding(mdp, Q)):
            return PolicyIteration(np.stack(policies), np.stack(values))
        policies.append(greedy(Q, ties=ties))
        values.append(state_value(mdp, policies[-1]))
    raise RuntimeError(f"policy iteration: expected convergence, got a gain of {gain:g} after {iterations} iterations")


def optimal(mdp: TabularMDP) -> Optimal:
    """(V*, Q*, pi*); pi* is uniform over the actions within 1e-9 of the best."""
    V = policy_iteration(mdp, ties=0.0).values[-1]
    Q = backup(mdp, V)
    return Optimal(V=V, Q=Q, pi=greedy(Q, ties=TIES))


def transition_matrix(mdp: TabularMDP, pi: ArrayLike) -> FloatArray:
    """P_pi [..., S, S]: the probability of s -> t under pi."""
    return _mix(mdp, as_policy(mdp, pi))


def _mix(mdp: TabularMDP, policy: FloatArray) -> FloatArray:
    return np.asarray(np.matmul(policy[..., None, :], mdp.P)[..., 0, :])


def _solve_per_policy(mdp: TabularMDP, policy: FloatArray, right: FloatArray, *, transposed: bool) -> FloatArray:
    """The solution x [..., S] of (I - gamma P_pi) x = right, or of the transposed system, for each policy."""
    batch = policy.shape[:-2]
    policy, right = policy.reshape(-1, mdp.states, mdp.actions), right.reshape(-1, mdp.states, 1)
    solution = np.empty((len(policy), mdp.states))
    for first in range(0, len(policy), _SLICE):
        piece = slice(first, first + _SLICE)
        matrix = np.eye(mdp.states) - mdp.gamma * _mix(mdp, policy[piece])
        solution[piece] = np.linalg.solve(matrix.swapaxes(-1, -2) if transposed else matrix, right[piece])[..., 0]
    return solution.reshape(*batch, mdp.states)


def _rounding(mdp: TabularMDP, Q: FloatArray) -> float:
    """An upper estimate of the rounding error of the linear solve in max_a Q - V."""
    return float(64.0 * np.finfo(float).eps * max(1.0, np.abs(Q).max()) / (1.0 - mdp.gamma))


def _positive(name: str, got: float) -> None:
    if not got > 0:
        raise ValueError(f"{name}: expected a number above 0, got {got!r}")
