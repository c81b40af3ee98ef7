"""Proximal policy optimisation (Schulman et al., 2017) that evaluates a frozen target policy.

One round is the body of Algorithm 3 of Sandhu and Parr, "Approximate Next Policy Sampling" (arXiv 2605.05481): V-trace
targets and advantages of the target policy pi from data of the behavioural policy beta_k, then clipped gradient steps
from beta_k to beta_{k+1}. If the target is always beta_k, the ratios are 1 and this is PPO.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp

from nextpolicy.algos.base import Pace, Parts
from nextpolicy.core import losses, minibatch, one_vector, returns, running_stats
from nextpolicy.settings import INT32_MAX, ConfigError, Settings, pytree, setting
from nextpolicy.types import (
    Array,
    Distribution,
    Evidence,
    Metrics,
    Params,
    PolicySnapshot,
    PyTree,
    Rollout,
    RunningStats,
)

if TYPE_CHECKING:
    import optax

_BELOW_ONE = 1 - 2**-24  # the last float32 below 1
_MAX_LOG_RATIO = 20.0  # exp(20) is 5e8: beyond any clip in use, and its square is still a float32


@pytree
@dataclass(frozen=True)
class PPOSettings(Settings):
    """Estimation and the PPO objective."""

    epochs: int = setting(4, "Passes over a round's batch.", low=1, high=10_000)
    minibatch_size: int = setting(
        1024,
        "Samples per gradient step; must divide num_envs * rollout_length. If a preset's does not, the number of "
        "minibatches is kept instead.",
        low=1,
        high=INT32_MAX,
    )
    learning_rate: float = setting(3e-4, "Adam's learning rate at the start.", traced=True, low=0, high=1e6)
    learning_rate_final: float = setting(
        0.0, "Learning rate at the end; it falls linearly with the rounds.", traced=True, low=0, high=1e6
    )
    gamma: float = setting(0.99, "Discount factor.", traced=True, low=0, high=_BELOW_ONE, interval="in [0, 1)")
    lam: float = setting(
        0.95, "Trace decay of GAE, Retrace and V-trace.", traced=True, low=0, high=1, interval="in [0, 1]"
    )
    clip: float = setting(0.2, "Clip range of the ratio of successive behavioural policies.", traced=True, low=0)
    value_clip: float = setting(
        0.2, "How far a value may move per round before its loss is clipped; inf for no clip.", traced=True, low=0
    )
    value_coef: float = setting(0.5, "Weight of the value loss.", traced=True, low=0, high=1e6)
    entropy_coef: float = setting(0.01, "Weight of the entropy bonus.", traced=True, low=-1e6, high=1e6)
    max_grad_norm: float = setting(0.5, "Global norm that gradients are clipped to.", traced=True, low=0)
    rho_min: float = setting(0.0, "Lower clip of the importance ratio in V-trace.", traced=True, low=0, high=1e6)
    rho_max: float = setting(5.0, "Upper clip of the importance ratio in V-trace.", traced=True, low=0)
    adam_eps: float = setting(1e-5, "Adam's epsilon.", low=0, high=1e6)
    advantage_kind: Literal["paper", "retrace", "vtrace"] = setting(
        "paper",
        "Off-policy advantage: the paper's equation, the same with the next step's trace (Retrace on state values, "
        "also biased), or V-trace.",
    )
    advantage_norm: Literal["scale", "standardise", "none"] = setting(
        "scale", "Divide advantages by their standard deviation, also centre them, or neither."
    )
    truncation: Literal["bootstrap", "terminal"] = setting(
        "bootstrap", "Whether a time limit bootstraps from the true successor or counts as termination."
    )
    normalise_obs: bool = setting(False, "Whether observations are normalised by running statistics.")
    normalise_reward: bool = setting(
        False, "Whether rewards are divided by the running standard deviation of the discounted return."
    )

    def check(self, batch_size: int) -> None:
        """Minibatches must divide the batch, and the clips of the ratio must be in order."""
        if batch_size % self.minibatch_size:
            raise ConfigError(
                f"minibatch_size: expected a divisor of the batch, num_envs * rollout_length = {batch_size}, "
                f"got {self.minibatch_size}"
            )
        if self.rho_min > self.rho_max:
            raise ConfigError(f"rho_min: expected at most rho_max, {self.rho_max:g}, got {self.rho_min:g}")

    def environment_shards(self, num_envs: int) -> int:
        """Every shard takes an equal part of the environments and of each minibatch."""
        return math.gcd(num_envs, self.minibatch_size)


class Learner(NamedTuple):
    """What learns: the behavioural policy is `params["actor"]` and `obs_stats`."""

    params: Params  # {"actor", "critic"}
    obs_stats: RunningStats | None
    opt_state: PyTree
    reward_stats: RunningStats | None  # of the discounted return


class Targets(NamedTuple):
    """What a round learns towards, all [T, N] and constant during its gradient steps."""

    value: Array  # v_k(s_t): the critic before this round's gradient steps
    value_target: Array  # y_t: V-trace estimate of V^pi(s_t) for the frozen target pi
    advantage: Array  # A_t: estimate of A^pi(s_t, a_t), normalised
    ratio: Array  # pi(a_t|s_t) / beta_k(a_t|s_t)


class _Sample(NamedTuple):
    """What a gradient step reads of each transition, besides the observation."""

    action: Array
    behaviour_log_prob: Array
    value: Array
    value_target: Array
    advantage: Array
    valid: Array | None


_TERMS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")  # of the objective


class PPO:
    """PPO and Stable-Value PPO."""

    name: ClassVar[str] = "ppo"
    settings: ClassVar[type[Settings]] = PPOSettings
    variants: ClassVar[dict[str, Pace]] = {"ppo": "plain", "sv-static": "static", "sv-dynamic": "dynamic"}

    def __init__(self, settings: PPOSettings, parts: Parts) -> None:
        self.static, self.parts = settings, parts
        self.networks, self.shards = parts.networks, parts.shards

    def init(self, key: Array) -> Learner:
        """Fresh parameters, and statistics of no samples."""
        params = self.networks.init(key)
        return Learner(
            params=params,
            obs_stats=running_stats.init(self.parts.obs_shape) if self.static.normalise_obs else None,
            opt_state=self._optimiser().init(params),
            reward_stats=running_stats.init() if self.static.normalise_reward else None,
        )

    def behaviour(self, learner: Learner) -> PolicySnapshot:
        """beta: the actor and the statistics it reads observations with."""
        return PolicySnapshot(learner.params["actor"], learner.obs_stats)

    def learn(
        self,
        settings: PPOSettings,
        learner: Learner,
        target: PolicySnapshot,
        rollout: Rollout,
        key: Array,
        progress: Array,
    ) -> tuple[Learner, Evidence, Metrics]:
        """Evaluate pi on data of beta_k, then improve beta_k against the critic of pi, and the critic towards y."""
        learning_rate = settings.learning_rate + progress * (settings.learning_rate_final - settings.learning_rate)
        target_dist = self.networks.policy(target)(rollout.obs)
        targets = self.evaluate_target(settings, learner, rollout, target_dist.log_prob(rollout.action))
        params, opt_state, fit = self.improve(settings, learner, rollout, targets, learning_rate, self.shards.key(key))
        # Statistics roll forward once, here: beta_{k+1} is the new parameters and the new statistics.
        learned = self.warm_up(learner, rollout)._replace(params=params, opt_state=opt_state)
        evidence = self._evidence(learner, learned, rollout, targets, target_dist)
        metrics = fit | self._diagnostics(settings, rollout, targets)
        return learned, evidence, metrics | {"learning_rate": learning_rate, "finite": self._finite(rollout, params)}

    def warm_up(self, learner: Learner, rollout: Rollout) -> Learner:
        """Observation and return statistics after this round's data; nothing else changes."""
        obs, discounted, valid = minibatch.flatten((rollout.obs, rollout.discounted_return, rollout.valid))
        obs_stats, reward_stats, axis = learner.obs_stats, learner.reward_stats, self.shards.axis_name
        if obs_stats is not None:
            obs_stats = running_stats.update(obs_stats, obs.astype(jnp.float32), valid, axis)
        if reward_stats is not None:
            reward_stats = running_stats.update(reward_stats, discounted, valid, axis)
        return learner._replace(obs_stats=obs_stats, reward_stats=reward_stats)

    def evaluate_target(
        self, settings: PPOSettings, learner: Learner, rollout: Rollout, target_log_prob: Array
    ) -> Targets:
        """V-trace targets and advantages of the frozen target, with the critic as it was before this round."""
        value_of = self.networks.value(learner.params, learner.obs_stats)
        value, next_value = value_of(rollout.obs), value_of(rollout.next_obs)
        reward = rollout.reward
        if learner.reward_stats is not None:
            reward = reward / jnp.sqrt(running_stats.variance(learner.reward_stats) + 1e-8)
        ended = rollout.terminated | rollout.truncated
        dead = ended if settings.truncation == "terminal" else rollout.terminated
        ratio = jnp.exp(jnp.minimum(target_log_prob - rollout.behaviour_log_prob, _MAX_LOG_RATIO))
        steps = (reward, settings.gamma * (1.0 - dead), ended, value, next_value)
        lam, kind, rho_max = settings.lam, settings.advantage_kind, settings.rho_max
        value_target = returns.vtrace(ratio, *steps, lam=lam, rho_max=rho_max, rho_min=settings.rho_min)
        advantage = returns.retrace_gae(ratio, *steps, lam=lam, kind=kind, rho_max=rho_max)
        return Targets(value, value_target, self._normalised(settings, advantage, rollout.valid), ratio)

    def improve(
        self,
        settings: PPOSettings,
        learner: Learner,
        rollout: Rollout,
        targets: Targets,
        learning_rate: Array,
        key: Array,
    ) -> tuple[Params, PyTree, Metrics]:
        """Epochs of minibatch gradient steps on the clipped objective; means of its terms over all steps."""
        import optax

        obs, samples = minibatch.flatten(
            (rollout.obs, _Sample(rollout.action, rollout.behaviour_log_prob, *targets[:3], rollout.valid))
        )
        batch_size, epochs = self.parts.batch_size, settings.epochs
        minibatches = batch_size * self.shards.count // settings.minibatch_size
        index = minibatch.indices(key, batch_size, epochs, minibatches)
        optimiser = self._optimiser()
        # The fused networks read a narrow copy of the weights, which may as well come from one vector.
        fused = self.networks.fused_actor_critic is not None
        form = one_vector.like(learner.params) if fused else one_vector.identity()
        loss = lambda params, *batch: self.objective(settings, learner, form.unpack(params), *batch)  # noqa: E731
        gradient = jax.grad(loss, has_aux=True)

        def one_step(carry: tuple[Params, Any], batch: tuple[Array, _Sample]) -> tuple[tuple[Params, Any], Array]:
            (params, opt_state), (index, sample) = carry, batch
            grads, terms = self.shards.average(gradient(params, minibatch.take(obs, index), sample))
            norm = optax.tree.norm(grads)
            shrink = jnp.minimum(1.0, settings.max_grad_norm / jnp.maximum(norm, 1e-12))
            direction, opt_state = optimiser.update(jax.tree.map(lambda g: g * shrink, grads), opt_state, params)
            params = jax.tree.map(lambda p, d: p - learning_rate * d, params, direction)
            return (params, opt_state), jnp.stack([*(terms[name] for name in _TERMS), norm])  # one write, not six

        def one_epoch(carry: tuple[Params, Any], index: Array) -> tuple[tuple[Params, Any], Array]:
            # Sort the small arrays once per epoch, so that gradient steps read them in order.
            return jax.lax.scan(one_step, carry, (index, minibatch.take(samples, index)))

        learned, terms = jax.lax.scan(one_epoch, form.pack((learner.params, learner.opt_state)), index)
        params, opt_state = form.unpack(learned)
        return params, opt_state, dict(zip((*_TERMS, "grad_norm"), jnp.mean(terms, axis=(0, 1)), strict=True))

    def objective(
        self, settings: PPOSettings, learner: Learner, params: Params, obs: Array, sample: _Sample
    ) -> tuple[Array, Metrics]:
        """- clipped surrogate - entropy bonus + value loss, on one minibatch; the ratio is beta_theta / beta_k."""
        dist, value = self.networks.actor_critic(params, learner.obs_stats)(obs)
        log_ratio = dist.log_prob(sample.action) - sample.behaviour_log_prob
        ratio = jnp.exp(log_ratio)
        mean = partial(self.shards.share_of_mean, valid=sample.valid)
        surrogate = mean(losses.clipped_surrogate(ratio, sample.advantage, settings.clip))
        value_loss = mean(losses.clipped_value_loss(value, sample.value, sample.value_target, settings.value_clip))
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
        self, before: Learner, after: Learner, rollout: Rollout, targets: Targets, target_dist: Distribution
    ) -> Evidence:
        """How far values and policies moved, on this round's states."""
        mean = partial(self.shards.mean, valid=rollout.valid)
        next_value = self.networks.value(after.params, before.obs_stats)(rollout.obs)
        next_dist = self.networks.policy(self.behaviour(after))(rollout.obs)
        ratio = targets.ratio if rollout.valid is None else jnp.where(rollout.valid, targets.ratio, 0.0)
        return Evidence(
            diff_target=mean(jnp.abs(targets.value_target - targets.value)),
            diff_network=mean(jnp.abs(next_value - targets.value)),
            scale=mean(jnp.abs(targets.value_target)),
            kl_step=mean(rollout.behaviour_dist.kl(next_dist)),
            kl_drift=mean(target_dist.kl(rollout.behaviour_dist)),
            kl_jump=mean(target_dist.kl(next_dist)),
            ratio_ess=jnp.square(mean(ratio)) / jnp.maximum(mean(jnp.square(ratio)), 1e-30),
        )

    def _diagnostics(self, settings: PPOSettings, rollout: Rollout, targets: Targets) -> Metrics:
        ratio, valid = targets.ratio, rollout.valid
        variance = partial(self.shards.variance, valid=valid)
        unexplained = variance(targets.value_target - targets.value)
        return {
            "ratio_max": self.shards.largest(ratio if valid is None else jnp.where(valid, ratio, 0.0)),
            "rho_clipped": self.shards.mean((ratio > settings.rho_max) | (ratio < settings.rho_min), valid),
            "explained_variance": 1.0 - unexplained / jnp.maximum(variance(targets.value_target), 1e-12),
        }

    def _finite(self, rollout: Rollout, params: Params) -> Array:
        import optax

        return jnp.isfinite(self.shards.mean(rollout.reward, rollout.valid)) & jnp.isfinite(optax.tree.norm(params))

    def _normalised(self, settings: PPOSettings, advantage: Array, valid: Array | None) -> Array:
        """Divided by the batch standard deviation; centred only on request, since that flips signs."""
        if settings.advantage_norm == "none":
            return advantage
        mean = self.shards.mean(advantage, valid)
        std = jnp.sqrt(self.shards.variance(advantage, valid))
        return (advantage - (mean if settings.advantage_norm == "standardise" else 0.0)) / (std + 1e-8)

    def _optimiser(self) -> optax.GradientTransformation:
        """Adam's direction; learning rate and norm clip are traced, so they are applied beside it."""
        import optax  # a third of a second that configurations and reports do not need

        return optax.scale_by_adam(eps=self.static.adam_eps)
