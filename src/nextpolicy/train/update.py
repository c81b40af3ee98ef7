"""One round of Stable-Value PPO: Algorithm 3 of Sandhu and Parr, "Approximate Next Policy Sampling" (arXiv 2605.05481).

PPO is the same with the gate always open.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from nextpolicy.core import losses, minibatch, one_vector, returns, running_stats
from nextpolicy.train.rollout import Episodes
from nextpolicy.train.state import Agent, Hypers, Setup
from nextpolicy.types import Array, Params, PolicySnapshot, Rollout, Targets

# exp(20) is 5e8: beyond any clip in use, and its square is still a float32.
_MAX_LOG_RATIO = 20.0

Metrics = dict[str, Array]
TERMS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")  # of the objective


def learn_round(
    setup: Setup, hypers: Hypers, agent: Agent, rollout: Rollout, episodes: Episodes
) -> tuple[Agent, Metrics]:
    """Evaluate the frozen target, improve the behavioural policy, and ask the gate whether the target may follow."""
    rollout = without_artefacts(rollout)
    key_next, key_shuffle = jax.random.split(agent.key)
    progress = agent.round / setup.config.num_rounds
    learning_rate = hypers.learning_rate + progress * (hypers.learning_rate_final - hypers.learning_rate)

    # 1. Evaluate the target policy pi on data of the behavioural policy beta_k.
    target_dist = setup.networks.policy(agent.target)(rollout.obs)
    targets = evaluate_target(setup, hypers, agent, rollout, target_dist.log_prob(rollout.action))

    # 2. Improve the behavioural policy against the critic of pi, and the critic towards y.
    params, opt_state, fit = improve(
        setup, hypers, agent, rollout, targets, learning_rate, _shard_key(setup, key_shuffle)
    )

    # 3. Statistics roll forward once, here: beta_{k+1} is the new parameters and the new statistics.
    obs_stats, reward_stats = _roll_statistics(setup, agent, rollout, episodes)
    behaviour = PolicySnapshot(params["actor"], obs_stats)

    # 4. The gate: the target jumps to beta_{k+1}, or is held.
    diff = _mean_change(setup, agent, rollout, targets, params)
    scale = batch_mean(setup, jnp.abs(targets.value_target), rollout.valid)
    gate_state, accept, gate_stats = setup.criterion.update(agent.gate, diff, scale, hypers.gate, progress)
    target = jax.tree.map(lambda new, old: jnp.where(accept, new, old), behaviour, agent.target)

    learned = Agent(params, obs_stats, target, opt_state, reward_stats, gate_state, agent.round + 1, key_next)
    metrics = {
        **_episode_metrics(setup, episodes),
        **{"diff": diff, "diff_scale": scale, "accepted": accept, **_gate_metrics(gate_stats)},
        **_divergences(setup, rollout, target_dist, behaviour, accept),
        **_ratio_metrics(setup, hypers, rollout, targets),
        **fit,
        "explained_variance": _explained_variance(setup, rollout, targets),
        "learning_rate": learning_rate,
        "finite": jnp.isfinite(batch_mean(setup, rollout.reward, rollout.valid))
        & jnp.isfinite(optax.tree.norm(params)),
    }
    return learned, metrics


def evaluate_target(setup: Setup, hypers: Hypers, agent: Agent, rollout: Rollout, target_log_prob: Array) -> Targets:
    """V-trace targets and advantages of the frozen target, with the critic as it was before this round."""
    config = setup.config.ppo
    value_of = setup.networks.value(agent.params, agent.obs_stats)
    value, next_value = value_of(rollout.obs), value_of(rollout.next_obs)
    reward = rollout.reward
    if agent.reward_stats is not None:
        reward = reward / jnp.sqrt(running_stats.variance(agent.reward_stats) + 1e-8)
    dead = rollout.terminated | rollout.truncated if config.truncation == "terminal" else rollout.terminated
    ratio = jnp.exp(jnp.minimum(target_log_prob - rollout.behaviour_log_prob, _MAX_LOG_RATIO))
    steps = (reward, hypers.gamma * (1.0 - dead), rollout.terminated | rollout.truncated, value, next_value)
    value_target = returns.vtrace(ratio, *steps, lam=hypers.lam, rho_max=hypers.rho_max, rho_min=hypers.rho_min)
    advantage = returns.retrace_gae(ratio, *steps, lam=hypers.lam, kind=config.advantage_kind, rho_max=hypers.rho_max)
    return Targets(value, value_target, _normalised(setup, advantage, rollout.valid), ratio)


class _Sample(NamedTuple):
    """What a gradient step reads of each transition, besides the observation."""

    action: Array
    behaviour_log_prob: Array
    value: Array
    value_target: Array
    advantage: Array
    valid: Array | None


def improve(
    setup: Setup, hypers: Hypers, agent: Agent, rollout: Rollout, targets: Targets, learning_rate: Array, key: Array
) -> tuple[Params, Any, Metrics]:
    """Epochs of minibatch gradient steps on the clipped objective; means of its terms over all steps."""
    config = setup.config.ppo
    obs, samples = minibatch.flatten(
        (rollout.obs, _Sample(rollout.action, rollout.behaviour_log_prob, *targets[:3], rollout.valid))
    )
    index = minibatch.indices(key, setup.local_batch, config.epochs, setup.config.minibatches)
    optimiser = setup.optimiser()
    # Fused networks read a narrow copy of the weights, which can as well be taken from one vector.
    form = one_vector.as_it_is() if setup.networks.at_once is None else one_vector.like(agent.params)
    loss = lambda params, *batch: objective(setup, hypers, agent, form.unpack(params), *batch)  # noqa: E731
    gradient = jax.grad(loss, has_aux=True)

    def one_step(carry: tuple[Params, Any], batch: tuple[Array, _Sample]) -> tuple[tuple[Params, Any], Array]:
        (params, opt_state), (index, sample) = carry, batch
        grads, terms = gradient(params, minibatch.take(obs, index), sample)
        grads, terms = (grads, terms) if setup.axis_name is None else jax.lax.pmean((grads, terms), setup.axis_name)
        norm = optax.tree.norm(grads)
        shrink = jnp.minimum(1.0, hypers.max_grad_norm / jnp.maximum(norm, 1e-12))
        direction, opt_state = optimiser.update(jax.tree.map(lambda g: g * shrink, grads), opt_state, params)
        params = jax.tree.map(lambda p, d: p - learning_rate * d, params, direction)
        return (params, opt_state), jnp.stack([*(terms[name] for name in TERMS), norm])  # one write instead of six

    def one_epoch(carry: tuple[Params, Any], index: Array) -> tuple[tuple[Params, Any], Array]:
        # The small arrays in the epoch's order once: their readers need not look up where each number lies.
        return jax.lax.scan(one_step, carry, (index, minibatch.take(samples, index)))

    learned, terms = jax.lax.scan(one_epoch, form.pack((agent.params, agent.opt_state)), index)
    params, opt_state = form.unpack(learned)
    return params, opt_state, dict(zip((*TERMS, "grad_norm"), jnp.mean(terms, axis=(0, 1)), strict=True))


def objective(
    setup: Setup, hypers: Hypers, agent: Agent, params: Params, obs: Array, sample: _Sample
) -> tuple[Array, Metrics]:
    """- clipped surrogate - entropy bonus + value loss, on one minibatch; the ratio is beta_theta / beta_k."""
    dist, value = setup.networks.both(params, agent.obs_stats)(obs)
    log_ratio = dist.log_prob(sample.action) - sample.behaviour_log_prob
    ratio = jnp.exp(log_ratio)
    mean = lambda x: _share_of_mean(setup, x, sample.valid)  # noqa: E731
    surrogate = mean(losses.clipped_surrogate(ratio, sample.advantage, hypers.clip))
    value_loss = mean(losses.clipped_value_loss(value, sample.value, sample.value_target, hypers.value_clip))
    entropy = mean(dist.entropy())
    terms = {
        "policy_loss": -surrogate,
        "value_loss": value_loss,
        "entropy": entropy,
        "approx_kl": mean(ratio - 1.0 - log_ratio),
        "clip_fraction": mean(jnp.abs(ratio - 1.0) > hypers.clip),
    }
    return -surrogate - hypers.entropy_coef * entropy + hypers.value_coef * value_loss, terms


def learn_nothing(setup: Setup, agent: Agent, rollout: Rollout, episodes: Episodes) -> Agent:
    """A warm-up round: only the statistics move, and the target, which is the behavioural policy, takes them over."""
    obs_stats, reward_stats = _roll_statistics(setup, agent, without_artefacts(rollout), episodes)
    target = PolicySnapshot(agent.target.params, obs_stats)
    return agent._replace(obs_stats=obs_stats, reward_stats=reward_stats, target=target)


# Means over the batch, over its valid part, and over the shards of the environment axis.


def without_artefacts(rollout: Rollout) -> Rollout:
    """Zeros in place of whatever the steps hold that are not to be learned from.

    A mask on the losses would not do: 0 * NaN is NaN, in a sum, in a trace and in a gradient alike.
    """
    if rollout.valid is None:
        return rollout
    valid = rollout.valid
    blank = lambda x: jnp.where(valid.reshape(valid.shape + (1,) * (x.ndim - 2)), x, jnp.zeros_like(x))  # noqa: E731
    return jax.tree.map(blank, rollout._replace(valid=None))._replace(valid=valid)


def _share_of_mean(setup: Setup, x: Array, valid: Array | None) -> Array:
    """The mean over valid samples; of one shard, its share: the mean over shards of these is that over all samples."""
    if valid is None:
        return jnp.mean(x)
    count = jnp.sum(valid)
    count = count if setup.axis_name is None else jax.lax.pmean(count, setup.axis_name)
    return jnp.sum(jnp.where(valid, x, 0.0)) / jnp.where(count > 0, count, 1)


def batch_mean(setup: Setup, x: Array, valid: Array | None) -> Array:
    """Mean over the valid steps of all environments, wherever they are."""
    mean = _share_of_mean(setup, x, valid)
    return mean if setup.axis_name is None else jax.lax.pmean(mean, setup.axis_name)


def _normalised(setup: Setup, advantage: Array, valid: Array | None) -> Array:
    """Divided by the batch standard deviation; centred only on request, since that flips signs."""
    kind = setup.config.ppo.advantage_norm
    if kind == "none":
        return advantage
    mean = batch_mean(setup, advantage, valid)
    std = jnp.sqrt(batch_mean(setup, jnp.square(advantage - mean), valid))
    return (advantage - (mean if kind == "standardise" else 0.0)) / (std + 1e-8)


def _shard_key(setup: Setup, key: Array) -> Array:
    """A key of this shard's own."""
    return key if setup.axis_name is None else jax.random.fold_in(key, jax.lax.axis_index(setup.axis_name))


