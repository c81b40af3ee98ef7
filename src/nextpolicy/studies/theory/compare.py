"""Approximate policy iteration with a slow, noisy critic: Algorithms 1 and 2 of Sandhu and Parr, and CPI.

CPI is conservative policy iteration (Kakade and Langford, 2002). With n(s, a) = samples mu(s, a) expected visits in a
round, the critic q moves by the fraction n / (1 + n) towards Q^pi(s, a) plus Gaussian noise of standard deviation
sigma / sqrt(1 + n). Its error therefore persists where data are scarce.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from nextpolicy.config import whole
from nextpolicy.core import check
from nextpolicy.criteria.stable_values import GateParams
from nextpolicy.report.drawing import name_ends
from nextpolicy.report.palette import COLOURS
from nextpolicy.tabular import solve
from nextpolicy.tabular.evaluation import Evaluate, exact_evaluation
from nextpolicy.tabular.improvement import Improve, conservative_step, mirror_descent_step
from nextpolicy.tabular.mdp import FloatArray, TabularMDP
from nextpolicy.tabular.policy_iteration import History, on_policy_api, sv_api

FELL = 1e-6  # a drop of the target's value by more than this counts


class LearningCritic:
    """An `Evaluate` with state; each run needs its own."""

    def __init__(self, sigma: float, samples: float) -> None:
        check.number("sigma", sigma, 0.0, np.inf)
        check.number("samples", samples, 0.0, np.inf)
        self.sigma, self.samples = sigma, samples
        self.q: FloatArray | None = None

    def __call__(self, mdp: TabularMDP, pi: FloatArray, mu: FloatArray, rng: np.random.Generator) -> FloatArray:
        visits = self.samples * mu
        noise = self.sigma / np.sqrt(1.0 + visits) * rng.standard_normal(mu.shape)
        heard = solve.action_value(mdp, pi) + noise
        known = np.zeros_like(mu) if self.q is None else self.q
        self.q = known + visits / (1.0 + visits) * (heard - known)
        return np.asarray(self.q)


@dataclass(frozen=True)
class Settings:
    """Settings of the comparison."""

    rounds: int = 150
    repeats: int = 8
    sigma: float = 0.05
    samples: float = 1000.0
    step_size: float = 10.0
    delta_v: float = 0.1
    k_min: int = 4
    k_max: int = 33
    mixing: float = 0.1  # alpha of CPI with a fixed step

    def __post_init__(self) -> None:
        for name in ("rounds", "repeats"):
            whole(name, getattr(self, name), 1, 1_000_000)
        for name in ("sigma", "samples", "step_size"):
            check.number(name, getattr(self, name), 0.0, 1e12)


def variants(mdp: TabularMDP, settings: Settings) -> dict[str, Callable[[np.random.Generator], History]]:
    """The algorithms by name. Each call is one run from the uniform policy."""
    start = np.full((mdp.states, mdp.actions), 1.0 / mdp.actions)
    mirror = mirror_descent_step(settings.step_size)
    gate = GateParams.dynamic(settings.delta_v, settings.k_min, settings.k_max)

    def api(improve: Improve, rng: np.random.Generator, evaluate: Evaluate | None = None) -> History:
        critic = evaluate or LearningCritic(settings.sigma, settings.samples)
        return on_policy_api(mdp, start, critic, improve, rounds=settings.rounds, rng=rng)

    def gated(rng: np.random.Generator) -> History:
        critic = LearningCritic(settings.sigma, settings.samples)
        return sv_api(mdp, start, critic, mirror, gate, rounds=settings.rounds, rng=rng)

    best_bound = conservative_step(mdp.gamma)
    fixed = conservative_step(mdp.gamma, settings.mixing / (1.0 - mdp.gamma))
    return {
        "API, exact critic": lambda rng: api(mirror, rng, exact_evaluation),
        "API": lambda rng: api(mirror, rng),
        "SV-API": gated,
        "CPI, step of its bound": lambda rng: api(best_bound, rng),
        f"CPI, mixing {settings.mixing:g}": lambda rng: api(fixed, rng),
    }


def compare(mdp: TabularMDP, settings: Settings) -> dict[str, list[History]]:
    """Run every variant with the same seeds."""
    seeds = range(settings.repeats)
    return {n: [run(np.random.default_rng(s)) for s in seeds] for n, run in variants(mdp, settings).items()}


def falls(history: History) -> np.ndarray:
    """Rounds in which the target's value dropped."""
    return np.flatnonzero(np.diff(history.target_value) < -FELL)


