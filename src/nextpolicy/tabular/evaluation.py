"""Estimates of Q^pi for policy iteration."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nextpolicy.core import check
from nextpolicy.tabular import solve
from nextpolicy.tabular.mdp import FloatArray, TabularMDP

Evaluate = Callable[[TabularMDP, FloatArray, FloatArray, np.random.Generator], FloatArray]
"""(mdp, target policy [S, A], data distribution mu [S, A], rng) -> q [S, A]."""


def exact_evaluation(mdp: TabularMDP, pi: FloatArray, mu: FloatArray, rng: np.random.Generator) -> FloatArray:
    """The exact Q^pi. With greedy improvement, Algorithm 1 then is policy iteration."""
    return solve.action_value(mdp, pi)


def soft_evaluation(temperature: float) -> Evaluate:
    """The exact soft Q^pi (Haarnoja et al., 2018, lemma 1); at temperature 0, `exact_evaluation`."""
    _check_temperature(temperature)
    return lambda mdp, pi, mu, rng: solve.action_value(mdp, pi, temperature)


class PartialEvaluation:
    """q <- (T^pi)^sweeps q, starting from the q of the call before, at first 0. It has state; each run needs its own.

    T^pi is the (soft) Bellman operator, a contraction by gamma with the fixed point Q^pi:

        (T^pi q)(s, a) = R(s, a) + gamma sum_t P(s, a, t) sum_b pi(b|t) (q(t, b) - temperature log pi(b|t))

    While pi is held, the error shrinks by gamma^sweeps per round.
    """

    def __init__(self, sweeps: int, temperature: float = 0.0) -> None:
        check.whole("sweeps", sweeps)
        _check_temperature(temperature)
        self.sweeps, self.temperature = sweeps, temperature
        self.q: FloatArray | None = None

    def __call__(self, mdp: TabularMDP, pi: FloatArray, mu: FloatArray, rng: np.random.Generator) -> FloatArray:
        q = np.zeros_like(mdp.R) if self.q is None else self.q
        bonus = solve.entropy_bonus(mdp, pi, self.temperature)
        for _ in range(self.sweeps):
            q = solve.backup(mdp, (pi * q).sum(-1) + bonus)
        self.q = q
        return q


def noisy_evaluation(sigma: float, samples: float = 0.0, *, bounded: bool = True, temperature: float = 0.0) -> Evaluate:
    """Q^pi plus Gaussian noise of standard deviation sigma / sqrt(1 + samples mu(s, a)), largest where data are scarce.

    `bounded` clips the error to +-1 / (1 - gamma), which the theorems assume. With a temperature, Q^pi is soft.
    """
    _check_temperature(temperature)
    for name, number in (("sigma", sigma), ("samples", samples)):
        if not (np.isfinite(number) and number >= 0.0):
            raise ValueError(f"{name}: expected a finite number of at least 0, got {number!r}")

    def evaluate(mdp: TabularMDP, pi: FloatArray, mu: FloatArray, rng: np.random.Generator) -> FloatArray:
        error = sigma / np.sqrt(1.0 + samples * mu) * rng.standard_normal(mu.shape)
        if bounded:
            largest = 1.0 / (1.0 - mdp.gamma)
            error = np.clip(error, -largest, largest)
        return np.asarray(solve.action_value(mdp, pi, temperature) + error)

    return evaluate


def _check_temperature(temperature: float) -> None:
    check.number("temperature", temperature, 0.0, np.inf, open_high=True)
