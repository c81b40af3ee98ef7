"""Exact bias of each advantage estimator as a function of the drift from the target to the behavioural policy.

The critic is exact, v = V^pi, so that all error is the estimator's. The target pi is on the way from the uniform policy
to the optimal one, at a share of V*(s_0); beta is one step of mirror descent beyond it, of the size that gives the
drift KL(pi || beta), averaged over the visitation of beta.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from nextpolicy.studies.four_rooms.exact import kl
from nextpolicy.tabular import four_rooms_mdp, solve
from nextpolicy.tabular.estimators import expected_advantage
from nextpolicy.tabular.mdp import FloatArray, TabularMDP
from nextpolicy.tabular.operators import mirror_descent

SHARES = (0.25, 0.5, 0.9)  # of V*(s_0)
DRIFTS = tuple(float(x) for x in np.logspace(-4, 0, 13))
ESTIMATORS = (
    ("paper", np.inf),
    ("retrace", np.inf),
    ("vtrace", 1.0),
    ("vtrace", 5.0),
    ("vtrace", 100.0),
    ("vtrace", np.inf),
)
LAM = 0.95


def table(noise: str = "fail") -> pd.DataFrame:
    """One row per target, drift and estimator.

    error     mean |A - A^pi| over the visitation of beta, relative to the mean |A^pi|
    relative  the same for differences between actions: what is left after subtracting the mean over beta in each state
    sign      share of the visitation where the estimate has the wrong sign
    """
    mdp = four_rooms_mdp.four_rooms(noise)
    rows = []
    for share in SHARES:
        pi = target_policy(mdp, share)
        for drift in DRIFTS:
            beta = drifted(mdp, pi, drift)
            for kind, rho_max in ESTIMATORS:
                row: dict[str, Any] = {"noise": noise, "share": share, "kl": drift, "kind": kind, "rho_max": rho_max}
                rows.append(row | errors(mdp, pi, beta, kind, rho_max))
    return pd.DataFrame(rows)


def errors(mdp: TabularMDP, pi: FloatArray, beta: FloatArray, kind: str, rho_max: float) -> dict[str, float]:
    """The columns error, relative and sign of `table`."""
    truth = solve.advantage(mdp, pi)
    found = expected_advantage(mdp, pi, beta, kind=kind, lam=LAM, rho_max=rho_max)
    weight = np.where(mdp.terminal[:, None], 0.0, solve.visitation(mdp, beta))
    weight = weight / weight.sum()
    centred = lambda x: x - (beta * x).sum(-1, keepdims=True)  # noqa: E731
    mean = lambda x: float((weight * x).sum())  # noqa: E731
    wrong = (np.sign(found) != np.sign(truth)) & (np.abs(truth) > 1e-9)
    return {
        "error": mean(np.abs(found - truth)) / mean(np.abs(truth)),
        "relative": mean(np.abs(centred(found - truth))) / mean(np.abs(centred(truth))),
        "sign": mean(wrong),
    }


def target_policy(mdp: TabularMDP, share: float) -> FloatArray:
    """The first policy of mirror descent from the uniform one whose value is at least `share` of V*(s_0)."""
    best = float(solve.optimal(mdp).V @ mdp.start)
    pi = np.full((mdp.states, mdp.actions), 1.0 / mdp.actions)
    while float(solve.start_value(mdp, pi)) < share * best:
        pi = mirror_descent(pi, solve.action_value(mdp, pi), 2.0)
    return pi


def drifted(mdp: TabularMDP, pi: FloatArray, drift: float) -> FloatArray:
    """The policy beta on the path of mirror descent from pi whose drift KL(pi || beta) is `drift`, by bisection."""
    q = solve.action_value(mdp, pi)

    def distance(step: float) -> float:
        beta = mirror_descent(pi, q, step)
        visited = np.where(mdp.terminal, 0.0, solve.visitation(mdp, beta).sum(-1))
        return float((visited * kl(pi, beta)).sum() / visited.sum())

    low, high = 0.0, 1.0
    while distance(high) < drift:
        low, high = high, 2.0 * high
        if high > 1e6:
            raise ValueError(f"drift: expected one that mirror descent reaches, got {drift:g}")
    for _ in range(50):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if distance(middle) < drift else (low, middle)
    return mirror_descent(pi, q, high)