def table(histories: dict[str, list[History]]) -> list[dict[str, Any]]:
    """One row per variant: medians over the repeats."""
    lines = []
    for name, runs in histories.items():
        dropped = [falls(h) for h in runs]
        first = [float(d[0]) for d in dropped if len(d)]
        updates = np.mean([h.accepted.sum() for h in runs])
        rounds = len(runs[0].accepted)
        lines.append(
            {
                "algorithm": name,
                "V(s0) of the target at the end": float(np.median([h.target_value[-1] for h in runs])),
                "after a quarter": float(np.median([h.target_value[rounds // 4] for h in runs])),
                "target updates": float(updates),
                "updates that lost value": float(np.mean([len(d) for d in dropped])),
                "share of updates": float(np.mean([len(d) for d in dropped]) / updates) if updates else float("nan"),
                "first loss in round": float(np.median(first)) if first else float("nan"),
                "largest loss": float(np.median([max(0.0, -np.diff(h.target_value).min()) for h in runs])),
                "certificates hold": bool(
                    all(h.certificates.holds[h.certificates.assumptions_met].all() for h in runs)
                ),
            }
        )
    return lines


_STYLES = (  # API is what PPO does, SV-API what SV-PPO does: they have the colours of those
    ("#000000", ":", 1.2),
    (COLOURS[0], (0, (5, 2)), 1.5),
    (COLOURS[2], "-", 1.8),
    (COLOURS[3], (0, (1, 1)), 1.5),
    (COLOURS[4], (0, (6, 2, 1, 2)), 1.5),
)


def figure(mdp: TabularMDP, histories: dict[str, list[History]]) -> Figure:
    """The target's value per round, and the updates that decreased it (gid `falls`, one mark each)."""
    out = Figure(figsize=(10.5, 4.2), layout="constrained")
    value, loss = out.subplots(1, 2)
    named = []
    for place, ((name, runs), (colour, style, width)) in enumerate(zip(histories.items(), _STYLES)):
        values = np.stack([h.target_value for h in runs])
        k = np.arange(values.shape[1])
        value.fill_between(k, values.min(0), values.max(0), color=colour, alpha=0.15, linewidth=0)
        named += value.plot(k, np.median(values, axis=0), color=colour, linestyle=style, linewidth=width, label=name)
        if name == "SV-API":
            behaviour = np.median([h.behaviour_value for h in runs], axis=0)
            named += value.plot(k, behaviour, color=colour, linewidth=0.7, label="SV-API, behaviour")
        rounds = np.concatenate([falls(h) for h in runs])
        sizes = np.concatenate([-np.diff(h.target_value)[falls(h)] for h in runs])
        marker = "xsov^"[place]
        loss.plot(rounds, sizes, linestyle="none", marker=marker, markersize=4, color=colour, label=name, alpha=0.7,
                  markerfacecolor="none", gid="falls")  # fmt: skip
    best = float(solve.optimal(mdp).V @ mdp.start)
    named.append(value.axhline(best, color="#999999", linewidth=0.8, label="V*"))
    value.set(xlabel="round k", ylabel="V(s0) of the target (discounted return)")
    value.set_title("(a) Value of the target: median and range", fontsize=10)
    value.set_xlim(0, k[-1])
    name_ends(value, named, 7.0)
    loss.set(xlabel="round k", ylabel="value lost by the update (return)", yscale="log", xlim=value.get_xlim())
    loss.set_title("(b) Updates that made the target worse, all repeats", fontsize=10)
    out.legend(*loss.get_legend_handles_labels(), loc="outside lower right", ncols=5, fontsize=8)
    out.suptitle("Policy iteration on Four Rooms with a slow, noisy critic")
    return out
