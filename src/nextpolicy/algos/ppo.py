"""Proximal policy optimisation (Schulman et al., 2017) with a frozen target policy: PPO and Stable-Value PPO.

One round is the loop body of Algorithm 3 of Sandhu and Parr, "Approximate Next Policy Sampling" (arXiv 2605.05481). It
computes V-trace targets and advantages of the target policy pi from data of the behavioural policy beta_k, then takes
clipped gradient steps from beta_k to beta_{k+1}. If pi is beta_k, all ratios are 1 and this is PPO.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from nextpolicy.algos.base import Pace, Parts
from nextpolicy.algos.descent import descend
from nextpolicy.algos.evidence import Moved, Targets, measure
from nextpolicy.algos.ppo_settings import PPOSettings
from nextpolicy.algos.rounds import all_finite, observed
from nextpolicy.core import losses, minibatch, one_vector, returns, running_stats
from nextpolicy.settings import Settings
from nextpolicy.types import Array, Distribution, Evidence, Metrics, Params, PolicySnapshot, Rollout, RunningStats

if TYPE_CHECKING:
    import optax

# v_k and v_{k+1} are compared on part of a large batch: values on so many samples or more, signs of advantages on about
# so many of each shard.
_COMPARED_VALUES, _COMPARED_SIGNS = 1024, 256
_MAX_LOG_RATIO = 20.0  # exp(20) = 5e8 exceeds any rho_max used in practice, and its square is finite in float32


class Learner(NamedTuple):
    """The state of the algorithm. The behavioural policy is `params["actor"]` with `obs_stats`."""

    params: Params  # {"actor", "critic"}
    obs_stats: RunningStats | None
    opt_state: optax.OptState
    reward_stats: RunningStats | None  # of the discounted return


class _Sample(NamedTuple):
    """The part of a transition that a gradient step reads, besides the observation."""

    action: Array
    behaviour_log_prob: Array
    value: Array
    value_target: Array
    advantage: Array
    valid: Array | None
    fitted: Array | None = None  # whether the critic is trained on it; None: as `valid`


_TERMS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")  # metrics of the objective


class PPO:
    """PPO and Stable-Value PPO."""

    name: ClassVar[str] = "ppo"
    settings: ClassVar[type[Settings]] = PPOSettings
    variants: ClassVar[dict[str, Pace]] = {"ppo": "plain", "sv-static": "static", "sv-dynamic": "dynamic"}

    def __init__(self, settings: PPOSettings, parts: Parts) -> None:
        self.static, self.parts = settings, parts
        self.networks, self.shards = parts.networks, parts.shards

    def init(self, key: Array) -> Learner:
        """Initial parameters and empty statistics."""
        params = self.networks.init(key)
        normalises = self.static.normalise_obs and not self.parts.numbered_obs
        return Learner(
            params=params,
            obs_stats=running_stats.init(self.parts.obs_shape) if normalises else None,
            opt_state=self._optimiser().init(params),
            reward_stats=running_stats.init() if self.static.normalise_reward else None,
        )

    def behaviour(self, learner: Learner) -> PolicySnapshot:
        """beta: the actor and the statistics that normalise its observations."""
        return PolicySnapshot(learner.params["actor"], learner.obs_stats)

    def learn(
        self,
        settings: PPOSettings,
        learner: Learner,
        target: PolicySnapshot | None,
        rollout: Rollout,
        key: Array,
        progress: Array,
    ) -> tuple[Learner, Evidence, Metrics]:
        """Evaluate pi on data of beta_k, then take gradient steps on the actor beta_k and the critic v_k.

        If `target` is None, pi is beta_k: its distribution is in the rollout, and no other network is evaluated.
        """
        learning_rate = settings.learning_rate + progress * (settings.learning_rate_final - settings.learning_rate)
        target_dist = None if target is None else self.networks.policy(target)(rollout.obs)
        log_prob = None if target_dist is None else target_dist.log_prob(rollout.action)
        targets = self.evaluate_target(settings, learner, rollout, log_prob)
        params, opt_state, fit = self.improve(settings, learner, rollout, targets, learning_rate, self.shards.key(key))
        # Statistics are updated only here: beta_{k+1} has the new parameters and the new statistics.
        learned = self.update_statistics(learner, rollout)._replace(params=params, opt_state=opt_state)
        evidence = self._evidence(settings, learner, learned, rollout, targets, target_dist)
        metrics = fit | self._diagnostics(settings, rollout, targets)
        finite = all_finite(self.shards, rollout, params)
        return learned, evidence, metrics | {"learning_rate": learning_rate, "finite": finite}

    def adopt(self, learner: Learner, other: Learner) -> Learner:
        """`learner` with the parameters and statistics of `other`."""
        return other._replace(opt_state=learner.opt_state)

    def update_statistics(self, learner: Learner, rollout: Rollout) -> Learner:
        """Update the observation and return statistics from this round's data."""
        reward_stats = learner.reward_stats
        if reward_stats is not None:
            discounted, valid = minibatch.flatten((rollout.discounted_return, rollout.valid))
            reward_stats = running_stats.update(reward_stats, discounted, valid, self.shards.axis_name)
        return learner._replace(obs_stats=observed(learner.obs_stats, rollout, self.shards), reward_stats=reward_stats)

    def evaluate_target(
        self, settings: PPOSettings, learner: Learner, rollout: Rollout, target_log_prob: Array | None
    ) -> Targets:
        """V-trace targets (Espeholt et al., 2018) and advantages of the frozen target, from the critic v_k.

        If `target_log_prob` [T, N] is None, pi is beta_k.
        """
        targets = self._estimates(settings, learner, learner.params, rollout, target_log_prob)
        advantage = losses.normalise_advantage(targets.advantage, settings.advantage_norm, self.shards, rollout.valid)
        return targets._replace(advantage=advantage)

    def _estimates(
        self, settings: PPOSettings, learner: Learner, params: Params, rollout: Rollout, target_log_prob: Array | None
    ) -> Targets:
        """`evaluate_target` with the critic of `params`, and advantages that are not normalised."""
        value_of = self.networks.value(params, learner.obs_stats)
        value, next_value = value_of(rollout.obs), value_of(rollout.next_obs)
        reward = rollout.reward
        if learner.reward_stats is not None:
            reward = reward / jnp.sqrt(running_stats.variance(learner.reward_stats) + 1e-8)
        ended = rollout.terminated | rollout.truncated
        dead = ended if settings.truncation == "terminal" else rollout.terminated
        steps = (reward, settings.gamma * (1.0 - dead), ended, value, next_value)
        lam, kind, rho_min, rho_max = settings.lam, settings.advantage_kind, settings.rho_min, settings.rho_max
        if target_log_prob is None:
            ratio = jnp.ones_like(value)
            value_target, advantage = returns.on_policy(*steps, lam=lam, kind=kind, rho_max=rho_max, rho_min=rho_min)
        else:
            ratio = jnp.exp(jnp.minimum(target_log_prob - rollout.behaviour_log_prob, _MAX_LOG_RATIO))
            value_target = returns.vtrace(ratio, *steps, lam=lam, rho_max=rho_max, rho_min=rho_min)
            advantage = returns.retrace_gae(ratio, *steps, lam=lam, kind=kind, rho_max=rho_max)
        noise = returns.vtrace_noise(ratio, *steps, lam=lam, rho_max=rho_max, rho_min=rho_min)
        return Targets(value, value_target, advantage, ratio, noise, advantage)

    def improve(
        self,
        settings: PPOSettings,
        learner: Learner,
        rollout: Rollout,
        targets: Targets,
        learning_rate: Array,
        key: Array,
    ) -> tuple[Params, optax.OptState, Metrics]:
        """Several epochs of minibatch gradient steps on `objective`; metrics are means over all gradient steps."""
        rest = _Sample(rollout.action, rollout.behaviour_log_prob, *targets[:3], rollout.valid, self._fitted(rollout))
        batch_size = self.parts.batch_size
        minibatches = batch_size * self.shards.count // settings.minibatch_size
        index = minibatch.indices(key, batch_size, settings.epochs, minibatches)
        # Fused networks read a bfloat16 copy of the weights, which they can take from one vector. On a CPU, few
        # parameters are updated faster as one vector.
        packs = self.networks.fused_actor_critic is not None or one_vector.pays_on_cpu(learner.params)
        form = one_vector.like(learner.params) if packs else one_vector.identity()
        learned, terms = descend(
            lambda params, *batch: self.objective(settings, learner, form.unpack(params), *batch),
            self._optimiser(),
            self.shards,
            form.pack((learner.params, learner.opt_state)),
            minibatch.flatten((rollout.obs, rest)),
            index,
            learning_rate=learning_rate,
            max_grad_norm=settings.max_grad_norm,
            terms=_TERMS,
        )
        params, opt_state = form.unpack(learned)
        return params, opt_state, terms

    def objective(
        self, settings: PPOSettings, learner: Learner, params: Params, obs: Array, sample: _Sample
    ) -> tuple[Array, Metrics]:
        """The loss of a minibatch, and metrics; the ratio is beta_theta / beta_k.

        loss = -surrogate - entropy_coef * entropy + value_coef * value_loss
        """
        dist, value = self.networks.actor_critic(params, learner.obs_stats)(obs)
        log_ratio = dist.log_prob(sample.action) - sample.behaviour_log_prob
        ratio = jnp.exp(log_ratio)
        mean = partial(self.shards.share_of_mean, valid=sample.valid)
        surrogate = mean(losses.clipped_surrogate(ratio, sample.advantage, settings.clip))
        error = losses.clipped_value_loss(value, sample.value, sample.value_target, settings.value_clip)
        value_loss = self.shards.share_of_mean(error, sample.valid if sample.fitted is None else sample.fitted)
        entropy = mean(dist.entropy())
        terms = {
            "policy_loss": -surrogate,
            "value_loss": value_loss,
            "entropy": entropy,
            "approx_kl": mean(ratio - 1.0 - log_ratio),
            "clip_fraction": mean(jnp.abs(ratio - 1.0) > settings.clip),
        }
        return -surrogate - settings.entropy_coef * entropy + settings.value_coef * value_loss, terms

    def _evidence(
        self,
        settings: PPOSettings,
        before: Learner,
        after: Learner,
        rollout: Rollout,
        targets: Targets,
        target_dist: Distribution | None,
    ) -> Evidence:
        # Both critics read observations by the same statistics, so that they differ by the gradient steps alone. A pass
        # over the whole batch would take 4 % of a round, so v_{k+1} is read on part of it.
        steps, envs = rollout.reward.shape
        every, few = _compared(steps, envs, self.shards.count)
        part = jax.tree.map(lambda x: x[::every], rollout.obs)
        next_value = self.networks.value(after.params, before.obs_stats)(part)
        first = jax.tree.map(lambda x: x[:, :few], rollout)
        log_prob = None if target_dist is None else target_dist.log_prob(rollout.action)[:, :few]
        next_advantage = self._estimates(settings, before, after.params, first, log_prob).raw_advantage
        next_dist = self.networks.policy(self.behaviour(after))(rollout.obs)
        moved = Moved(next_value, every, next_advantage)
        return measure(self.shards, rollout, targets, moved, target_dist, next_dist, self._fitted(rollout))

    def _fitted(self, rollout: Rollout) -> Array | None:
        """Whether the critic is trained on a sample, [T, N]: on all but the last environments of each shard.

        None: on all valid samples.
        """
        steps, envs = rollout.reward.shape
        if (trained := envs - round(self.static.held_out * envs)) == envs:
            return None
        fitted = jnp.broadcast_to(jnp.arange(envs) < trained, (steps, envs))
        return fitted if rollout.valid is None else fitted & rollout.valid

    def _diagnostics(self, settings: PPOSettings, rollout: Rollout, targets: Targets) -> Metrics:
        ratio, valid = targets.ratio, rollout.valid
        variance = partial(self.shards.variance, valid=valid)
        unexplained = variance(targets.value_target - targets.value)
        return {
            "ratio_max": self.shards.largest(ratio if valid is None else jnp.where(valid, ratio, 0.0)),
            "rho_clipped": self.shards.mean((ratio > settings.rho_max) | (ratio < settings.rho_min), valid),
            "explained_variance": 1.0 - unexplained / jnp.maximum(variance(targets.value_target), 1e-12),
        }

    def _optimiser(self) -> optax.GradientTransformation:
        """Adam without learning rate and norm clip, which are traced and applied in `improve`."""
        import optax  # importing it takes .3 s, which code that only reads configurations should not pay

        return optax.scale_by_adam(eps=self.static.adam_eps)


def _compared(steps: int, envs: int, shards: int) -> tuple[int, int]:
    """(n, m): critics are compared on every n-th step, and signs of advantages in the first m environments."""
    every = max(1, min(steps, steps * envs * shards // _COMPARED_VALUES))
    return every, min(max(1, envs // 4), -(-_COMPARED_SIGNS // steps))
