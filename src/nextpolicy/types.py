"""The shared vocabulary: a step, a rollout, a policy, the networks, and the evidence that a criterion sees.

Arrays are time-major: T steps, N environments, then the shape of what one environment gives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import jax

Array = jax.Array
PyTree = Any
Params = Any
Metrics = dict[str, Array]
A = TypeVar("A")  # an array: of JAX inside XLA, of NumPy on the host


class RunningStats(NamedTuple):
    """Welford's sufficient statistics of a stream: `mean` and `m2` have the shape of one sample."""

    samples: Array  # number of samples seen, as a float
    mean: Array
    m2: Array  # sum of squared deviations from the mean


class PolicySnapshot(NamedTuple):
    """A policy: actor parameters and the observation statistics they were trained with.

    To freeze a policy is to freeze both: with other statistics the same parameters are another policy.
    """

    params: Params
    obs_stats: RunningStats | None  # None if observations are not normalised


class Step(NamedTuple, Generic[A]):
    """One step of N environments, with what auto-reset would otherwise lose.

    `obs` is what the policy sees next: after the end of an episode, the first observation of the next one. The true
    successor is `next_obs`; if that is None, it is `obs` except for the environments `final_index`, where it is
    `final_obs`.

    `reward`, `terminated` and `truncated` are learned from; the last two are never both true. `score` and
    `episode_over` are reported. They differ if rewards are clipped, or if the loss of a life terminates for learning.
    """

    obs: A  # [N, ...]
    reward: A  # [N] float32, not normalised
    terminated: A  # [N] bool
    truncated: A  # [N] bool
    next_obs: A | None = None  # [N, ...]
    score: A | None = None  # [N] float32; None: the same as `reward`
    episode_over: A | None = None  # [N] bool; None: terminated or truncated
    valid: A | None = None  # [N] bool, False for artefacts of auto-reset, which are not learned from; None: all valid
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
    discounted_return: Array  # [T, N] discounted sum of the episode's rewards so far, the one at t included
    valid: Array | None = None  # [T, N] bool; None: every step counts


class Episodes(NamedTuple):
    """The episodes that ended during a round, summed."""

    returns: Array
    lengths: Array
    finished: Array  # how many


class Evidence(NamedTuple):
    """What a criterion may look at: measured on the round's batch, shapes [].

    y_t is the estimate of V^pi(s_t) that the critic learns towards, v_k and v_{k+1} are the critic before and after the
    round's gradient steps, beta_k and beta_{k+1} the behavioural policy, and pi the frozen target.
    """

    diff_target: Array  # mean |y_t - v_k(s_t)|
    diff_network: Array  # mean |v_{k+1}(s_t) - v_k(s_t)|
    scale: Array  # mean |y_t|
    kl_step: Array  # mean KL(beta_k || beta_{k+1}): how far the behavioural policy moved
    kl_drift: Array  # mean KL(pi || beta_k): how far it was from the target
    kl_jump: Array  # mean KL(pi || beta_{k+1}): how far the target would move now
    ratio_ess: Array  # effective sample size of pi / beta_k, as a share of the batch


class Distribution(Protocol):
    """A distribution over actions, as a tuple of arrays with leading axes [...]."""

    def perturbed(self, noise: Array) -> Array:
        """A sample for each draw of standard noise."""
        ...

    def sample(self, key: Array) -> Array: ...

    def mode(self) -> Array: ...

    def log_prob(self, action: Array) -> Array: ...

    def entropy(self) -> Array: ...

    def kl(self, other: Any) -> Array:
        """KL(self || other)."""
        ...


ActorCritic = Callable[[Array], tuple[Distribution, Array]]  # of raw observations


class Networks(NamedTuple):
    """An actor and a critic as pure functions.

    `policy(snapshot)` and `value(params, obs_stats)` bind parameters and return a function of raw observations. If the
    environment has a table of observations, binding evaluates the network once per row and the returned function looks
    up: bind outside a loop over steps, call inside.
    """

    init: Callable[[Array], Params]  # key -> {"actor": ..., "critic": ...}
    policy: Callable[[PolicySnapshot], Callable[[Array], Distribution]]
    value: Callable[[Params, RunningStats | None], Callable[[Array], Array]]
    fused_actor_critic: Callable[[Params, RunningStats | None], ActorCritic] | None = None  # if one pass is faster

    def actor_critic(self, params: Params, obs_stats: RunningStats | None) -> ActorCritic:
        """Distribution and value, fused if possible."""
        if self.fused_actor_critic is not None:
            return self.fused_actor_critic(params, obs_stats)
        policy, value = self.policy(PolicySnapshot(params["actor"], obs_stats)), self.value(params, obs_stats)
        return lambda obs: (policy(obs), value(obs))
