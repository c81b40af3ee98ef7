"""Exact evaluation operators (V-trace, Retrace) as matrices, and policy improvement operators.

For a target policy pi and a behavioural policy beta, with lam and rho_max as in `nextpolicy.core.returns`:

    rho(s, a) = clip(pi / beta, rho_min, rho_max)        c(s, a) = min(lam, pi / beta)

Actions with beta(a|s) = 0 have weight 0. Both evaluation operators are affine, x -> M x + b.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from nextpolicy.core import check
from nextpolicy.tabular.mdp import FloatArray, TabularMDP, as_policy, as_rows, finite_array

# Actions whose values differ by at most this are tied and share probability equally.
TIES = 1e-9


@dataclass(frozen=True, eq=False)
class AffineOperator:
    """x -> matrix x + offset on tables of shape `shape`, flattened in C order."""

    matrix: FloatArray  # [n, n]
    offset: FloatArray  # [n]
    shape: tuple[int, ...]

    def __call__(self, x: ArrayLike) -> FloatArray:
        """Apply the operator to a table of shape `shape`."""
        table = finite_array("x", x)
        if table.shape != self.shape:
            raise ValueError(f"x: expected {self.shape}, got shape {table.shape}")
        return np.asarray((self.matrix @ table.ravel() + self.offset).reshape(self.shape))

    def fixed_point(self) -> FloatArray:
        """The table x with matrix x + offset = x."""
        solution = np.linalg.solve(np.eye(len(self.offset)) - self.matrix, self.offset)
        return np.asarray(solution, np.float64).reshape(self.shape)


def vtrace_operator(
    mdp: TabularMDP,
    pi: ArrayLike,
    beta: ArrayLike,
    *,
    lam: float = 1.0,
    rho_max: float = np.inf,
    rho_min: float = 0.0,
) -> AffineOperator:
    """V-trace (Espeholt et al., 2018) on state values v [S]: the expected target y_0 of infinite trajectories of beta.

        y = v + (I - C)^-1 (R_w + gamma P_w v - W v)
        w = beta rho,  C(s, t) = gamma sum_a beta c P(s, a, t),  W = diag(sum_a w),  R_w, P_w sums over a weighted by w

    Sampled trajectories use v = 0 in terminal states, so v must be 0 there to compare. The fixed point is the value of
    `clipped_target`, which is pi if rho_max = inf and beta covers pi.
    """
    target, behaviour = _pair(mdp, pi, beta)
    _clipping(lam, rho_max, rho_min)
    weight = _clipped_weight(target, behaviour, rho_max, rho_min)
    trace = np.minimum(lam * behaviour, target)
    spread = np.eye(mdp.states) - mdp.gamma * np.einsum("sa,sat->st", trace, mdp.P)
    error = mdp.gamma * np.einsum("sa,sat->st", weight, mdp.P) - np.diag(weight.sum(-1))
    offset = np.linalg.solve(spread, (weight * mdp.R).sum(-1))
    return AffineOperator(np.eye(mdp.states) + np.linalg.solve(spread, error), offset, (mdp.states,))


def clipped_target(
    mdp: TabularMDP, pi: ArrayLike, beta: ArrayLike, *, rho_max: float = np.inf, rho_min: float = 0.0
) -> FloatArray:
    """The policy [S, A] proportional to beta clip(pi / beta, rho_min, rho_max). V-trace converges to its value."""
    target, behaviour = _pair(mdp, pi, beta)
    _clipping(1.0, rho_max, rho_min)
    weight = _clipped_weight(target, behaviour, rho_max, rho_min)
    return np.asarray(weight / weight.sum(-1, keepdims=True))


def retrace_operator(mdp: TabularMDP, pi: ArrayLike, beta: ArrayLike, *, lam: float = 1.0) -> AffineOperator:
    """Retrace (Munos et al., 2016) on action values q [S, A]. Its fixed point is Q^pi for any beta.

    q' = q + (I - C)^-1 (R + gamma P_pi q - q),   C((s, a), (t, b)) = gamma P(s, a, t) beta(b|t) c(t, b)
    """
    target, behaviour = _pair(mdp, pi, beta)
    _clipping(lam, 1.0, 0.0)
    pairs = mdp.states * mdp.actions
    trace = np.minimum(lam * behaviour, target)
    onward = lambda weight: mdp.gamma * np.einsum("sat,tb->satb", mdp.P, weight).reshape(pairs, pairs)  # noqa: E731
    spread = np.eye(pairs) - onward(trace)
    matrix = np.eye(pairs) + np.linalg.solve(spread, onward(target) - np.eye(pairs))
    return AffineOperator(matrix, np.linalg.solve(spread, mdp.R.ravel()), (mdp.states, mdp.actions))


def greedy(q: ArrayLike, *, ties: float = TIES) -> FloatArray:
    """The policy [..., S, A] that is uniform over the actions within `ties` of the best."""
    values = finite_array("q", q)
    _not_negative("ties", ties)
    if values.ndim < 2:
        raise ValueError(f"q: expected [..., S, A], got shape {values.shape}")
    best = (values >= values.max(-1, keepdims=True) - ties).astype(np.float64)
    return np.asarray(best / best.sum(-1, keepdims=True))


def mixture(pi: ArrayLike, pi_new: ArrayLike, alpha: float) -> FloatArray:
    """(1 - alpha) pi + alpha pi_new, the step of conservative policy iteration (Kakade and Langford, 2002)."""
    old, new = as_rows(pi, "pi"), as_rows(pi_new, "pi_new")
    check.same_shape(pi=old, pi_new=new)
    check.number("alpha", alpha, 0.0, 1.0)
    return np.asarray((1.0 - alpha) * old + alpha * new)


def mirror_descent(pi: ArrayLike, q: ArrayLike, step_size: float) -> FloatArray:
    """pi'(a|s) proportional to pi(a|s) exp(step_size q(s, a)), one natural policy gradient step."""
    old, values = as_rows(pi, "pi"), finite_array("q", q)
    check.same_shape(pi=old, q=values)
    _not_negative("step_size", step_size)
    # Subtract the largest exponent among actions with pi(a|s) > 0, so that exp() does not overflow.
    exponent = np.where(old > 0, step_size * values, -np.inf)
    weight = old * np.exp(exponent - exponent.max(-1, keepdims=True))
    return np.asarray(weight / weight.sum(-1, keepdims=True))


