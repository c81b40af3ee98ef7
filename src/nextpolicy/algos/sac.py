"""Soft actor-critic (Haarnoja et al., 2018) with a frozen target policy: SAC and Stable-Value SAC.

One round is the loop body of Algorithm 2 of Sandhu and Parr, "Approximate Next Policy Sampling" (arXiv 2605.05481). The
critics learn the soft action values of the target policy pi from replayed transitions of earlier behavioural policies:

    y = r + gamma (1 - terminated) (min_i Qbar_i(s', a') - alpha log pi(a' | s')),   a' ~ pi(. | s')

The bootstrap's action comes from pi itself, so there is no importance ratio. The actor, which is the behavioural policy
beta, keeps improving against these critics. pi is constant during a round. If it is beta_k, this is SAC: to the letter
with one gradient step per round, and with more, the bootstrap's policy lags behind the actor by fewer steps than that.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

import jax
import jax.numpy as jnp

from nextpolicy.algos.base import Pace, Parts
from nextpolicy.algos.evidence import measure_action_values
from nextpolicy.algos.rounds import all_finite, observed
from nextpolicy.algos.sac_forms import Forms, Trained
from nextpolicy.algos.sac_settings import SACSettings
from nextpolicy.core import minibatch, one_vector, replay, running_stats
from nextpolicy.settings import Settings
from nextpolicy.types import (
    Array,
    Distribution,
    Evidence,
    Metrics,
    Params,
    PolicySnapshot,
    Rollout,
    RunningStats,
    SampledDistribution,
)

if TYPE_CHECKING:
    import optax

_STEPS_ON_GPU = 4  # gradient steps per iteration of the compiled loop; more compile longer
_TERMS = ("value_loss", "policy_loss", "entropy", "q")  # metrics of a gradient step


class Transition(NamedTuple):
    """What the replay buffer holds, leaves [B, ...]; observations are raw (not normalised)."""

    obs: Array
    next_obs: Array  # the true successor, also at a time limit
    action: Array  # [B, A]
    reward: Array
    terminated: Array  # bool; a time limit is not an end
    valid: Array  # bool


class Successor(NamedTuple):
    """What the target policy pi does in the successor s'."""

    action: Array  # [B, A] a' ~ pi(. | s')
    log_prob: Array  # [B] log pi(a' | s') of actions scaled to [-1, 1]


def _on_gpu() -> bool:
    return jax.default_backend() == "gpu"


class Learner(NamedTuple):
    """The state of the algorithm. The behavioural policy is `trained.params["actor"]` with `obs_stats`."""

    trained: Trained
    obs_stats: RunningStats | None
    replay: replay.Replay

    @property
    def params(self) -> Params:
        return self.trained.params


