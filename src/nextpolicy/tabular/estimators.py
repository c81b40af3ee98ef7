"""Exact expectations of the advantage estimators in `core.returns`, over infinite trajectories of beta from (s, a)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from nextpolicy.core import check
from nextpolicy.core.returns import ADVANTAGE_KINDS
from nextpolicy.tabular import solve
from nextpolicy.tabular.mdp import FloatArray, TabularMDP, as_policy, finite_array


def expected_advantage(
    mdp: TabularMDP,
    pi: ArrayLike,
    beta: ArrayLike,
    value: ArrayLike | None = None,
    *,
    kind: str,
    lam: float = 0.95,
    rho_max: float = np.inf,
) -> FloatArray:
    """E[A_t | s_t = s, a_t = a], [S, A], of `core.returns.retrace_gae`; `value` [S] is the critic, by default V^pi.

    With the TD errors d(s, a) = R + gamma P v - v, the traces w(s, a) = min(lam beta, pi), so that beta c = w, and
    x(s) = E[y - v | s] of V-trace:

    `paper`    A = d + gamma c (P_beta A),     with (P_beta A)(s, a) = sum_t P(s, a, t) sum_b beta(b|t) A(t, b)
    `retrace`  A = d + gamma P_w A,            with w in place of beta
    `vtrace`   A = d + gamma lam P x,          x = sum_a beta clip(pi / beta, 0, rho_max) d + gamma sum_a w P x

    `value` must be 0 in terminal states.
    """
    check.one_of("kind", kind, ADVANTAGE_KINDS)
    check.number("lam", lam, 0.0, 1.0)
    check.number("rho_max", rho_max, 0.0, np.inf)
    target, behaviour = as_policy(mdp, pi), as_policy(mdp, beta, "beta")
    if (behaviour[~mdp.terminal] <= 0).any():
        raise ValueError("beta: expected positive probabilities of all actions, got a zero")
    critic = (
        np.where(mdp.terminal, 0.0, solve.state_value(mdp, target)) if value is None else finite_array("value", value)
    )
    check.same_shape(value=critic, start=mdp.start)
    if critic[mdp.terminal].any():
        raise ValueError("value: expected 0 in terminal states, got another value")
    error = solve.backup(mdp, critic) - critic[:, None]
    trace = np.minimum(lam * behaviour, target)
    if kind == "vtrace":
        spread = np.eye(mdp.states) - mdp.gamma * np.einsum("sa,sat->st", trace, mdp.P)
        excess = np.linalg.solve(spread, (np.minimum(rho_max * behaviour, target) * error).sum(-1))
        return np.asarray(error + mdp.gamma * lam * mdp.P @ excess)
    pairs = mdp.states * mdp.actions
    onward = mdp.gamma * np.einsum("sat,tb->satb", mdp.P, behaviour if kind == "paper" else trace)
    if kind == "paper":
        onward = onward * (trace / behaviour)[:, :, None, None]
    found = np.linalg.solve(np.eye(pairs) - onward.reshape(pairs, pairs), error.ravel())
    return np.asarray(found.reshape(mdp.states, mdp.actions))
