"""Estimates of Q^pi for policy iteration."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nextpolicy.tabular import solve
from nextpolicy.tabular.mdp import FloatArray, TabularMDP

Evaluate = Callable[[TabularMDP, FloatArray, FloatArray, np.random.Generator], FloatArray]
"""(mdp, target policy [S, A], data distribution mu [S, A], rng) -> q [S, A]."""


def exact_evaluation(mdp: TabularMDP, pi: FloatArray, mu: FloatArray, rng: np.random.Generator) -> FloatArray:
    """The exact Q^pi. With greedy improvement, Algorithm 1 then is policy iteration."""
    return solve.action_value(mdp, pi)


def noisy_evaluation(sigma: float, samples: float = 0.0, *, bounded: bool = True) -> Evaluate:
    """Q^pi plus Gaussian noise of standard deviation sigma / sqrt(1 + samples mu(s, a)), largest where data are scarce.

    `bounded` clips the error to +-1 / (1 - gamma), which the theorems assume.
    """
    for name, number in (("sigma", sigma), ("samples", samples)):
        if not (np.isfinite(number) and number >= 0.0):
            raise ValueError(f"{name}: expected a finite number of at least 0, got {number!r}")

    def evaluate(mdp: TabularMDP, pi: FloatArray, mu: FloatArray, rng: np.random.Generator) -> FloatArray:
        error = sigma / np.sqrt(1.0 + samples * mu) * rng.standard_normal(mu.shape)
        if bounded:
            largest = 1.0 / (1.0 - mdp.gamma)
            error = np.clip(error, -largest, largest)
        return np.asarray(solve.action_value(mdp, pi) + error)

    return evaluate
