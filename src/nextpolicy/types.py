"""Shared types: steps, rollouts, policies, networks, and the evidence for a criterion.

Arrays are time-major: T steps, N environments, then the shape of one sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import jax

Array = jax.Array
PyTree = Any
Params = Any
Metrics = dict[str, Array]
A = TypeVar("A")  # a JAX array on the device, a NumPy array on the host


class RunningStats(NamedTuple):
    """Welford's sufficient statistics of a stream: `mean` and `m2` have the shape of one sample."""

    samples: Array  # number of samples seen, as a float
    mean: Array
    m2: Array  # sum of squared deviations from the mean


class PolicySnapshot(NamedTuple):
    """A policy: actor parameters and the observation statistics they were trained with.

    Freezing a policy freezes both, since the same parameters with other statistics are a different policy.
    """

    params: Params
    obs_stats: RunningStats | None  # None if observations are not normalised


class Step(NamedTuple, Generic[A]):
    """One step of N environments, including the final observations that auto-reset replaces.

    `obs` is the policy's next input; after the end of an episode, it is the first observation of the next episode.
    `next_obs` is the true successor. If it is None, the true successor is `obs`, except in the environments
    `final_index`, where it is `final_obs`.

    Learning uses `reward`, `terminated` and `truncated`; the last two are never both true. Reports use `score` and
    `episode_over`. They differ from the former if rewards are clipped or if the loss of a life counts as terminal.
    """

    obs: A  # [N, ...]
    reward: A  # [N] float32, not normalised
    terminated: A  # [N] bool
    truncated: A  # [N] bool
    next_obs: A | None = None  # [N, ...]
    score: A | None = None  # [N] float32; None: the same as `reward`
    episode_over: A | None = None  # [N] bool; None: terminated or truncated
    valid: A | None = None  # [N] bool, False for artefacts of auto-reset, which learning ignores; None: all valid
    final_index: A | None = None  # [K] int32
    final_obs: A | None = None  # [K, ...]


class Rollout(NamedTuple):
    """T steps of N environments under one behavioural policy beta_k; observations are raw (not normalised)."""

    obs: Array  # [T, N, ...]
    next_obs: Array  # [T, N, ...] true successors, before auto-reset
    action: Array  # [T, N] or [T, N, A]
    reward: Array  # [T, N] unscaled
    terminated: Array  # [T, N] bool
    truncated: Array  # [T, N] bool
    behaviour_log_prob: Array  # [T, N] log beta_k(a_t | s_t)
    behaviour_dist: Distribution  # leaves [T, N, ...]: beta_k's distribution at s_t
    discounted_return: Array  # [T, N] discounted sum of the episode's rewards up to and including t
    valid: Array | None = None  # [T, N] bool; None: all valid


class Episodes(NamedTuple):
    """Sums over the episodes that ended during a round, shapes []."""

    returns: Array
    lengths: Array
    finished: Array  # number of episodes


class Evidence(NamedTuple):
    """The inputs of a criterion: statistics of the round's batch, shapes [].

    y_t is the critic's target, an estimate of V^pi(s_t) for the frozen target policy pi. v_k and v_{k+1} are the critic
    before and after the round's gradient steps, beta_k and beta_{k+1} the behavioural policy. NaN: not measured.
    """

    diff_target: Array  # mean |y_t - v_k(s_t)|
    diff_network: Array  # mean |v_{k+1}(s_t) - v_k(s_t)|; PPO: over every n-th step of a batch of 2048 or more
    scale: Array  # mean |y_t|
    kl_step: Array  # mean KL(beta_k || beta_{k+1}): step of the behavioural policy
    kl_drift: Array  # mean KL(pi || beta_k): distance from the target to the behavioural policy
    kl_jump: Array  # mean KL(pi || beta_{k+1}): step of the target if the criterion accepts
    ratio_ess: Array  # effective sample size of the ratio pi / beta_k, as a fraction of the batch
    residual: Array | float = math.nan  # root of the mean of (y_t - v_k(s_t))^2
    noise: Array | float = math.nan  # what `residual` would be for an exact v_k; see `core.returns.vtrace_noise`
    residual_held_out: Array | float = math.nan  # `residual` on the environments that the critic is not trained on
    noise_held_out: Array | float = math.nan  # `noise` on these environments
    tv_step: Array | float = math.nan  # mean total variation of beta_k and beta_{k+1}; for real actions, an upper bound
    tv_step_high: Array | float = math.nan  # the same in the state at the 95 % quantile
    sign_changes: Array | float = math.nan  # share of sampled advantages whose sign differs between v_{k+1} and v_k
    gain: Array | float = math.nan  # mean of beta_{k+1} / beta_k A_t: expected advantage of beta_{k+1} over pi
    start_value: Array | float = math.nan  # exact V^pi(s_0), in environments that can solve for it
    next_start_value: Array | float = math.nan  # exact V^{beta_{k+1}}(s_0)


class Distribution(Protocol):
    """A distribution over actions, as a tuple of arrays with leading axes [...]."""

    def perturbed(self, noise: Array) -> Array:
        """Actions, as a deterministic function of standard noise."""
        ...

    def sample(self, key: Array) -> Array: ...

    def mode(self) -> Array: ...

    def log_prob(self, action: Array) -> Array: ...

    def entropy(self) -> Array: ...

    def kl(self, other: Any) -> Array:
        """KL(self || other)."""
        ...

    def tv(self, other: Any) -> Array:
        """Total variation, in [0, 1], or an upper bound on it."""
        ...


class SampledDistribution(Distribution, Protocol):
    """A distribution whose samples come with their log-densities, for gradients through samples."""

    def perturbed_with_unit_log_prob(self, noise: Array) -> tuple[Array, Array]:
        """Actions, and the log-densities of the actions scaled to [-1, 1]."""
        ...


ActorCritic = Callable[[Array], tuple[Distribution, Array]]  # raw observations -> (distribution, values)


class Networks(NamedTuple):
    """An actor and a critic as pure functions.

    `policy(snapshot)` and `value(params, obs_stats)` bind parameters and return a function of raw observations. If the
    environment has a table of observations, binding evaluates the network on every row, and the returned function looks
    up results. Therefore bind outside a loop over steps and call inside.
    """

    init: Callable[[Array], Params]  # key -> {"actor": ..., "critic": ...}
    policy: Callable[[PolicySnapshot], Callable[[Array], Distribution]]
    value: Callable[[Params, RunningStats | None], Callable[[Array], Array]]
    fused_actor_critic: Callable[[Params, RunningStats | None], ActorCritic] | None = None  # if one pass is faster
    action_value: Callable[..., Callable[..., Array]] | None = None  # of algorithms with critics of actions

    def actor_critic(self, params: Params, obs_stats: RunningStats | None) -> ActorCritic:
        """Distribution and value, from one fused pass if available."""
        if self.fused_actor_critic is not None:
            return self.fused_actor_critic(params, obs_stats)
        policy, value = self.policy(PolicySnapshot(params["actor"], obs_stats)), self.value(params, obs_stats)
        return lambda obs: (policy(obs), value(obs))
