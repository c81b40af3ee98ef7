"""The bounds of Sandhu and Parr (arXiv 2605.05481) on policy improvement, computed exactly.

docs/theory.md lists which of them hold. Notation: pi is the target policy, pi_next its possible successor, q an
estimate of Q^pi, mu the state-action distribution of the data, d^pi the normalised discounted visitation, V(s_0) the
mean of V over the start distribution, d_TV half the L1 distance. Policies and tables are [..., S, A] with matching
leading axes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numpy.typing import ArrayLike

from nextpolicy.core import check
from nextpolicy.tabular import solve
from nextpolicy.tabular.mdp import FloatArray, TabularMDP, as_policy, as_table, as_visitation, finite_array
from nextpolicy.tabular.operators import mixture

BoolArray = npt.NDArray[np.bool_]

# Tolerance of an inequality, relative to the scale max(|R|, (1 - gamma) |q|, 1) / (1 - gamma)^2.
RELATIVE_TOLERANCE = 1e-12


@dataclass(frozen=True, eq=False)
class Certificate:
    """The bounds on the improvement by the update pi <- beta_next, and the true improvement. Scalars or arrays [...].

    bound               the lower bound of the SV-API theorem on the improvement
    improvement         V^{beta_next}(s_0) - V^pi(s_0), exact
    holds               improvement >= bound, up to rounding
    vacuous             bound <= 0: no improvement is guaranteed
    assumptions_met     |Q^pi - q| <= 1 / (1 - gamma) everywhere; otherwise `holds` may be False
    expected_advantage  E over d^{beta_next} of q - V^pi
    error               epsilon(d^beta, q), the error on the data
    next_error          epsilon(d^{beta_next}, q), the error on the states and actions of the next policy
    largest_error       max |Q^pi - q|
    delta               max_s d_TV(beta, beta_next) / (1 - gamma), or the argument `delta`
    npa_distance        d_TV(d^{beta_next}, d^beta), at most delta
    npa_bound           the lower bound of the corollary, with npa_distance in place of delta
    lower, upper        the two sides of Theorem 1
    """

    bound: FloatArray
    improvement: FloatArray
    holds: BoolArray
    vacuous: BoolArray
    assumptions_met: BoolArray
    expected_advantage: FloatArray
    error: FloatArray
    next_error: FloatArray
    largest_error: FloatArray
    delta: FloatArray
    npa_distance: FloatArray
    npa_bound: FloatArray
    lower: FloatArray
    upper: FloatArray


def total_variation(p: ArrayLike, q: ArrayLike, axis: int | tuple[int, ...] = -1) -> FloatArray:
    """d_TV, half the L1 distance along `axis`: by default over actions; use (-2, -1) for state-action distributions."""
    left, right = finite_array("p", p), finite_array("q", q)
    check.same_shape(p=left, q=right)
    return np.asarray(0.5 * np.abs(left - right).sum(axis))


def weighted_error(mdp: TabularMDP, pi: ArrayLike, q: ArrayLike, mu: ArrayLike) -> FloatArray:
    """epsilon(mu, q) = sum_{s,a} mu(s, a) |Q^pi(s, a) - q(s, a)|."""
    gap = np.abs(solve.action_value(mdp, pi) - as_table(mdp, q))
    return np.asarray((as_visitation(mdp, mu) * gap).sum((-2, -1)))


def expected_advantage(mdp: TabularMDP, pi: ArrayLike, pi_next: ArrayLike, q: ArrayLike) -> FloatArray:
    """E over d^{pi_next} of q(s, a) - V^pi(s), with the true V^pi. Theorem 1 fails with E_pi q in place of V^pi."""
    following = as_policy(mdp, pi_next, "pi_next")
    gap = as_table(mdp, q) - solve.state_value(mdp, pi)[..., None]
    return np.asarray((solve.visitation(mdp, following) * gap).sum((-2, -1)))


def improvement(mdp: TabularMDP, pi: ArrayLike, pi_next: ArrayLike) -> FloatArray:
    """V^{pi_next}(s_0) - V^pi(s_0)."""
    following = as_policy(mdp, pi_next, "pi_next")
    return np.asarray(solve.start_value(mdp, following) - solve.start_value(mdp, pi))


def performance_difference(mdp: TabularMDP, pi: ArrayLike, pi_next: ArrayLike) -> FloatArray:
    """E over d^{pi_next} of A^pi, divided by 1 - gamma.

    By the performance difference lemma (Kakade and Langford, 2002), this equals `improvement`.
    """
    following = as_policy(mdp, pi_next, "pi_next")
    mean = (solve.visitation(mdp, following) * solve.advantage(mdp, pi)).sum((-2, -1))
    return np.asarray(mean / (1.0 - mdp.gamma))


def npa_distance(mdp: TabularMDP, pi_next: ArrayLike, mu: ArrayLike) -> FloatArray:
    """d_TV(d^{pi_next}, mu): the distance of the data from the visitation of the next policy."""
    following = as_policy(mdp, pi_next, "pi_next")
    visited, data = np.broadcast_arrays(solve.visitation(mdp, following), as_visitation(mdp, mu))
    return total_variation(visited, data, axis=(-2, -1))


def policy_distance(mdp: TabularMDP, beta: ArrayLike, beta_next: ArrayLike) -> FloatArray:
    """max_s d_TV(beta(.|s), beta_next(.|s)), [...]."""
    left, right = np.broadcast_arrays(as_policy(mdp, beta, "beta"), as_policy(mdp, beta_next, "beta_next"))
    return np.asarray(total_variation(left, right).max(-1))


def improvement_bounds(
    mdp: TabularMDP, pi: ArrayLike, pi_next: ArrayLike, q: ArrayLike
) -> tuple[FloatArray, FloatArray]:
    """Theorem 1: (A - e) / (1 - gamma) <= improvement <= (A + e) / (1 - gamma), for any q.

    A = `expected_advantage`, e = epsilon(d^{pi_next}, q).
    """
    pi_next = as_policy(mdp, pi_next, "pi_next")
    gain = expected_advantage(mdp, pi, pi_next, q)
    error = weighted_error(mdp, pi, q, solve.visitation(mdp, pi_next))
    scale = 1.0 / (1.0 - mdp.gamma)
    return np.asarray((gain - error) * scale), np.asarray((gain + error) * scale)


def npa_bound(mdp: TabularMDP, pi: ArrayLike, pi_next: ArrayLike, q: ArrayLike, mu: ArrayLike) -> FloatArray:
    """The corollary: improvement >= (A - epsilon(mu, q) - 2 d_TV(d^{pi_next}, mu) / (1 - gamma)) / (1 - gamma).

    Assumes |Q^pi - q| <= 1 / (1 - gamma).
    """
    scale = 1.0 / (1.0 - mdp.gamma)
    shift = 2.0 * scale * npa_distance(mdp, pi_next, mu)
    gain = expected_advantage(mdp, pi, pi_next, q)
    return np.asarray(scale * (gain - weighted_error(mdp, pi, q, mu) - shift))


def sv_bound(
    mdp: TabularMDP, pi: ArrayLike, beta: ArrayLike, beta_next: ArrayLike, q: ArrayLike, delta: ArrayLike | None = None
) -> FloatArray:
    """SV-API theorem: V^{beta_next} - V^pi >= (A - epsilon(d^beta, q) - 2 delta / (1 - gamma)) / (1 - gamma).

    Assumes |Q^pi - q| <= 1 / (1 - gamma) and max_s d_TV(beta, beta_next) <= delta (1 - gamma). By default `delta` is
    the smallest number that satisfies the latter.
    """
    scale = 1.0 / (1.0 - mdp.gamma)
    delta = _delta(mdp, beta, beta_next, delta)
    error = weighted_error(mdp, pi, q, solve.visitation(mdp, beta))
    return np.asarray(scale * (expected_advantage(mdp, pi, beta_next, q) - error - 2.0 * scale * delta))


def cpi_bound(mdp: TabularMDP, pi: ArrayLike, pi_greedy: ArrayLike, delta: float) -> FloatArray:
    """The bound of conservative policy iteration (Kakade and Langford, 2002) for `cpi_step`, alpha = delta (1 - gamma).

        improvement >= (alpha E_{s ~ d^pi, a ~ pi_greedy} A^pi(s, a) - 2 delta^2 gamma) / (1 - gamma)

    It holds for rewards in [0, 1] and any pi_greedy. The paper averages the advantage under d^{pi_greedy} instead of
    d^pi (`cpi_bound_as_printed`). States that the mixture hardly ever reaches then have full weight, and the inequality
    is false.
    """
    alpha = _mixture_coefficient(mdp, delta)
    policy = as_policy(mdp, pi_greedy, "pi_greedy")
    visited = solve.visitation(mdp, pi).sum(-1)
    gain = (visited * (policy * solve.advantage(mdp, pi)).sum(-1)).sum(-1)
    return np.asarray((alpha * gain - 2.0 * delta**2 * mdp.gamma) / (1.0 - mdp.gamma))


def cpi_bound_as_printed(mdp: TabularMDP, pi: ArrayLike, pi_greedy: ArrayLike, delta: float) -> FloatArray:
    """The paper's version of `cpi_bound`, which is false: the advantage is averaged under d^{pi_greedy}, not d^pi.

    (delta (1 - gamma) [max A - eps] - 2 delta^2 gamma) / (1 - gamma), where pi_greedy attains max A - eps.
    """
    alpha = _mixture_coefficient(mdp, delta)
    gain = (1.0 - mdp.gamma) * performance_difference(mdp, pi, pi_greedy)
    return np.asarray((alpha * gain - 2.0 * delta**2 * mdp.gamma) / (1.0 - mdp.gamma))


def cpi_step(mdp: TabularMDP, pi: ArrayLike, pi_greedy: ArrayLike, delta: float) -> FloatArray:
    """The policy of `cpi_bound`: (1 - alpha) pi + alpha pi_greedy with alpha = delta (1 - gamma)."""
    alpha = _mixture_coefficient(mdp, delta)
    return mixture(as_policy(mdp, pi), as_policy(mdp, pi_greedy, "pi_greedy"), alpha)


def certificate(
    mdp: TabularMDP,
    pi: ArrayLike,
    beta: ArrayLike,
    beta_next: ArrayLike,
    q: ArrayLike,
    delta: ArrayLike | None = None,
    *,
    temperature: float = 0.0,
) -> Certificate:
    """The certificate of the update pi <- beta_next on data of beta.

    Policies and q are [..., S, A], and the fields of the result are [...], so one call handles a whole run.

    With a temperature, Q^pi and V are soft, and the expected advantage is that of q - temperature log beta_next. The
    bounds then hold for soft values, since the performance difference lemma does:

        V^{pi'}(s_0) - V^pi(s_0) = E over d^{pi'} of Q^pi(s, a) - temperature log pi'(a|s) - V^pi(s), over 1 - gamma
    """
    tables = [as_policy(mdp, table, name) for table, name in ((pi, "pi"), (beta, "beta"), (beta_next, "beta_next"))]
    pi, beta, beta_next, q = np.broadcast_arrays(*tables, as_table(mdp, q))
    scale, over = 1.0 / (1.0 - mdp.gamma), (-2, -1)
    delta = _delta(mdp, beta, beta_next, delta)
    V = solve.state_value(mdp, pi, temperature)
    data, visited = solve.visitation(mdp, beta), solve.visitation(mdp, beta_next)
    gap = np.abs(solve.backup(mdp, V) - q)
    bonus = solve.entropy_bonus(mdp, beta_next, temperature)
    gain = (visited * (q + (bonus - V)[..., None])).sum(over)
    error, next_error = (data * gap).sum(over), (visited * gap).sum(over)
    distance = total_variation(data, visited, axis=over)
    bound = scale * (gain - error - 2.0 * scale * delta)
    improved = solve.start_value(mdp, beta_next, temperature) - V @ mdp.start
    slack = rounding(mdp, q)
    return Certificate(
        bound=bound,
        improvement=improved,
        holds=improved >= bound - slack,
        vacuous=bound <= 0.0,
        assumptions_met=gap.max(over) <= scale + slack,
        expected_advantage=gain,
        error=error,
        next_error=next_error,
        largest_error=gap.max(over),
        delta=np.broadcast_to(delta, error.shape)[()],
        npa_distance=distance[()],
        npa_bound=scale * (gain - error - 2.0 * scale * distance),
        lower=scale * (gain - next_error),
        upper=scale * (gain + next_error),
    )


certificates = certificate
"""Alias of `certificate`, which handles leading axes."""


def rounding(mdp: TabularMDP, q: ArrayLike = 0.0) -> FloatArray:
    """Tolerance for rounding in an inequality: 1e-12 max(1, max|R|, (1 - gamma) max|q|) / (1 - gamma)^2."""
    largest = np.abs(np.asarray(q)).max((-2, -1)) if np.ndim(q) >= 2 else np.abs(q)
    scale = np.maximum(max(1.0, float(np.abs(mdp.R).max())), (1.0 - mdp.gamma) * largest)
    return np.asarray(RELATIVE_TOLERANCE * scale / (1.0 - mdp.gamma) ** 2)


def _delta(mdp: TabularMDP, beta: ArrayLike, beta_next: ArrayLike, delta: ArrayLike | None) -> FloatArray:
    """`delta`, which must be at least max_s d_TV / (1 - gamma); by default, equal to it."""
    needed = policy_distance(mdp, beta, beta_next) / (1.0 - mdp.gamma)
    if delta is None:
        return np.asarray(needed)
    given = finite_array("delta", delta)
    if (given < needed * (1.0 - 1e-9)).any():
        most = float(np.max(needed))
        raise ValueError(f"delta: expected at least max_s d_TV / (1 - gamma) = {most:g}, got {float(given.min()):g}")
    return given


def _mixture_coefficient(mdp: TabularMDP, delta: float) -> float:
    if not (np.isfinite(delta) and 0.0 <= delta * (1.0 - mdp.gamma) <= 1.0 + 1e-12):
        raise ValueError(
            f"delta: expected a number in [0, 1 / (1 - gamma)] = [0, {1 / (1 - mdp.gamma):g}], got {delta!r}"
        )
    return min(1.0, delta * (1.0 - mdp.gamma))
