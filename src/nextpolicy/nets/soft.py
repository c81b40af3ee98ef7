"""Networks of SAC: a squashed Gaussian actor and two critics of states and actions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from nextpolicy.config import NetConfig
from nextpolicy.envs.base import EnvSpec
from nextpolicy.nets import heads, torsos
from nextpolicy.nets.build import Stack, compute_dtype, make_torso, reader, torso_kind
from nextpolicy.nets.fusion import on_gpu
from nextpolicy.nets.squashed import SquashedGaussian, SquashedGaussianHead, action_range, to_unit
from nextpolicy.types import Array, Networks, Params, PolicySnapshot, RunningStats


class _ActionValue(nn.Module):
    """Q(s, a) from observations [..., *obs_shape] and actions [..., A] in [-1, 1].

    The MLP reads vectors and actions together; of images, the torso's features and actions enter one more layer.
    """

    torso: nn.Module | None  # None: an MLP of both
    obs_rank: int
    config: NetConfig

    @nn.compact
    def __call__(self, obs: Array, action: Array) -> Array:
        dtype, hidden = compute_dtype(self.config), tuple(self.config.hidden)
        lead = obs.shape[: obs.ndim - self.obs_rank]
        x = obs.reshape((*lead, -1)) if self.torso is None else self.torso(obs)
        both = jnp.concatenate([x, action.astype(x.dtype)], axis=-1)
        widths = hidden if self.torso is None else hidden[-1:]
        features = torsos.MLP(1, widths, self.config.activation, self.config.layer_norm, dtype)(both)
        return heads.ValueHead(dtype)(features)


def build(spec: EnvSpec, config: NetConfig) -> Networks:
    """The actor and both critics. `params["critic"]` is a pair.

    `action_value(params["critic"], obs_stats)` maps observations [..., *obs_shape] and the environment's actions
    [..., A] to values [2, ...].
    """
    low, high = action_range(spec)
    actor = Stack(make_torso(spec, config), SquashedGaussianHead(low, high, compute_dtype(config)))
    torso = None if torso_kind(spec, config) == "mlp" else make_torso(spec, config)
    critic = _ActionValue(torso, len(spec.obs_shape), config)
    prepare = reader(spec)

    def init(key: Array) -> Params:
        key_actor, key_critics = jax.random.split(key)
        obs, action = jnp.zeros((1, *spec.obs_shape), jnp.float32), jnp.zeros((1, len(low)), jnp.float32)
        critics = [critic.init(key, obs, action) for key in jax.random.split(key_critics)]
        return {"actor": actor.init(key_actor, obs), "critic": tuple(critics)}

    def policy(snapshot: PolicySnapshot) -> Callable[[Array], SquashedGaussian]:
        def apply(obs: Array) -> SquashedGaussian:
            dist: Any = actor.apply(snapshot.params, prepare(obs, snapshot.obs_stats))
            return dist

        return apply

    def action_value(params: Params, obs_stats: RunningStats | None) -> Callable[[Array, Array], Array]:
        def apply(obs: Array, action: Array) -> Array:
            x, a = prepare(obs, obs_stats), to_unit(action, low, high)
            if on_gpu():  # both at once: half as many kernels
                both = jax.tree.map(lambda *leaves: jnp.stack(leaves), *params)
                return jnp.asarray(jax.vmap(critic.apply, in_axes=(0, None, None))(both, x, a))
            # One after the other: on a CPU, a product of batches of matrices is slower, and can deadlock XLA.
            return jnp.stack([jnp.asarray(critic.apply(one, x, a)) for one in params])

        return apply

    def value(params: Params, obs_stats: RunningStats | None) -> Callable[[Array], Array]:
        act = policy(PolicySnapshot(params["actor"], obs_stats))
        evaluate = action_value(params["critic"], obs_stats)
        return lambda obs: jnp.min(evaluate(obs, act(obs).mode()), axis=0)

    return Networks(init, policy, value, action_value=action_value)
