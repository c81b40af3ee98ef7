"""Parallelised Q-network (Gallici et al., 2024) with a frozen target policy: PQN and Stable-Value PQN.

Q-learning with lambda-returns, without replay and without a target network; LayerNorm in the network keeps it stable.
The target policy pi is greedy in frozen action values. One round computes, with the values Q_k before its gradient
steps, lambda-returns that bootstrap from the action of pi,

    y_t = r_t + gamma ((1 - lam) Q_k(s', pi(s')) + lam y_{t+1}),

and takes gradient steps on (Q(s_t, a_t) - y_t)^2. The behavioural policy beta is epsilon-greedy in the newest values.
If pi is greedy in Q_k, then Q_k(s', pi(s')) is the maximum, and this is PQN.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import jax.numpy as jnp

from nextpolicy.algos.base import Pace, Parts
from nextpolicy.algos.descent import descend
from nextpolicy.algos.evidence import measure_action_values
from nextpolicy.algos.pqn_settings import PQNSettings
from nextpolicy.algos.rounds import all_finite, observed
from nextpolicy.core import minibatch, returns, running_stats
from nextpolicy.settings import Settings
from nextpolicy.types import Array, Evidence, Metrics, Params, PolicySnapshot, Rollout, RunningStats

if TYPE_CHECKING:
    import optax


class Learner(NamedTuple):
    """The state of the algorithm."""

    params: Params  # {"critic"}
    obs_stats: RunningStats | None
    opt_state: optax.OptState
    epsilon: Array  # of the behavioural policy in the next round


class _Sample(NamedTuple):
    """The part of a transition that a gradient step reads, besides the observation."""

    action: Array
    value_target: Array
    valid: Array | None


class PQN:
    """PQN and Stable-Value PQN."""

    name: ClassVar[str] = "pqn"
    settings: ClassVar[type[Settings]] = PQNSettings
    networks_kind: ClassVar[str] = "greedy"
    unsupported_criteria: ClassVar[tuple[str, ...]] = ("noise-corrected", "held-out", "certificate")
    variants: ClassVar[dict[str, Pace]] = {"pqn": "plain", "sv-pqn-static": "static", "sv-pqn": "dynamic"}

    def __init__(self, settings: PQNSettings, parts: Parts) -> None:
        self.static, self.parts, self.shards = settings, parts, parts.shards
        self.networks = parts.networks

    def init(self, key: Array) -> Learner:
        """Initial parameters and empty statistics."""
        params = self.networks.init(key)
        normalises = self.static.normalise_obs and not self.parts.numbered_obs
        obs_stats = running_stats.init(self.parts.obs_shape) if normalises else None
        return Learner(params, obs_stats, self._optimiser().init(params), jnp.float32(self.static.epsilon_init))

    def behaviour(self, learner: Learner) -> PolicySnapshot:
        """beta: epsilon-greedy in the newest action values."""
        return PolicySnapshot({**learner.params, "epsilon": learner.epsilon}, learner.obs_stats)

    def learn(
        self,
        settings: PQNSettings,
        learner: Learner,
        target: PolicySnapshot | None,
        rollout: Rollout,
        key: Array,
        progress: Array,
    ) -> tuple[Learner, Evidence, Metrics]:
        """Lambda-returns of pi from Q_k, then epochs of gradient steps."""
        learning_rate = settings.learning_rate + progress * (settings.learning_rate_final - settings.learning_rate)
        pi = self.behaviour(learner) if target is None else target
        y = self.evaluate_target(settings, learner, pi, rollout)
        minibatches = self.parts.batch_size // settings.minibatch_size
        (params, opt_state), terms = descend(
            partial(self.objective, learner.obs_stats),
            self._optimiser(),
            self.shards,
            (learner.params, learner.opt_state),
            minibatch.flatten((rollout.obs, _Sample(rollout.action, y, rollout.valid))),
            minibatch.indices(key, self.parts.batch_size, settings.epochs, minibatches),
            learning_rate=learning_rate,
            max_grad_norm=settings.max_grad_norm,
            terms=("value_loss", "q"),
        )
        # That of the next round, by whose beginning one round more is done.
        done = (progress + 1.0 / self.parts.num_rounds) / jnp.maximum(settings.epsilon_fraction, 1e-9)
        epsilon = settings.epsilon_init + jnp.minimum(done, 1.0) * (settings.epsilon_final - settings.epsilon_init)
        # Statistics are updated only here: beta_{k+1} has the new parameters and the new statistics.
        learned = self.update_statistics(learner, rollout)._replace(params=params, opt_state=opt_state, epsilon=epsilon)
        evidence = self._evidence(learner, learned, pi, rollout, y)
        return learned, evidence, terms | self._state_metrics(learner, learned, rollout, learning_rate)

    def evaluate_target(self, settings: PQNSettings, learner: Learner, pi: PolicySnapshot, rollout: Rollout) -> Array:
        """y [T, N]: lambda-returns that bootstrap from Q_k(s', pi(s')) at the true successor."""
        act = self.networks.policy(pi)
        following = _of_action(
            self._q(learner.params, learner.obs_stats, rollout.next_obs), act(rollout.next_obs).mode()
        )
        follows = jnp.ones_like(rollout.reward)
        if settings.trace == "watkins":
            follows = (rollout.action == act(rollout.obs).mode()).astype(jnp.float32)
        discount = settings.gamma * (1.0 - rollout.terminated)
        cut = (rollout.terminated | rollout.truncated).astype(jnp.float32)
        return returns.q_lambda(rollout.reward, discount, cut, following, follows, lam=settings.lam)

    def objective(
        self, obs_stats: RunningStats | None, params: Params, obs: Array, sample: _Sample
    ) -> tuple[Array, Metrics]:
        """1/2 mean (Q(s, a) - y)^2, and metrics."""
        mean = partial(self.shards.share_of_mean, valid=sample.valid)
        q = _of_action(self._q(params, obs_stats, obs), sample.action)
        loss = 0.5 * mean(jnp.square(q - sample.value_target))
        return loss, {"value_loss": loss, "q": mean(q)}

    def adopt(self, learner: Learner, other: Learner) -> Learner:
        """`learner` with the parameters and statistics of `other`."""
        return learner._replace(params=other.params, obs_stats=other.obs_stats)

    def update_statistics(self, learner: Learner, rollout: Rollout) -> Learner:
        """Update the observation statistics from this round's data."""
        return learner._replace(obs_stats=observed(learner.obs_stats, rollout, self.shards))

    def _evidence(self, before: Learner, after: Learner, pi: PolicySnapshot, rollout: Rollout, y: Array) -> Evidence:
        """How far values and policies moved on this round's data."""
        values = self._q(before.params, before.obs_stats, rollout.obs)
        later = self._q(after.params, before.obs_stats, rollout.obs)
        dist, next_dist = (self.networks.policy(p)(rollout.obs) for p in (pi, self.behaviour(after)))
        return measure_action_values(
            self.shards,
            rollout.valid,
            rollout.action,
            y,
            _of_action(values, rollout.action),
            _of_action(later, rollout.action),
            (dist, rollout.behaviour_dist, next_dist),
            _of_action(values, next_dist.mode()) - _of_action(values, dist.mode()),
        )

    def _state_metrics(self, before: Learner, after: Learner, rollout: Rollout, learning_rate: Array) -> Metrics:
        finite = all_finite(self.shards, rollout, after.params)
        entropy = self.shards.mean(rollout.behaviour_dist.entropy(), rollout.valid)
        return {"epsilon": before.epsilon, "entropy": entropy, "learning_rate": learning_rate, "finite": finite}

    def _q(self, params: Params, obs_stats: RunningStats | None, obs: Array) -> Array:
        """Values of all actions, [..., A]."""
        assert self.networks.action_value is not None
        return self.networks.action_value(params["critic"], obs_stats)(obs)

    def _optimiser(self) -> optax.GradientTransformation:
        """RAdam (Liu et al., 2020) without learning rate and norm clip, which `descend` applies."""
        import optax  # importing it takes .3 s, which code that only reads configurations should not pay

        return optax.scale_by_radam()


def _of_action(values: Array, action: Array) -> Array:
    """values [..., A] at action [...]."""
    return jnp.take_along_axis(values, action[..., None], axis=-1)[..., 0]