class SAC:
    """SAC and Stable-Value SAC."""

    name: ClassVar[str] = "sac"
    settings: ClassVar[type[Settings]] = SACSettings
    networks_kind: ClassVar[str] = "soft"
    unsupported_criteria: ClassVar[tuple[str, ...]] = ("noise-corrected", "held-out", "certificate")
    variants: ClassVar[dict[str, Pace]] = {"sac": "plain", "sv-sac-static": "static", "sv-sac": "dynamic"}

    def __init__(self, settings: SACSettings, parts: Parts) -> None:
        self.static, self.parts, self.shards = settings, parts, parts.shards
        self.networks = parts.networks
        self.updates = settings.updates(parts.batch_size)

    def init(self, key: Array) -> Learner:
        """Initial parameters, empty statistics and an empty replay buffer."""
        params = self.networks.init(key)
        adam = self._optimiser()
        log_temperature = jnp.log(jnp.asarray(self.static.temperature_init, jnp.float32))
        states = {"actor": params["actor"], "critic": params["critic"], "temperature": log_temperature}
        trained = Trained(params, params["critic"], log_temperature, {k: adam.init(v) for k, v in states.items()})
        obs_stats = running_stats.init(self.parts.obs_shape) if self.static.normalise_obs else None
        return Learner(trained, obs_stats, replay.init(self.static.replay_size, self._empty_round()))

    def behaviour(self, learner: Learner) -> PolicySnapshot:
        """beta: the actor and the statistics that normalise its observations."""
        return PolicySnapshot(learner.params["actor"], learner.obs_stats)

    def learn(
        self,
        settings: SACSettings,
        learner: Learner,
        target: PolicySnapshot | None,
        rollout: Rollout,
        key: Array,
        progress: Array,
    ) -> tuple[Learner, Evidence, Metrics]:
        """Take gradient steps on critics, actor and temperature."""
        pi = self.behaviour(learner) if target is None else target
        key_index, key_steps, key_evidence = jax.random.split(key, 3)
        # All that does not depend on what a step learns is computed before the scan, in few large operations.
        lead = (self.updates, settings.minibatch_size)
        batches = replay.take(learner.replay, replay.indices(learner.replay, key_index, lead))
        noise = jax.random.normal(key_steps, (2, *lead, self.parts.action_size))
        successors = self.successors(pi, batches.next_obs, noise[0])
        forms = self._forms(learner.params)

        def one_step(trained: Trained, inputs: tuple[Transition, Successor, Array]) -> tuple[Trained, Array]:
            trained, terms = self.gradient_step(settings, trained, learner.obs_stats, *inputs, forms)
            return trained, jnp.stack([terms[name] for name in _TERMS])

        inputs, unroll = (batches, successors, noise[1]), _STEPS_ON_GPU if _on_gpu() else 1
        trained, terms = jax.lax.scan(one_step, forms.pack(learner.trained), inputs, unroll=unroll)
        trained = forms.unpack(trained)
        # Statistics are updated only here: beta_{k+1} has the new parameters and the new statistics.
        learned = self.update_statistics(learner._replace(trained=trained), rollout)
        evidence = self._evidence(settings, learner, learned, pi, rollout, key_evidence)
        fit = dict(zip(_TERMS, jnp.mean(terms, axis=0), strict=True))
        return learned, evidence, fit | self._state_metrics(learned, rollout)

    def gradient_step(
        self,
        settings: SACSettings,
        trained: Trained,
        obs_stats: RunningStats | None,
        batch: Transition,
        successor: Successor,
        noise: Array,
        forms: Forms = Forms(),  # noqa: B008
    ) -> tuple[Trained, Metrics]:
        """One step of Adam on the critics, then the actor against the new critics, then alpha, then Qbar.

        `successor` is what pi does in `batch.next_obs`; `noise` [B, A], standard normal, is for the actor's actions.
        `trained` is as `forms.pack` returns it.

        critics  1/2 sum_i mean (Q_i(s, a) - y)^2
        actor    mean alpha log beta(a | s) - min_i Q_i(s, a),   a ~ beta(. | s)
        alpha    -alpha mean (log beta(a | s) + target entropy)
        """
        mean = partial(self.shards.share_of_mean, valid=batch.valid)
        alpha = jnp.exp(trained.log_temperature)
        y = self.bootstrap(settings, forms.unpack(trained), obs_stats, batch, successor)
        critic, actor = trained.params["critic"], trained.params["actor"]

        def critic_loss(critic: Params) -> tuple[Array, Array]:
            q = self._q(forms.critic.unpack(critic), obs_stats, batch.obs, batch.action)
            return 0.5 * (mean(jnp.square(q[0] - y)) + mean(jnp.square(q[1] - y))), mean(q[0])

        (value_loss, q), gradient = jax.value_and_grad(critic_loss, has_aux=True)(critic)
        critic, critic_state = self._step(settings, critic, trained.opt_state["critic"], gradient)

        target_entropy = settings.entropy_per_action * batch.action.shape[-1]

        def actor_loss(actor: Params) -> tuple[Array, tuple[Array, Array]]:
            dist = self._policy(PolicySnapshot(forms.actor.unpack(actor), obs_stats), batch.obs)
            action, log_prob = dist.perturbed_with_unit_log_prob(noise)
            q = jnp.min(self._q(forms.critic.unpack(critic), obs_stats, batch.obs, action), axis=0)
            return mean(alpha * log_prob - q), (mean(-log_prob), mean(log_prob + target_entropy))

        (policy_loss, (entropy, missing_entropy)), gradient = jax.value_and_grad(actor_loss, has_aux=True)(actor)
        actor, actor_state = self._step(settings, actor, trained.opt_state["actor"], gradient)
        log_temperature, temperature_state = self._step(
            settings,
            trained.log_temperature,
            trained.opt_state["temperature"],
            -alpha * missing_entropy,  # the derivative by log alpha
        )
        average = jax.tree.map(lambda old, new: old + settings.tau * (new - old), trained.critic_average, critic)
        states = {"actor": actor_state, "critic": critic_state, "temperature": temperature_state}
        terms = {"value_loss": value_loss, "policy_loss": policy_loss, "entropy": entropy, "q": q}
        return Trained({"actor": actor, "critic": critic}, average, log_temperature, states), terms

    def successors(self, pi: PolicySnapshot, next_obs: Array, noise: Array) -> Successor:
        """a' ~ pi(. | s') from standard normal noise [..., A]: at once for all gradient steps of a round."""
        return Successor(*self._policy(pi, next_obs).perturbed_with_unit_log_prob(noise))

    def bootstrap(
        self,
        settings: SACSettings,
        trained: Trained,
        obs_stats: RunningStats | None,
        batch: Transition,
        successor: Successor,
    ) -> Array:
        """The critics' targets y [B]: one step, then the soft value of pi at the true successor."""
        q = jnp.min(self._q(trained.critic_average, obs_stats, batch.next_obs, successor.action), axis=0)
        value = q - jnp.exp(trained.log_temperature) * successor.log_prob
        return settings.reward_scale * batch.reward + settings.gamma * jnp.where(batch.terminated, 0.0, value)

    def adopt(self, learner: Learner, other: Learner) -> Learner:
        """`learner` with the parameters and statistics of `other`, and an empty replay buffer."""
        return learner._replace(
            trained=other.trained._replace(opt_state=learner.trained.opt_state), obs_stats=other.obs_stats
        )

    def remember(self, learner: Learner, rollout: Rollout) -> Learner:
        """Add the rollout to the replay buffer."""
        return learner._replace(replay=replay.add(learner.replay, self._transitions(rollout)))

    def update_statistics(self, learner: Learner, rollout: Rollout) -> Learner:
        """Update the statistics that normalise observations."""
        return learner._replace(obs_stats=observed(learner.obs_stats, rollout, self.shards))

    def _evidence(
        self,
        settings: SACSettings,
        before: Learner,
        after: Learner,
        pi: PolicySnapshot,
        rollout: Rollout,
        key: Array,
    ) -> Evidence:
        """How far values and policies moved on this round's data; a value is the mean of both critics at (s_t, a_t)."""
        batch = self._transitions(rollout)
        value = lambda learner, action: jnp.mean(  # noqa: E731
            self._q(learner.params["critic"], before.obs_stats, batch.obs, action), axis=0
        )
        dist, next_dist = self._policy(pi, batch.obs), self._policy(self.behaviour(after), batch.obs)
        noise = jax.random.normal(key, batch.action.shape)
        return measure_action_values(
            self.shards,
            minibatch.flatten(rollout.valid),
            batch.action,
            self.bootstrap(
                settings, before.trained, before.obs_stats, batch, self.successors(pi, batch.next_obs, noise)
            ),
            value(before, batch.action),
            value(after, batch.action),
            (dist, cast(Distribution, minibatch.flatten(rollout.behaviour_dist)), next_dist),
            value(before, next_dist.mode()) - value(before, dist.mode()),
        )

    def _state_metrics(self, learner: Learner, rollout: Rollout) -> Metrics:
        finite = all_finite(self.shards, rollout, learner.params)
        temperature = jnp.exp(learner.trained.log_temperature)
        return {"temperature": temperature, "replay_held": learner.replay.size, "finite": finite}

    def _policy(self, snapshot: PolicySnapshot, obs: Array) -> SampledDistribution:
        return cast(SampledDistribution, self.networks.policy(snapshot)(obs))

    def _q(self, critic: Params, obs_stats: RunningStats | None, obs: Array, action: Array) -> Array:
        """Both critics, [2, ...]."""
        assert self.networks.action_value is not None
        return self.networks.action_value(critic, obs_stats)(obs, action)

    def _step(self, settings: SACSettings, params: Params, state: Any, gradient: Params) -> tuple[Params, Any]:
        direction, state = self._optimiser().update(gradient, state)
        return jax.tree.map(lambda p, d: p - settings.learning_rate * d, params, direction), state

    @staticmethod
    def _transitions(rollout: Rollout) -> Transition:
        """The rollout's transitions, [T * N, ...]."""
        valid = jnp.ones_like(rollout.terminated) if rollout.valid is None else rollout.valid
        found: Transition = minibatch.flatten(
            Transition(rollout.obs, rollout.next_obs, rollout.action, rollout.reward, rollout.terminated, valid)
        )
        return found

    def _empty_round(self) -> Transition:
        """Transitions of a round, for their shapes."""
        rows = self.parts.batch_size
        obs, flag = jnp.zeros((rows, *self.parts.obs_shape), self.parts.obs_dtype), jnp.zeros(rows, jnp.bool_)
        return Transition(obs, obs, jnp.zeros((rows, self.parts.action_size)), jnp.zeros(rows), flag, flag)

    def _forms(self, params: Params) -> Forms:
        """One vector for the actor and one for the critics, where starting operations takes longer than copying."""
        packs = _on_gpu() or one_vector.pays_on_cpu(params)
        return Forms(*(one_vector.like(params[name]) for name in Forms._fields)) if packs else Forms()

    def _optimiser(self) -> optax.GradientTransformation:
        """Adam without learning rate, which is traced and applied in `_step`."""
        import optax  # importing it takes .3 s, which code that only reads configurations should not pay

        return optax.scale_by_adam(eps=self.static.adam_eps)
