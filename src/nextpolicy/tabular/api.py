"""Approximate policy iteration on a tabular MDP: the source's Algorithms 1 and 2, and conservative iteration.

All are functions of the same parts. `Evaluate` estimates Q^pi of the target policy from data distributed as
mu; `Improve` turns the estimate into the next behavioural policy; the stability criterion says when the
target may follow it. "Collecting data with beta" is exact here: mu is the visitation d^beta.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from nextpolicy.core import check
from nextpolicy.criteria import Criterion
from nextpolicy.criteria.stable_values import GateParams, StableValues
from nextpolicy.tabular import operators, solve, theory
from nextpolicy.tabular.mdp import FloatArray, TabularMDP, as_policy, as_table
from nextpolicy.tabular.theory import Certificate
from nextpolicy.types import Evidence

Evaluate = Callable[[TabularMDP, FloatArray, FloatArray, np.random.Generator], FloatArray]
"""(mdp, target policy [S, A], data distribution mu [S, A], rng) -> q [S, A]."""

Improve = Callable[[FloatArray, FloatArray, FloatArray], FloatArray]
"""(q [S, A], behavioural policy [S, A], mu [S, A]) -> next behavioural policy [S, A]."""


@dataclass(frozen=True, eq=False)
class History:
    """K rounds. Index k of a policy is the one that round k starts with; index K is what was left at the end.

    `certificates` judges in every round the update pi_k <- beta_{k+1}, taken or not (`accepted` says which).
    """

    target: FloatArray  # [K + 1, S, A] pi_k
    behaviour: FloatArray  # [K + 1, S, A] beta_k
    q: FloatArray  # [K, S, A] the estimate of Q^{pi_k}
    mu: FloatArray  # [K, S, A] d^{beta_k}, the distribution of round k's data
    diff: FloatArray  # [K] mean over mu_k of |q_k - q_{k-1}|; infinite in round 0
    scale: FloatArray  # [K] mean over mu_k of |q_k|
    accepted: npt.NDArray[np.bool_]  # [K]
    target_value: FloatArray  # [K + 1] V^{pi_k}(s_0)
    behaviour_value: FloatArray  # [K + 1] V^{beta_k}(s_0)
    certificates: Certificate  # fields [K]


def on_policy_api(
    mdp: TabularMDP, pi: Any, evaluate: Evaluate, improve: Improve, *, rounds: int, rng: np.random.Generator
) -> History:
    """Algorithm 1: mu_k = d^{pi_k}; q_k = evaluate(pi_k, mu_k); pi_{k+1} = improve(q_k, pi_k, mu_k)."""
    check.whole("rounds", rounds)
    policies, qs, mus = [_one_policy(mdp, pi)], [], []
    for _ in range(rounds):
        mu = solve.visitation(mdp, policies[-1])
        q = as_table(mdp, evaluate(mdp, policies[-1], mu, rng), "q from evaluate")
        policies.append(_next_policy(mdp, improve, q, policies[-1], mu))
        qs.append(q)
        mus.append(mu)
    return _history(mdp, policies, policies, qs, mus, [True] * rounds)


def sv_api(
    mdp: TabularMDP,
    pi: Any,
    evaluate: Evaluate,
    improve: Improve,
    criterion_params: Any,
    *,
    rounds: int,
    rng: np.random.Generator,
    criterion: Criterion | None = None,
) -> History:
    """Algorithm 2: the target waits until the value estimates have settled, the behaviour does not.

        mu_k = d^{beta_k};  q_k = evaluate(pi_k, mu_k);  beta_{k+1} = improve(q_k, beta_k, mu_k)
        pi_{k+1} = beta_{k+1} if the criterion accepts, else pi_k

    The criterion (by default the paper's, with `GateParams`) sees diff_k = sum mu_k |q_k - q_{k-1}| as both kinds of
    diff, scale_k = sum mu_k |q_k|, and the exact divergences of the policies. Round 0 has no earlier estimate to differ
    from: its diff is infinite, which is never stable (the k_max clause still applies). With `GateParams.ppo()` this is
    Algorithm 1.
    """
    criterion = StableValues() if criterion is None else criterion
    check.whole("rounds", rounds)
    first = _one_policy(mdp, pi)
    targets, behaviours = [first], [first]
    qs: list[FloatArray] = []
    mus: list[FloatArray] = []
    accepted: list[bool] = []
    state = criterion.init()
    for k in range(rounds):
        mu = solve.visitation(mdp, behaviours[-1])
        q = as_table(mdp, evaluate(mdp, targets[-1], mu, rng), "q from evaluate")
        behaviours.append(_next_policy(mdp, improve, q, behaviours[-1], mu))
        evidence = _evidence(*_movement(q, qs[-1] if qs else None, mu), mu, targets[-1], behaviours[-2], behaviours[-1])
        state, accept, _ = criterion.update(state, evidence, criterion_params, jnp.float32(k / rounds))
        accepted.append(bool(accept))
        targets.append(behaviours[-1] if accepted[-1] else targets[-1])
        qs.append(q)
        mus.append(mu)
    return _history(mdp, targets, behaviours, qs, mus, accepted)


def _evidence(
    diff: float,
    scale: float,
    mu: FloatArray,
    target: FloatArray,
    behaviour: FloatArray,
    next_behaviour: FloatArray,
) -> Evidence:
    """What the criterion sees of a round; divergences and ratios are means over mu [S, A]."""

    def kl(p: FloatArray, q: FloatArray) -> float:
        with np.errstate(divide="ignore", invalid="ignore"):
            terms = np.where(p > 0, p * np.log(p / q), 0.0)
        return float(mu.sum(1) @ terms.sum(1))

    seen = behaviour > 0
    ratio = np.divide(target, behaviour, out=np.zeros_like(target), where=seen)
    ess = (mu * ratio).sum() ** 2 / max((mu * ratio**2).sum(), 1e-30)
    numbers = (diff, diff, scale, kl(behaviour, next_behaviour), kl(target, behaviour), kl(target, next_behaviour), ess)
    return Evidence(*map(jnp.float32, numbers))


def conservative_policy_iteration(
    mdp: TabularMDP,
    pi: Any,
    evaluate: Evaluate,
    *,
    rounds: int,
    rng: np.random.Generator,
    delta: float | None = None,
) -> History:
    """Algorithm 1 with the step (1 - delta (1 - gamma)) pi + delta (1 - gamma) greedy(q): see `conservative_step`."""
    return on_policy_api(mdp, pi, evaluate, conservative_step(mdp.gamma, delta), rounds=rounds, rng=rng)


def conservative_step(gamma: float, delta: float | None = None) -> Improve:
    """Mix pi with greedy(q), coefficient alpha = delta (1 - gamma).

    Where delta is None it maximises the bound `theory.cpi_bound` of the estimate: with
    G = sum_s mu(s) sum_a (greedy - pi)(a|s) q(s, a), delta = (1 - gamma) G / (4 gamma), at most 1 / (1 - gamma).
    """
    if not 0.0 <= gamma < 1.0:
        raise ValueError(f"gamma: got {gamma!r}, takes a number in [0, 1)")
    if delta is not None and not 0.0 <= delta * (1.0 - gamma) <= 1.0 + 1e-12:
        raise ValueError(
            f"delta: got {delta!r}, takes None or a number in [0, 1 / (1 - gamma)] = [0, {1 / (1 - gamma):g}]"
        )

    def improve(q: FloatArray, policy: FloatArray, mu: FloatArray) -> FloatArray:
        best = operators.greedy(q)
        if delta is not None:
            return operators.mixture(policy, best, min(1.0, delta * (1.0 - gamma)))
        gain = float((mu.sum(-1) * ((best - policy) * q).sum(-1)).sum())
        alpha = 1.0 if gamma == 0.0 else (1.0 - gamma) ** 2 * gain / (4.0 * gamma)
        return operators.mixture(policy, best, float(np.clip(alpha, 0.0, 1.0)))

    return improve


def greedy_step(ties: float = operators.TIES) -> Improve:
    """greedy(q), whatever the policy was."""
    return lambda q, policy, mu: operators.greedy(q, ties=ties)


def mirror_descent_step(step_size: float) -> Improve:
    """pi exp(step_size q), normalised."""
    return lambda q, policy, mu: operators.mirror_descent(policy, q, step_size)


def exact_evaluation(mdp: TabularMDP, pi: FloatArray, mu: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Q^pi itself: with greedy improvement, approximate policy iteration is then policy iteration."""
    return solve.action_value(mdp, pi)


def noisy_evaluation(sigma: float, samples: float = 0.0, *, bounded: bool = True) -> Evaluate:
    """Q^pi plus normal noise of standard deviation sigma / sqrt(1 + samples mu(s, a)): worst where data are scarce.

    `bounded` clips the error to +-1 / (1 - gamma), which the theorems assume.
    """
    for name, number in (("sigma", sigma), ("samples", samples)):
        if not (np.isfinite(number) and number >= 0.0):
            raise ValueError(f"{name}: got {number!r}, takes a finite number of at least 0")

    def evaluate(mdp: TabularMDP, pi: FloatArray, mu: FloatArray, rng: np.random.Generator) -> FloatArray:
        error = sigma / np.sqrt(1.0 + samples * mu) * rng.standard_normal(mu.shape)
        if bounded:
            largest = 1.0 / (1.0 - mdp.gamma)
            error = np.clip(error, -largest, largest)
        return np.asarray(solve.action_value(mdp, pi) + error)

    return evaluate


def _movement(q: FloatArray, previous: FloatArray | None, mu: FloatArray) -> tuple[float, float]:
    """(diff, scale) of a round: means over mu of |q - previous| and of |q|."""
    scale = float((mu * np.abs(q)).sum())
    return (np.inf if previous is None else float((mu * np.abs(q - previous)).sum())), scale


def _history(
    mdp: TabularMDP,
    targets: list[FloatArray],
    behaviours: list[FloatArray],
    qs: list[FloatArray],
    mus: list[FloatArray],
    accepted: list[bool],
) -> History:
    target, behaviour, q, mu = (np.stack(tables) for tables in (targets, behaviours, qs, mus))
    movement = [_movement(q[k], q[k - 1] if k else None, mu[k]) for k in range(len(q))]
    diff, scale = np.array(movement).T
    return History(
        target=target,
        behaviour=behaviour,
        q=q,
        mu=mu,
        diff=diff,
        scale=scale,
        accepted=np.array(accepted),
        target_value=solve.start_value(mdp, target),
        behaviour_value=solve.start_value(mdp, behaviour),
        certificates=theory.certificate(mdp, target[:-1], behaviour[:-1], behaviour[1:], q),
    )


def _next_policy(mdp: TabularMDP, improve: Improve, q: FloatArray, policy: FloatArray, mu: FloatArray) -> FloatArray:
    return as_policy(mdp, improve(q, policy, mu), "policy from improve")


def _one_policy(mdp: TabularMDP, pi: Any) -> FloatArray:
    policy = as_policy(mdp, pi)
    if policy.ndim != 2:
        raise ValueError(f"pi: got shape {policy.shape}, takes one policy [S, A]")
    return policy


__all__ = [
    "Criterion",
    "Evaluate",
    "GateParams",
    "History",
    "Improve",
    "conservative_policy_iteration",
    "conservative_step",
    "exact_evaluation",
    "greedy_step",
    "mirror_descent_step",
    "noisy_evaluation",
    "on_policy_api",
    "sv_api",
]
