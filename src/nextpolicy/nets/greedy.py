"""Networks of PQN: values of discrete actions, and the epsilon-greedy policy of these values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from nextpolicy.config import ConfigError, NetConfig
from nextpolicy.envs.base import Discrete, EnvSpec
from nextpolicy.nets.build import Stack, compute_dtype, make_torso, reader, tabulated
from nextpolicy.nets.heads import Categorical
from nextpolicy.types import Array, Networks, Params, PolicySnapshot, RunningStats

_LEAST = 1e-6  # probability of an action that is never taken, so that divergences stay finite


class _ActionValues(nn.Module):
    """Features [..., F] to a value of each action, float32 [..., A]."""

    actions: int
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, features: Array) -> Array:
        dense = nn.Dense(self.actions, kernel_init=nn.initializers.orthogonal(1.0), dtype=self.dtype)
        return dense(features).astype(jnp.float32)


def epsilon_greedy(values: Array, epsilon: Array) -> Categorical:
    """The first of the best actions with probability 1 - epsilon, else a uniform one; values are [..., A].

    Its mode is that best action, whatever epsilon is.
    """
    actions = values.shape[-1]
    epsilon = jnp.minimum(epsilon, 1.0 - _LEAST)  # at 1, all actions would be equal, and the mode the first of them
    best = jax.nn.one_hot(jnp.argmax(values, axis=-1), actions)
    probability = best * (1.0 - epsilon) + epsilon / actions
    return Categorical(jnp.log(jnp.maximum(probability, _LEAST)))


def build(spec: EnvSpec, config: NetConfig) -> Networks:
    """One network, `params["critic"]`.

    A policy has the parameters {"critic", "epsilon"}. `action_value(params["critic"], obs_stats)` maps observations to
    the values of all actions, [..., A]; `value` is their maximum.
    """
    if not isinstance(spec.action, Discrete):
        raise ConfigError(f"algo: expected a variant of ppo or sac for {spec.id}; pqn needs one discrete action")
    network = Stack(make_torso(spec, config), _ActionValues(spec.action.n, compute_dtype(config)))
    prepare = reader(spec)

    def init(key: Array) -> Params:
        return {"critic": network.init(key, jnp.zeros((1, *spec.obs_shape), jnp.float32))}

    def action_value(params: Params, obs_stats: RunningStats | None) -> Callable[[Array], Array]:
        return tabulated(lambda obs: jnp.asarray(network.apply(params, prepare(obs, obs_stats))), spec)

    def policy(snapshot: PolicySnapshot) -> Callable[[Array], Categorical]:
        values = action_value(snapshot.params["critic"], snapshot.obs_stats)
        return lambda obs: epsilon_greedy(values(obs), snapshot.params["epsilon"])

    def value(params: Params, obs_stats: RunningStats | None) -> Callable[[Array], Array]:
        values = action_value(params["critic"], obs_stats)
        return lambda obs: jnp.max(values(obs), axis=-1)

    return Networks(init, policy, value, action_value=action_value)