def _roll_statistics(setup: Setup, agent: Agent, rollout: Rollout, episodes: Episodes) -> tuple[Any, Any]:
    """Observation and return statistics after this round's data."""
    obs_stats, reward_stats = agent.obs_stats, agent.reward_stats
    flat = minibatch.flatten((rollout.obs, episodes.discounted_return, rollout.valid))
    if obs_stats is not None:
        obs_stats = running_stats.update(obs_stats, flat[0].astype(jnp.float32), flat[2], setup.axis_name)
    if reward_stats is not None:
        reward_stats = running_stats.update(reward_stats, flat[1], flat[2], setup.axis_name)
    return obs_stats, reward_stats


def _mean_change(setup: Setup, agent: Agent, rollout: Rollout, targets: Targets, params: Params) -> Array:
    """diff_k: how far the values are from where they are going (`target`), or how far they just moved (`network`)."""
    if setup.config.ppo.diff_kind == "target":
        towards = targets.value_target
    else:
        towards = setup.networks.value(params, agent.obs_stats)(rollout.obs)
    return batch_mean(setup, jnp.abs(towards - targets.value), rollout.valid)


def _episode_metrics(setup: Setup, episodes: Episodes) -> Metrics:
    sums = (episodes.returns, episodes.lengths, episodes.finished)
    total, length, count = sums if setup.axis_name is None else jax.lax.psum(sums, setup.axis_name)
    some = jnp.where(count > 0, count, jnp.nan)
    return {"episode_return": total / some, "episode_length": length / some, "episodes": count}


