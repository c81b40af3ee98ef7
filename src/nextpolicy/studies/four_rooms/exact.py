"""Exact quantities of every training round on Four Rooms, in float64: those in the theory of Sandhu and Parr.

Round k collects data with beta_k, evaluates the frozen target pi_k, and ends with the critic v_k, the behavioural
policy beta_{k+1} and the target pi_{k+1} (beta_{k+1} if the gate accepts, else pi_k). The row of round k describes the
state after the round. `observe` returns policies and critic on all 104 observations; all else is NumPy.

The goal is terminal and nothing is learned there. By convention, the critic is 0 and every policy uniform at the goal.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nextpolicy.loop.keys import member_keys
from nextpolicy.loop.state import MemberState, Setup, init_agent
from nextpolicy.nets.heads import Categorical
from nextpolicy.tabular import four_rooms_mdp, solve, theory
from nextpolicy.tabular.mdp import FloatArray, TabularMDP
from nextpolicy.types import Array, PolicySnapshot

ROOMS = ("top_left", "top_right", "bottom_left", "bottom_right")
DOORWAY = four_rooms_mdp.state_index(*four_rooms_mdp.DOORWAYS["left"])


class Tables(NamedTuple):
    """Policies and critic on every observation; leading axes are [members, rounds] in a block of training."""

    behaviour: Array | np.ndarray  # [..., 104, 4] log-probabilities
    target: Array | np.ndarray  # [..., 104, 4] log-probabilities
    value: Array | np.ndarray  # [..., 104]


class Trajectory(NamedTuple):
    """The tables of a training of M members and K rounds, including the start."""

    behaviour: FloatArray  # [M, K + 1, 104, 4] probabilities of beta_k
    target: FloatArray  # [M, K + 1, 104, 4] probabilities of pi_k
    value: FloatArray  # [M, K + 1, 104]: index k + 1 is v_k, the critic after round k; index 0 is the initial critic
    accepted: np.ndarray  # [M, K] bool

    def member(self, index: int) -> Trajectory:
        """One member, without the leading axis."""
        return Trajectory(*(x[index] for x in self))


def observe(setup: Setup, state: MemberState) -> Tables:
    """The tables of one member; training calls this after every round."""
    agent = state.agent
    rows = jnp.arange(len(four_rooms_mdp.cells))
    return Tables(
        behaviour=_log_probabilities(setup, setup.algorithm.behaviour(agent.learner)),
        target=_log_probabilities(setup, agent.target),
        value=setup.networks.value(agent.learner.params, agent.learner.obs_stats)(rows),
    )


def _log_probabilities(setup: Setup, snapshot: PolicySnapshot) -> Array:
    dist = setup.networks.policy(snapshot)(jnp.arange(len(four_rooms_mdp.cells)))
    assert isinstance(dist, Categorical)
    return dist.logits


def observe_start(setup: Setup, seeds: np.ndarray) -> Tables:
    """The tables of all members before the first round, leaves [M, ...]."""

    def one(seed: Array) -> Tables:
        agent = init_agent(setup, member_keys(seed, setup.shards).key_agent)
        return observe(setup, MemberState(agent, ()))

    return jax.tree.map(np.asarray, jax.jit(lambda seeds: jax.lax.map(one, seeds))(jnp.asarray(seeds)))


def trajectory(start: Tables, rounds: Tables, accepted: np.ndarray) -> Trajectory:
    """Join the start [M, ...] and the rounds [M, K, ...]."""
    join = lambda a, b: np.concatenate([np.asarray(a)[:, None], np.asarray(b)], axis=1).astype(np.float64)  # noqa: E731
    goal = four_rooms_mdp.state_index(*four_rooms_mdp.GOAL)
    value = join(start.value, rounds.value)
    value[..., goal] = 0.0
    return Trajectory(
        behaviour=_probabilities(join(start.behaviour, rounds.behaviour), goal),
        target=_probabilities(join(start.target, rounds.target), goal),
        value=value,
        accepted=np.asarray(accepted, bool),
    )


def _probabilities(logits: FloatArray, goal: int) -> FloatArray:
    weight = np.exp(logits - logits.max(-1, keepdims=True))
    weight[..., goal, :] = 1.0
    return np.asarray(weight / weight.sum(-1, keepdims=True))


def quantities(mdp: TabularMDP, run: Trajectory) -> dict[str, np.ndarray]:
    """The exact quantities of every round, arrays [M, K]; `COLUMNS` describes them."""
    # NumPy's solvers release the GIL, so members run in parallel threads, unless each solver starts its own threads.
    alone = os.environ.get("OPENBLAS_NUM_THREADS") == "1"
    with ThreadPoolExecutor(len(os.sched_getaffinity(0)) if alone else 1) as pool:
        members = list(pool.map(partial(_member_quantities, mdp), map(run.member, range(len(run.behaviour)))))
    return {name: np.stack([one[name] for one in members]) for name in members[0]}


def _member_quantities(mdp: TabularMDP, run: Trajectory) -> dict[str, np.ndarray]:
    pi, beta, beta_next = run.target[:-1], run.behaviour[:-1], run.behaviour[1:]
    V_behaviour, V_target = solve.state_value(mdp, run.behaviour), solve.state_value(mdp, run.target)
    value = run.value[1:]
    certificate = theory.certificate(mdp, pi, beta, beta_next, solve.backup(mdp, value))
    visited = solve.visitation(mdp, run.behaviour)
    alive = _alive(mdp, visited)
    data, following = alive[:-1].sum(-1), alive[1:].sum(-1)
    error = value - V_target[:-1]
    moved = theory.total_variation(beta, beta_next)
    return {
        "value_behaviour": V_behaviour[1:] @ mdp.start,
        "value_target": V_target[1:] @ mdp.start,
        "msve_train": (visited[:-1].sum(-1) * error**2).sum(-1),
        "msve_next": (visited[1:].sum(-1) * error**2).sum(-1),
        "msve_train_alive": (data * error**2).sum(-1),
        "msve_next_alive": (following * error**2).sum(-1),
        "epsilon_train": certificate.error,
        "epsilon_next": certificate.next_error,
        "tv_visitation": certificate.npa_distance,
        "tv_visitation_alive": theory.total_variation(alive[:-1], alive[1:], axis=(-2, -1)),
        "tv_policy_max": moved.max(-1),
        "tv_policy_mean": (data * moved).sum(-1),
        "exact_kl_target": (data * kl(pi, run.target[1:])).sum(-1),
        "exact_kl_behaviour": (data * kl(beta, beta_next)).sum(-1),
        "exact_kl_drift": (data * kl(pi, beta)).sum(-1),
        **_certificate_columns(certificate),
        **_room_columns(mdp, error, V_behaviour[1:], V_target[1:]),
        **_route_columns(mdp, run.behaviour[1:]),
    }


def _certificate_columns(certificate: theory.Certificate) -> dict[str, np.ndarray]:
    return {
        "bound": certificate.bound,
        "npa_bound": certificate.npa_bound,
        "improvement": certificate.improvement,
        "holds": certificate.holds,
        "vacuous": certificate.vacuous,
        "npa_vacuous": certificate.npa_bound <= 0.0,
        "theorem1_vacuous": certificate.lower <= 0.0,
        "assumptions_met": certificate.assumptions_met,
        "expected_advantage": certificate.expected_advantage,
        "largest_error": certificate.largest_error,
        "delta": certificate.delta,
        "theorem1_lower": certificate.lower,
        "theorem1_upper": certificate.upper,
    }


def _room_columns(
    mdp: TabularMDP, error: FloatArray, V_behaviour: FloatArray, V_target: FloatArray
) -> dict[str, np.ndarray]:
    """Means over the free cells of each room, without doorways and the goal."""
    best = solve.optimal(mdp).V
    columns = {}
    for number, room in enumerate(ROOMS):
        cells = (four_rooms_mdp.room_of == number) & ~mdp.terminal
        columns[f"value_error_{room}"] = np.abs(error[:, cells]).mean(-1)
        columns[f"value_bias_{room}"] = error[:, cells].mean(-1)
        columns[f"gap_{room}"] = (best - V_behaviour)[:, cells].mean(-1)
        columns[f"gap_target_{room}"] = (best - V_target)[:, cells].mean(-1)
    return columns


def _route_columns(mdp: TabularMDP, behaviour: FloatArray) -> dict[str, np.ndarray]:
    chance = four_rooms_mdp.top_route_probability(mdp, behaviour)
    start = int(np.argmax(mdp.start))
    return {"top_from_start": chance[:, start], "top_from_doorway": chance[:, DOORWAY]}


def _alive(mdp: TabularMDP, visited: FloatArray) -> FloatArray:
    """Visitations without terminal states, renormalised: the distribution of the training data."""
    kept = np.where(mdp.terminal[:, None], 0.0, visited)
    return np.asarray(kept / kept.sum((-2, -1), keepdims=True))


def kl(p: FloatArray, q: FloatArray) -> FloatArray:
    """KL(p || q) over the last axis; terms of actions with probability 0 are 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(p > 0, p * (np.log(p) - np.log(q)), 0.0).sum(-1))


