"""Approximate policy iteration on a tabular MDP: Algorithms 1 and 2 of Sandhu and Parr (arXiv 2605.05481).

`Evaluate` estimates Q^pi of the target policy from data with distribution mu. `Improve` computes the next behavioural
policy from the estimate. In Algorithm 2, a criterion decides when the target follows the behavioural policy. Data
distributions are exact: mu is the visitation d^beta of the behavioural policy.

With `soft_evaluation` and `soft_greedy_step` of one temperature, Algorithm 1 is soft policy iteration (Haarnoja et al.,
2018) and Algorithm 2 its stable-value form. Passing the same `temperature` here makes the values and certificates of
the history soft. At temperature 0, everything is as without it.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from nextpolicy.core import check
from nextpolicy.criteria import Criterion
from nextpolicy.criteria.stable_values import StableValues
from nextpolicy.tabular import solve, theory
from nextpolicy.tabular.evaluation import Evaluate
from nextpolicy.tabular.improvement import Improve
from nextpolicy.tabular.mdp import FloatArray, TabularMDP, as_policy, as_table
from nextpolicy.tabular.theory import Certificate
from nextpolicy.types import Evidence, PyTree


@dataclass(frozen=True, eq=False)
class History:
    """The history of K rounds. Index k is the policy at the start of round k; index K is the final policy.

    `certificates[k]` is about the update pi_k <- beta_{k+1}, whether or not it was accepted.
    """

    target: FloatArray  # [K + 1, S, A] pi_k
    behaviour: FloatArray  # [K + 1, S, A] beta_k
    q: FloatArray  # [K, S, A] the estimate of Q^{pi_k}
    mu: FloatArray  # [K, S, A] d^{beta_k}, the distribution of round k's data
    diff: FloatArray  # [K] mean over mu_k of |q_k - q_{k-1}|; infinite in round 0
    scale: FloatArray  # [K] mean over mu_k of |q_k|
    accepted: npt.NDArray[np.bool_]  # [K]
    target_value: FloatArray  # [K + 1] V^{pi_k}(s_0), soft if there is a temperature
    behaviour_value: FloatArray  # [K + 1] V^{beta_k}(s_0), likewise
    certificates: Certificate  # fields [K]


def on_policy_api(
    mdp: TabularMDP,
    pi: npt.ArrayLike,
    evaluate: Evaluate,
    improve: Improve,
    *,
    rounds: int,
    rng: np.random.Generator,
    temperature: float = 0.0,
) -> History:
    """Algorithm 1: mu_k = d^{pi_k}; q_k = evaluate(pi_k, mu_k); pi_{k+1} = improve(q_k, pi_k, mu_k)."""
    check.whole("rounds", rounds)
    check.number("temperature", temperature, 0.0, np.inf, open_high=True)
    policies, qs, mus = [_one_policy(mdp, pi)], [], []
    for _ in range(rounds):
        mu = solve.visitation(mdp, policies[-1])
        q = as_table(mdp, evaluate(mdp, policies[-1], mu, rng), "q from evaluate")
        policies.append(_next_policy(mdp, improve, q, policies[-1], mu))
        qs.append(q)
        mus.append(mu)
    return _history(mdp, policies, policies, qs, mus, [True] * rounds, temperature)


def sv_api(
    mdp: TabularMDP,
    pi: npt.ArrayLike,
    evaluate: Evaluate,
    improve: Improve,
    criterion_params: PyTree,
    *,
    rounds: int,
    rng: np.random.Generator,
    criterion: Criterion | None = None,
    temperature: float = 0.0,
) -> History:
    """Algorithm 2: the behavioural policy improves every round; the target follows if the criterion accepts.

        mu_k = d^{beta_k};  q_k = evaluate(pi_k, mu_k);  beta_{k+1} = improve(q_k, beta_k, mu_k)
        pi_{k+1} = beta_{k+1} if the criterion accepts, else pi_k

    By default the criterion is `StableValues`, with `GateParams` as `criterion_params`. Its evidence has
    diff_k = sum mu_k |q_k - q_{k-1}| for both kinds of diff, scale_k = sum mu_k |q_k|, and exact divergences of the
    policies. In round 0, diff is infinite, so the values are not stable, but k_max can still force an update. With
    `GateParams.ppo()`, this is Algorithm 1.
    """
    criterion = StableValues() if criterion is None else criterion
    check.whole("rounds", rounds)
    check.number("temperature", temperature, 0.0, np.inf, open_high=True)
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
        movement = _movement(q, qs[-1] if qs else None, mu)
        evidence = _evidence(movement, mu, targets[-1], behaviours[-2], behaviours[-1])
        state, accept, _ = criterion.update(state, evidence, criterion_params, jnp.float32(k / rounds))
        accepted.append(bool(accept))
        targets.append(behaviours[-1] if accepted[-1] else targets[-1])
        qs.append(q)
        mus.append(mu)
    return _history(mdp, targets, behaviours, qs, mus, accepted, temperature)


def _evidence(
    movement: tuple[float, float], mu: FloatArray, target: FloatArray, behaviour: FloatArray, following: FloatArray
) -> Evidence:
    """The evidence of a round; divergences and ratios are means over mu [S, A]."""

    def kl(p: FloatArray, q: FloatArray) -> float:
        with np.errstate(divide="ignore", invalid="ignore"):
            terms = np.where(p > 0, p * (np.log(p) - np.log(q)), 0.0)
        return float(mu.sum(1) @ terms.sum(1))

    diff, scale = movement
    weight = np.where(behaviour > 0, mu.sum(1, keepdims=True) * target, 0.0)  # mu times the ratio
    # A softmax may give an action almost no probability, and the ratio overflows: the effective sample size is then 0.
    with np.errstate(over="ignore"):
        square = weight * np.divide(target, behaviour, out=np.zeros_like(target), where=weight > 0)
    ess = weight.sum() ** 2 / max(square.sum(), 1e-30)
    numbers = (diff, diff, scale, kl(behaviour, following), kl(target, behaviour), kl(target, following), ess)
    return Evidence(*map(jnp.float32, numbers))


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
    temperature: float,
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
        target_value=solve.start_value(mdp, target, temperature),
        behaviour_value=solve.start_value(mdp, behaviour, temperature),
        certificates=theory.certificate(mdp, target[:-1], behaviour[:-1], behaviour[1:], q, temperature=temperature),
    )


def _next_policy(mdp: TabularMDP, improve: Improve, q: FloatArray, policy: FloatArray, mu: FloatArray) -> FloatArray:
    return as_policy(mdp, improve(q, policy, mu), "policy from improve")


def _one_policy(mdp: TabularMDP, pi: npt.ArrayLike) -> FloatArray:
    policy = as_policy(mdp, pi)
    if policy.ndim != 2:
        raise ValueError(f"pi: expected one policy [S, A], got shape {policy.shape}")
    return policy
