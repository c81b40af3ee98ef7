"""Policy improvement steps for policy iteration: greedy, soft greedy, mirror descent, conservative."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nextpolicy.core import check
from nextpolicy.tabular import operators
from nextpolicy.tabular.mdp import FloatArray

Improve = Callable[[FloatArray, FloatArray, FloatArray], FloatArray]
"""(q [S, A], behavioural policy [S, A], mu [S, A]) -> next behavioural policy [S, A]."""


def greedy_step(ties: float = operators.TIES) -> Improve:
    """greedy(q), regardless of the current policy."""
    return lambda q, policy, mu: operators.greedy(q, ties=ties)


def soft_greedy_step(temperature: float, ties: float = operators.TIES) -> Improve:
    """exp(q / temperature), normalised over actions, regardless of the current policy; at temperature 0, greedy(q).

    In each state, it maximises sum_a pi(a|s) (q(s, a) - temperature log pi(a|s)) (Haarnoja et al., 2018, lemma 2).
    """
    check.number("temperature", temperature, 0.0, np.inf, open_high=True)
    if temperature == 0.0:
        return greedy_step(ties)
    return lambda q, policy, mu: operators.softmax(q, temperature)


def mirror_descent_step(step_size: float) -> Improve:
    """pi exp(step_size q), normalised over actions."""
    return lambda q, policy, mu: operators.mirror_descent(policy, q, step_size)


def conservative_step(gamma: float, delta: float | None = None) -> Improve:
    """The step of conservative policy iteration (Kakade and Langford, 2002): (1 - alpha) pi + alpha greedy(q).

    alpha = delta (1 - gamma). If delta is None, it maximises `theory.cpi_bound` with q in place of Q^pi:
    delta = (1 - gamma) G / (4 gamma), at most 1 / (1 - gamma), with G = sum_s mu(s) sum_a (greedy - pi)(a|s) q(s, a).
    """
    if not 0.0 <= gamma < 1.0:
        raise ValueError(f"gamma: expected a number in [0, 1), got {gamma!r}")
    if delta is not None and not 0.0 <= delta * (1.0 - gamma) <= 1.0 + 1e-12:
        raise ValueError(
            f"delta: expected None or a number in [0, 1 / (1 - gamma)] = [0, {1 / (1 - gamma):g}], got {delta!r}"
        )

    def improve(q: FloatArray, policy: FloatArray, mu: FloatArray) -> FloatArray:
        best = operators.greedy(q)
        if delta is not None:
            return operators.mixture(policy, best, min(1.0, delta * (1.0 - gamma)))
        gain = float((mu.sum(-1) * ((best - policy) * q).sum(-1)).sum())
        alpha = 1.0 if gamma == 0.0 else (1.0 - gamma) ** 2 * gain / (4.0 * gamma)
        return operators.mixture(policy, best, float(np.clip(alpha, 0.0, 1.0)))

    return improve
