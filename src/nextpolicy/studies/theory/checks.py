"""Tests of every statement of Sandhu and Parr (arXiv 2605.05481) on random cases: violations and tightness.

A case is an MDP, a target policy pi, a behavioural policy beta, its successor beta', an estimate q of Q^pi and a data
distribution mu. Each statement has the form `small <= large`, where one side is a bound and the other the true value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from nextpolicy.tabular import operators, solve, theory
from nextpolicy.tabular.mdp import FloatArray, TabularMDP, random_mdp, random_policy

GAMMAS = (0.3, 0.5, 0.8, 0.9, 0.95, 0.99)
POLICIES = ("dirichlet", "deterministic", "near", "greedy")
SMALL = 1e-6
ESTIMATES = ("exact", "small", "bounded", "adversarial", "wild")


class Case(NamedTuple):
    """One test case. `estimate` is the kind of error of q; only `wild` violates |Q - q| <= 1 / (1 - gamma)."""

    mdp: TabularMDP
    pi: FloatArray
    beta: FloatArray
    beta_next: FloatArray
    q: FloatArray
    mu: FloatArray
    delta: float  # step of conservative policy iteration
    estimate: str


class Claim(NamedTuple):
    """small <= large, up to the tolerance `slack`; if `lower`, the bound is the small side."""

    small: float
    large: float
    lower: bool
    slack: float

    @property
    def violated(self) -> bool:
        return self.small > self.large + self.slack

    @property
    def bound(self) -> float:
        return self.small if self.lower else self.large

    @property
    def truth(self) -> float:
        return self.large if self.lower else self.small


class Statement(NamedTuple):
    """A statement of the paper, or a false variant of it. `claim` returns None for cases outside its assumptions."""

    name: str
    holds: bool  # whether it is expected to hold
    claim: Callable[[Case], Claim | None]


def draw_case(rng: np.random.Generator, mdp: TabularMDP | None = None) -> Case:
    """A random case, by default on a small random MDP."""
    if mdp is None:
        size, actions = int(rng.integers(2, 9)), int(rng.integers(2, 5))
        mdp = random_mdp(rng, size, actions, float(rng.choice(GAMMAS)), sparsity=float(rng.choice([0.0, 0.5, 1.0])))
        if rng.random() < 0.5:  # rewards of 0 and 1 only
            mdp = TabularMDP(mdp.P, mdp.R.round(), mdp.gamma, mdp.start)
    pi = random_policy(rng, mdp, kind=str(rng.choice(["dirichlet", "deterministic"], p=[0.75, 0.25])))
    estimate = str(rng.choice(ESTIMATES))
    q = solve.action_value(mdp, pi) + _error(rng, pi.shape, estimate, 1.0 / (1.0 - mdp.gamma))
    beta = _policy(rng, mdp, pi, q)
    beta_next = _policy(rng, mdp, beta, q)
    # An arbitrary data distribution, or that of beta, as in SV-API.
    mu = rng.exponential(size=q.shape) ** float(rng.choice([1.0, 6.0]))
    mu = solve.visitation(mdp, beta) if rng.random() < 0.5 else mu
    delta = float(rng.random() ** 3 / (1.0 - mdp.gamma))
    return Case(mdp, pi, beta, beta_next, q, mu / mu.sum(), delta, estimate)


def _policy(rng: np.random.Generator, mdp: TabularMDP, near: FloatArray, q: FloatArray) -> FloatArray:
    kind = str(rng.choice(POLICIES))
    if kind == "near":
        return operators.mixture(near, random_policy(rng, mdp, kind="deterministic"), float(rng.random() ** 4))
    return operators.greedy(q) if kind == "greedy" else random_policy(rng, mdp, kind=kind)


def _error(rng: np.random.Generator, shape: tuple[int, ...], kind: str, largest: float) -> FloatArray:
    if kind == "exact":
        return np.zeros(shape)
    if kind == "small":
        return np.asarray(0.01 * rng.normal(size=shape).clip(-1, 1))
    if kind == "bounded":
        return np.asarray(rng.uniform(-largest, largest, size=shape))
    if kind == "adversarial":
        return np.asarray(largest * rng.choice([-1.0, 1.0], size=shape))
    return np.asarray(10.0 * largest * rng.normal(size=shape))


def _gain(case: Case) -> float:
    return float(theory.improvement(case.mdp, case.pi, case.beta_next))


def _slack(case: Case) -> float:
    return float(theory.rounding(case.mdp, case.q))


def _difference_lemma(case: Case) -> Claim:
    return Claim(
        abs(float(theory.performance_difference(case.mdp, case.pi, case.beta_next)) - _gain(case)),
        0.0,
        False,
        _slack(case),
    )


def _theorem1_lower(case: Case) -> Claim:
    lower, _ = theory.improvement_bounds(case.mdp, case.pi, case.beta_next, case.q)
    return Claim(float(lower), _gain(case), True, _slack(case))


def _theorem1_upper(case: Case) -> Claim:
    _, upper = theory.improvement_bounds(case.mdp, case.pi, case.beta_next, case.q)
    return Claim(_gain(case), float(upper), False, _slack(case))


def _tv_dist(constant: float, bounded: bool) -> Callable[[Case], Claim | None]:
    def claim(case: Case) -> Claim | None:
        if (case.estimate != "wild") != bounded:
            return None
        error = theory.weighted_error(case.mdp, case.pi, case.q, case.mu)
        shift = theory.npa_distance(case.mdp, case.beta_next, case.mu) / (1.0 - case.mdp.gamma)
        after = theory.weighted_error(case.mdp, case.pi, case.q, solve.visitation(case.mdp, case.beta_next))
        return Claim(float(after), float(error + constant * shift), False, _slack(case))

    return claim


def _corollary(case: Case) -> Claim | None:
    if case.estimate == "wild":
        return None
    bound = theory.npa_bound(case.mdp, case.pi, case.beta_next, case.q, case.mu)
    return Claim(float(bound), _gain(case), True, _slack(case))


def _lemma_tv(case: Case) -> Claim:
    moved = theory.npa_distance(case.mdp, case.beta_next, solve.visitation(case.mdp, case.beta))
    allowed = theory.policy_distance(case.mdp, case.beta, case.beta_next) / (1.0 - case.mdp.gamma)
    return Claim(float(moved), float(allowed), False, _slack(case))


def _sv_improvement(bounded: bool) -> Callable[[Case], Claim | None]:
    def claim(case: Case) -> Claim | None:
        if (case.estimate != "wild") != bounded:
            return None
        bound = theory.sv_bound(case.mdp, case.pi, case.beta, case.beta_next, case.q)
        return Claim(float(bound), _gain(case), True, _slack(case))

    return claim


def _cpi(printed: bool) -> Callable[[Case], Claim]:
    def claim(case: Case) -> Claim:
        # The printed bound is about the optimal policy. The corrected bound holds for any policy, including this one.
        best = solve.optimal(case.mdp).pi
        delta = min(case.delta, 0.1 / (1.0 - case.mdp.gamma))
        bound = (theory.cpi_bound_as_printed if printed else theory.cpi_bound)(case.mdp, case.pi, best, delta)
        step = theory.cpi_step(case.mdp, case.pi, best, delta)
        return Claim(float(bound), float(theory.improvement(case.mdp, case.pi, step)), True, _slack(case))

    return claim


def _theorem1_with_estimate(case: Case) -> Claim | None:
    if case.estimate == "wild":
        return None
    after = solve.visitation(case.mdp, case.beta_next)
    gain = (after * (case.q - (case.pi * case.q).sum(-1, keepdims=True))).sum()
    error = theory.weighted_error(case.mdp, case.pi, case.q, after)
    return Claim(float((gain - error) / (1.0 - case.mdp.gamma)), _gain(case), True, _slack(case))


STATEMENTS = (
    Statement("Performance difference lemma (difference of its sides)", True, _difference_lemma),
    Statement("Theorem 1, lower side", True, _theorem1_lower),
    Statement("Theorem 1, upper side", True, _theorem1_upper),
    Statement("Lemma tv_dist (constant 2, as printed)", True, _tv_dist(2.0, True)),
    Statement("Lemma tv_dist with constant 1", True, _tv_dist(1.0, True)),
    Statement("Corollary (next-policy alignment)", True, _corollary),
    Statement("Lemma tv", True, _lemma_tv),
    Statement("Theorem SV-API improvement", True, _sv_improvement(True)),
    Statement("CPI bound, corrected", True, _cpi(printed=False)),
    Statement("CPI bound, as printed", False, _cpi(printed=True)),
    Statement("Theorem 1 with E_pi q in place of V", False, _theorem1_with_estimate),
    Statement("Lemma tv_dist without its bounded error", False, _tv_dist(2.0, False)),
    Statement("SV-API improvement without its bounded error", False, _sv_improvement(False)),
)


def check(cases: Iterator[Case]) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """The table of all statements, and for each violated statement the case with the largest violation."""
    claims: dict[str, list[Claim]] = {s.name: [] for s in STATEMENTS}
    worst: dict[str, tuple[float, Case, Claim]] = {}
    for case in cases:
        for statement in STATEMENTS:
            claim = statement.claim(case)
            if claim is None:
                continue
            claims[statement.name].append(claim)
            missed = (claim.small - claim.large) * (1.0 - case.mdp.gamma)
            if claim.violated and missed > worst.get(statement.name, (-np.inf,))[0]:
                worst[statement.name] = (missed, case, claim)
    table = [_line(s, claims[s.name]) for s in STATEMENTS]
    return table, {name: _counterexample(case, claim) for name, (_, case, claim) in worst.items()}


def _line(statement: Statement, claims: list[Claim]) -> dict[str, Any]:
    violated = sum(c.violated for c in claims)
    # Ratios are meaningful only if both numbers are positive and larger than rounding errors.
    ratios = [c.bound / c.truth for c in claims if min(c.truth, c.bound) > SMALL and not c.violated]
    lower = bool(claims) and claims[0].lower
    return {
        "statement": statement.name,
        "expected": "holds" if statement.holds else "fails",
        "cases": len(claims),
        "violations": violated,
        "median bound / truth": float(np.median(ratios)) if ratios else float("nan"),
        "vacuous": f"{np.mean([c.bound <= 0 for c in claims]):.1%}" if lower else "-",
    }


def _counterexample(case: Case, claim: Claim) -> dict[str, Any]:
    """All data of a counterexample as plain lists."""
    return {
        "bound": claim.bound,
        "truth": claim.truth,
        "states": case.mdp.states,
        "actions": case.mdp.actions,
        "gamma": case.mdp.gamma,
        "estimate": case.estimate,
        "delta": case.delta,
        "largest_error_times_1_minus_gamma": float(
            np.abs(solve.action_value(case.mdp, case.pi) - case.q).max() * (1.0 - case.mdp.gamma)
        ),
        "P": case.mdp.P.tolist(),
        "R": case.mdp.R.tolist(),
        "start": case.mdp.start.tolist(),
        **{name: getattr(case, name).tolist() for name in ("pi", "beta", "beta_next", "q", "mu")},
    }


def unseen_door() -> Case:
    """A hand-made case with two states. Action 0 leads to state 0, action 1 to state 1. Action 1 in state 1 pays 1.

    pi always takes action 0. beta' is pi mixed with 1 % of the optimal policy. q overestimates leaving state 0 by 1000.
    """
    P = np.zeros((2, 2, 2))
    P[:, 0, 0] = P[:, 1, 1] = 1.0
    mdp = TabularMDP(P, np.array([[0.0, 0.0], [0.0, 1.0]]), 0.9, np.array([1.0, 0.0]))
    pi, best = np.array([[1.0, 0.0]] * 2), np.array([[0.0, 1.0]] * 2)
    q = solve.action_value(mdp, pi) + np.array([[0.0, 1_000.0], [0.0, 0.0]])
    beta_next = operators.mixture(pi, best, 0.01)
    return Case(mdp, pi, pi, beta_next, q, solve.visitation(mdp, pi), 0.02, "wild")


def random_cases(count: int, seed: int, mdp: TabularMDP | None = None) -> Iterator[Case]:
    """`count` random cases, determined by `seed`."""
    rng = np.random.default_rng(seed)
    return (draw_case(rng, mdp) for _ in range(count))