def _gate_metrics(stats: Any) -> Metrics:
    names = ("diff_over_threshold", "stable_rounds", "rounds_held", "k_min", "k_max")
    return {name: getattr(stats, name) for name in names}


def _divergences(setup: Setup, rollout: Rollout, target_dist: Any, behaviour: PolicySnapshot, accept: Array) -> Metrics:
    """How far this round moved the target and the behavioural policy, and how far apart they were, on its states."""
    next_dist = setup.networks.policy(behaviour)(rollout.obs)
    mean = lambda x: batch_mean(setup, x, rollout.valid)  # noqa: E731
    return {
        "kl_target": jnp.where(accept, mean(target_dist.kl(next_dist)), 0.0),
        "kl_behaviour": mean(rollout.behaviour_dist.kl(next_dist)),
        "kl_drift": mean(target_dist.kl(rollout.behaviour_dist)),
    }


def _ratio_metrics(setup: Setup, hypers: Hypers, rollout: Rollout, targets: Targets) -> Metrics:
    ratio = targets.ratio if rollout.valid is None else jnp.where(rollout.valid, targets.ratio, 0.0)
    largest = jnp.max(ratio) if setup.axis_name is None else jax.lax.pmax(jnp.max(ratio), setup.axis_name)
    mean = lambda x: batch_mean(setup, x, rollout.valid)  # noqa: E731
    return {
        "ratio_max": largest,
        "ratio_ess": jnp.square(mean(ratio)) / jnp.maximum(mean(jnp.square(ratio)), 1e-30),
        "rho_clipped": mean((targets.ratio > hypers.rho_max) | (targets.ratio < hypers.rho_min)),
    }


def _explained_variance(setup: Setup, rollout: Rollout, targets: Targets) -> Array:
    def variance(x: Array) -> Array:
        return batch_mean(setup, jnp.square(x - batch_mean(setup, x, rollout.valid)), rollout.valid)

    return 1.0 - variance(targets.value_target - targets.value) / jnp.maximum(variance(targets.value_target), 1e-12)