def softmax(q: ArrayLike, temperature: float = 1.0) -> FloatArray:
    """pi(a|s) proportional to exp(q(s, a) / temperature)."""
    values = finite_array("q", q)
    if not (np.isfinite(temperature) and temperature > 0):
        raise ValueError(f"temperature: expected a finite number above 0, got {temperature!r}")
    return mirror_descent(np.full(values.shape, 1.0 / values.shape[-1]), values, 1.0 / temperature)


def _pair(mdp: TabularMDP, pi: ArrayLike, beta: ArrayLike) -> tuple[FloatArray, FloatArray]:
    target, behaviour = as_policy(mdp, pi, "pi"), as_policy(mdp, beta, "beta")
    for name, policy in (("pi", target), ("beta", behaviour)):
        if policy.ndim != 2:
            raise ValueError(f"{name}: expected one policy [S, A], got shape {policy.shape}")
    return target, behaviour


def _clipped_weight(target: FloatArray, behaviour: FloatArray, rho_max: float, rho_min: float) -> FloatArray:
    """beta clip(pi / beta, rho_min, rho_max), computed without division. Raises if a state has no weight."""
    most = np.where(behaviour > 0, rho_max * np.where(behaviour > 0, behaviour, 1.0), 0.0)
    weight = np.clip(target, rho_min * behaviour, most)
    if (weight.sum(-1) <= 0.0).any():
        state = int(np.argmin(weight.sum(-1)))
        raise ValueError(
            f"beta: expected a policy that overlaps pi, got no weight on any action of pi in state {state}"
        )
    return weight


def _clipping(lam: float, rho_max: float, rho_min: float) -> None:
    check.number("lam", lam, 0.0, 1.0)
    if not rho_max > 0:
        raise ValueError(f"rho_max: expected a number above 0, got {rho_max!r}")
    check.number("rho_min", rho_min, 0.0, float(rho_max), rule=": rho_min may not exceed rho_max")


def _not_negative(name: str, got: float) -> None:
    if not (np.isfinite(got) and got >= 0):
        raise ValueError(f"{name}: expected a finite number of at least 0, got {got!r}")