COLUMNS: dict[str, str] = {  # formulas between dollars, as `studies.mathml` reads them
    "value_behaviour": "$V(s_0)$ of $beta_{k+1}$, the behavioural policy after the round",
    "value_target": "$V(s_0)$ of $pi_{k+1}$, the target policy after the round",
    "msve_train": "mean over $d^{beta_k}$ of $(V^{pi_k} - v_k)^2$",
    "msve_next": "mean over $d^{beta_{k+1}}$ of $(V^{pi_k} - v_k)^2$: the next-policy-weighted squared value error",
    "msve_train_alive": "msve_train over the non-terminal part of the visitation, renormalised",
    "msve_next_alive": "msve_next over the non-terminal part of the visitation, renormalised",
    "epsilon_train": "$epsilon(d^{beta_k}, q)$: mean of $|Q^{pi_k} - q|$, where $q = R + gamma P v_k$",
    "epsilon_next": "$epsilon(d^{beta_{k+1}}, q)$",
    "tv_visitation": "$d_{TV}$ of the state-action visitations of $beta_k$ and $beta_{k+1}$, including terminal states",
    "tv_visitation_alive": "tv_visitation of the non-terminal parts, renormalised",
    "tv_policy_max": "maximum over states of $d_{TV}(beta_k, beta_{k+1})$",
    "tv_policy_mean": "mean over the non-terminal visitation of $beta_k$ of $d_{TV}(beta_k, beta_{k+1})$",
    "exact_kl_target": "$KL(pi_k || pi_{k+1})$, mean over the non-terminal visitation of $beta_k$; 0 if held",
    "exact_kl_behaviour": "$KL(beta_k || beta_{k+1})$, the same mean",
    "exact_kl_drift": "$KL(pi_k || beta_k)$, the same mean",
    "bound": "certificate: lower bound on $V^{beta_{k+1}}(s_0) - V^{pi_k}(s_0)$",
    "npa_bound": "the corollary's bound, with the true distance of visitations instead of $delta$",
    "improvement": "certificate: $V^{beta_{k+1}}(s_0) - V^{pi_k}(s_0)$, exact",
    "holds": "certificate: improvement at least bound",
    "vacuous": "certificate: bound not above 0",
    "npa_vacuous": "npa_bound not above 0",
    "theorem1_vacuous": "theorem1_lower not above 0",
    "assumptions_met": "certificate: $|Q^{pi_k} - q| <= 1 / (1 - gamma)$ everywhere",
    "expected_advantage": "mean over $d^{beta_{k+1}}$ of $q - V^{pi_k}$",
    "largest_error": "maximum of $|Q^{pi_k} - q|$",
    "delta": "tv_policy_max divided by $1 - gamma$",
    "theorem1_lower": "Theorem 1, lower side",
    "theorem1_upper": "Theorem 1, upper side",
    **{f"value_error_{r}": f"mean of $|v_k - V^{{pi_k}}|$ over the cells of the {r} room" for r in ROOMS},
    **{f"value_bias_{r}": f"mean of $v_k - V^{{pi_k}}$ over the cells of the {r} room" for r in ROOMS},
    **{f"gap_{r}": f"mean of $V^* - V^{{beta_{{k+1}}}}$ over the cells of the {r} room" for r in ROOMS},
    **{f"gap_target_{r}": f"mean of $V^* - V^{{pi_{{k+1}}}}$ over the cells of the {r} room" for r in ROOMS},
    "top_from_start": "probability that $beta_{k+1}$, from the start, first enters the goal's room from the top right",
    "top_from_doorway": "top_from_start, but from the doorway (6, 2) into the bottom-left room",
}
