"""The evidence for a criterion, from the rollout, the targets and the policies of a round."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax.numpy as jnp

from nextpolicy.core.shards import Shards
from nextpolicy.types import Array, Distribution, Evidence, Rollout


class Targets(NamedTuple):
    """The targets of a round, all [T, N] and constant during its gradient steps."""

    value: Array  # v_k(s_t): the critic before this round's gradient steps
    value_target: Array  # y_t: V-trace estimate of V^pi(s_t) for the frozen target pi
    advantage: Array  # A_t: estimate of A^pi(s_t, a_t), normalised
    ratio: Array  # pi(a_t|s_t) / beta_k(a_t|s_t)
    noise: Array  # expected square of value_target - value, if v_k is exact
    raw_advantage: Array  # A_t before it is normalised


class Moved(NamedTuple):
    """Estimates of the critic v_{k+1}, after the gradient steps, on part of the batch."""

    value: Array  # v_{k+1}(s_t) for t = 0, every, 2 every, ...: [ceil(T / every), N]
    every: int
    advantage: Array  # [T, n], of the first n environments; not normalised


def measure(
    shards: Shards,
    rollout: Rollout,
    targets: Targets,
    moved: Moved,
    target_dist: Distribution | None,
    next_dist: Distribution,
    fitted: Array | None,
) -> Evidence:
    """How far values and policies moved, averaged over this round's states.

    target_dist  pi; None: pi is beta_k
    next_dist    beta_{k+1}
    fitted       whether the critic was trained on a sample, [T, N]; None: on all of them

    The compiler removes what neither the criterion nor a metric reads.
    """
    valid, behaviour_dist = rollout.valid, rollout.behaviour_dist
    every, few = moved.every, moved.advantage.shape[1]
    part, first = (None, None) if valid is None else (valid[::every], valid[:, :few])
    mean = partial(shards.mean, valid=valid)
    kl_step, tv_step = mean(behaviour_dist.kl(next_dist)), behaviour_dist.tv(next_dist)
    square = jnp.square(targets.value_target - targets.value)
    next_ratio = jnp.exp(next_dist.log_prob(rollout.action) - rollout.behaviour_log_prob)
    found = Evidence(
        diff_target=mean(jnp.abs(targets.value_target - targets.value)),
        diff_network=_mean_of_some(shards, jnp.abs(moved.value - targets.value[::every]), part),
        scale=mean(jnp.abs(targets.value_target)),
        kl_step=kl_step,
        kl_drift=jnp.zeros_like(kl_step) if target_dist is None else mean(target_dist.kl(behaviour_dist)),
        kl_jump=kl_step if target_dist is None else mean(target_dist.kl(next_dist)),
        ratio_ess=jnp.square(mean(targets.ratio)) / jnp.maximum(mean(jnp.square(targets.ratio)), 1e-30),
        residual=jnp.sqrt(mean(square)),
        noise=jnp.sqrt(mean(targets.noise)),
        tv_step=mean(tv_step),
        tv_step_high=shards.quantile(tv_step, 0.95, valid),
        sign_changes=_mean_of_some(shards, (targets.raw_advantage[:, :few] > 0) != (moved.advantage > 0), first),
        gain=mean(next_ratio * targets.raw_advantage),
    )
    if fitted is None:
        return found
    held_out = ~fitted if valid is None else ~fitted & valid
    return found._replace(
        residual_held_out=jnp.sqrt(shards.mean(square, held_out)),
        noise_held_out=jnp.sqrt(shards.mean(targets.noise, held_out)),
    )


def _mean_of_some(shards: Shards, x: Array, valid: Array | None) -> Array:
    """The mean over valid samples; NaN if part of the batch has none, since 0 would mean that nothing moved."""
    mean = shards.mean(x, valid)
    return mean if valid is None else jnp.where(shards.total(jnp.sum(valid)) > 0, mean, jnp.nan)


def measure_action_values(
    shards: Shards,
    valid: Array | None,
    action: Array,
    value_target: Array,
    value: Array,
    next_value: Array,
    dists: tuple[Distribution, Distribution, Distribution],
    gain: Array,
) -> Evidence:
    """The evidence of algorithms whose critics value actions; arrays have the batch's leading axes.

    value_target  y_t, an estimate of Q^pi(s_t, a_t)
    value         Q_k(s_t, a_t), before the round's gradient steps; next_value: after them
    dists         (pi, beta_k, beta_{k+1}) in s_t
    gain          how much better Q_k finds the actions of beta_{k+1} than those of pi
    """
    mean = partial(shards.mean, valid=valid)
    target, behaviour, behaviour_next = dists
    ratio = jnp.exp(jnp.minimum(target.log_prob(action) - behaviour.log_prob(action), 20.0))
    tv_step = behaviour.tv(behaviour_next)
    return Evidence(
        diff_target=mean(jnp.abs(value_target - value)),
        diff_network=mean(jnp.abs(next_value - value)),
        scale=mean(jnp.abs(value_target)),
        kl_step=mean(behaviour.kl(behaviour_next)),
        kl_drift=mean(target.kl(behaviour)),
        kl_jump=mean(target.kl(behaviour_next)),
        ratio_ess=jnp.square(mean(ratio)) / jnp.maximum(mean(jnp.square(ratio)), 1e-30),
        residual=jnp.sqrt(mean(jnp.square(value_target - value))),
        tv_step=mean(tv_step),
        tv_step_high=shards.quantile(tv_step, 0.95, valid),
        gain=mean(gain),
    )
