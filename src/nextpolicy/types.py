"""The one vocabulary every other module shares: what a step, a rollout, a target and a frozen policy are.

Arrays are time-major: T steps, N environments, then whatever one environment gives.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax

Array = jax.Array
PyTree = Any
Params = Any


class RunningStats(NamedTuple):
    """Welford's sufficient statistics of a stream: `mean` and `m2` have the shape of one sample."""

    samples: Array  # how many were seen, as a float
    mean: Array
    m2: Array  # sum of squared deviations from the mean


class PolicySnapshot(NamedTuple):
    """A policy: actor parameters AND the observation statistics they were trained to read.

    Freezing one without the other is not freezing: the outputs would drift with the statistics.
    """

    params: Params
    obs_stats: RunningStats | None  # None where observations are not normalised


class EnvStep(NamedTuple):
    """One step of N environments, told before auto-reset forgets anything.

    `next_obs` is the true successor of the state acted in; `obs` is what the policy sees next, which
    after the end of an episode is the first observation of the next one. `terminated` and `truncated`
    are never both true. `valid` is False where the transition is an artefact of the environment's
    auto-reset and must not be learned from; None means every step is real.
    """

    obs: Array  # [N, ...]
    next_obs: Array  # [N, ...]
    reward: Array  # [N] float32, unscaled
    terminated: Array  # [N] bool
    truncated: Array  # [N] bool
    valid: Array | None = None  # [N] bool


class Rollout(NamedTuple):
    """T steps of N environments under one behavioural policy; observations are raw (not normalised)."""

    obs: Array  # [T, N, ...]
    next_obs: Array  # [T, N, ...] true successors, before auto-reset
    action: Array  # [T, N] or [T, N, A]
    reward: Array  # [T, N] unscaled
    terminated: Array  # [T, N] bool
    truncated: Array  # [T, N] bool
    behaviour_log_prob: Array  # [T, N] log beta_k(a_t | s_t)
    behaviour_dist: PyTree  # leaves [T, N, ...]: beta_k's distribution at s_t
    valid: Array | None = None  # [T, N] bool; None: every step counts


class Targets(NamedTuple):
    """What one round learns towards, all [T, N] and constant during the round's gradient steps."""

    value: Array  # v_k(s_t): the critic before this round's gradient steps
    value_target: Array  # y_t: V-trace estimate of V^pi(s_t) for the frozen target pi
    advantage: Array  # A_t: Retrace-GAE estimate of A^pi(s_t, a_t), already normalised
    ratio: Array  # pi(a_t|s_t) / beta_k(a_t|s_t)
