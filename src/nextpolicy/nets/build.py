"""Builds `Networks` from an environment's specification and a network configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from nextpolicy.config import NetConfig
from nextpolicy.core import running_stats
from nextpolicy.envs.base import Box, Discrete, EnvSpec
from nextpolicy.nets import check, fusion, heads, torsos
from nextpolicy.nets.squashed import (
    LOG_STD,
    MEAN_BOUND,
    SquashedGaussian,
    SquashedGaussianHead,
    action_range,
    bounded,
    raw_log_std,
)
from nextpolicy.types import Array, Distribution, Networks, Params, PolicySnapshot, RunningStats

_SMALLEST = {"small-cnn": 3, "nature": 36, "impala": 1}  # smallest side of an image, in pixels


class Stack(nn.Module):
    """A torso and a head as one module."""

    torso: nn.Module
    head: nn.Module

    def __call__(self, obs: Array) -> Any:
        return self.head(self.torso(obs))


def build(
    spec: EnvSpec, config: NetConfig, actor: nn.Module | None = None, critic: nn.Module | None = None
) -> Networks:
    """The configured networks, or the caller's Flax modules.

    A caller's `actor` maps observations to logits (discrete actions) or to (mean, log_std) (continuous actions). A
    caller's `critic` maps each observation to one value. Both receive normalised observations as float32.
    """
    actor_module: nn.Module = Stack(make_torso(spec, config), _policy_head(spec, config)) if actor is None else actor
    as_distribution = (lambda x: x) if actor is None else _wrap_output(spec, config)
    if critic is not None:
        critic_module = critic
    elif config.shared_torso and actor is None:
        critic_module = heads.ValueHead(compute_dtype(config))
    else:
        critic_module = Stack(make_torso(spec, config), heads.ValueHead(compute_dtype(config)))
    shared = config.shared_torso and actor is None and critic is None
    prepare = reader(spec)
    ours = actor is None or critic is None
    fused = fusion.binder(make_torso(spec, config), spec, config) if ours and not shared else None

    def bind(module: nn.Module, params: Params) -> Callable[[Array], Any]:
        """`module` with these parameters; our own modules run as fused kernels if there are any."""
        if fused is None or not isinstance(module, Stack):
            return lambda x: module.apply(params, x)
        run = fused([(module.head, params)])
        return lambda x: run(x)[0]

    def init(key: Array) -> Params:
        key_actor, key_critic = jax.random.split(key)
        obs = jnp.zeros((1, *spec.obs_shape), jnp.float32)
        actor_params = actor_module.init(key_actor, obs)
        features = _features(actor_module, actor_params, obs) if shared else obs
        return {"actor": actor_params, "critic": critic_module.init(key_critic, features)}

    def policy(snapshot: PolicySnapshot) -> Callable[[Array], Distribution]:
        run = bind(actor_module, snapshot.params)

        def apply(obs: Array) -> Distribution:
            return as_distribution(run(prepare(obs, snapshot.obs_stats)))

        return tabulated(apply, spec)

    def value(params: Params, obs_stats: RunningStats | None) -> Callable[[Array], Array]:
        run = bind(critic_module, params["critic"])

        def apply(obs: Array) -> Array:
            x = prepare(obs, obs_stats)
            out = run(_features(actor_module, params["actor"], x) if shared else x)
            return out[..., 0] if critic is not None and out.ndim == obs.ndim - len(spec.obs_shape) + 1 else out

        return tabulated(apply, spec)

    def fused_actor_critic(params: Params, obs_stats: RunningStats | None) -> Callable[[Array], Any]:
        assert fused is not None
        run = fused([(actor_module.head, params["actor"]), (critic_module.head, params["critic"])])
        return lambda obs: tuple(run(prepare(obs, obs_stats)))

    both = fused is not None and actor is None and critic is None
    return Networks(init, policy, value, fused_actor_critic if both else None)


def _features(module: nn.Module, params: Params, obs: Array) -> Array:
    """The features of a `Stack`'s torso."""
    features: Any = module.apply(params, obs, method=lambda stack, x: stack.torso(x))
    return features


def tabulated(apply: Callable[[Any], Any], spec: EnvSpec) -> Callable[[Array], Any]:
    """`apply`, or a look-up in its outputs if the environment has a table of observations."""
    if spec.obs_table is None:
        return apply
    rows = apply(spec.obs_table)  # a NumPy constant, so that a torso can exploit repeated patches
    return lambda index: jax.tree.map(lambda x: x[index], rows)


def reader(spec: EnvSpec) -> Callable[[Array, RunningStats | None], Array]:
    """Converts raw observations to float32: bytes to [0, 1], others normalised if there are statistics."""
    pixels = jnp.dtype(spec.obs_dtype) == jnp.uint8
    scale = spec.obs_scale

    def read(obs: Array, obs_stats: RunningStats | None) -> Array:
        x = obs.astype(jnp.float32)
        if pixels:
            return x / 255.0
        if obs_stats is not None:
            return running_stats.normalise(obs_stats, x)
        return x if scale is None else x * scale.reshape((1,) * (x.ndim - 1) + (-1,))

    return read


def compute_dtype(config: NetConfig) -> Any:
    """The dtype of Flax modules; under `auto`, only fused kernels use bfloat16."""
    return jnp.bfloat16 if config.compute_dtype == "bfloat16" else jnp.float32


def make_torso(spec: EnvSpec, config: NetConfig) -> nn.Module:
    if config.torso != "mlp":
        check.channels_last(spec)
    kind, dtype = torso_kind(spec, config), compute_dtype(config)
    hidden, norm = tuple(config.hidden), config.layer_norm
    if kind == "mlp":
        return torsos.MLP(len(spec.obs_shape), hidden, config.activation, norm, dtype)
    if kind == "small-cnn":
        return torsos.SmallCNN(hidden, config.activation, norm, dtype)
    if kind == "nature":
        return torsos.NatureCNN(hidden, norm, dtype)
    return torsos.Impala(hidden=hidden, layer_norm=norm, dtype=dtype)


def torso_kind(spec: EnvSpec, config: NetConfig) -> str:
    """The configured torso; `auto` selects mlp for vectors, small-cnn for small images and nature for larger ones."""
    image = len(spec.obs_shape) == 3
    side = min(spec.obs_shape[:2]) if image else 0
    if config.torso != "auto":
        least = _SMALLEST.get(config.torso)
        if least is not None and side < least:
            wanted = f"images [H, W, C] of at least {least} x {least}" if image else "images [H, W, C]"
            raise ValueError(
                f"torso: expected {wanted}, got {config.torso!r} for observations of shape {spec.obs_shape}"
            )
        return config.torso
    if side < _SMALLEST["small-cnn"]:
        return "mlp"
    return "small-cnn" if side < _SMALLEST["nature"] else "nature"


def _policy_head(spec: EnvSpec, config: NetConfig) -> nn.Module:
    if isinstance(spec.action, Discrete):
        return heads.CategoricalHead(spec.action.n, compute_dtype(config))
    if isinstance(spec.action, Box):
        if config.policy == "squashed":
            raw = raw_log_std(config.log_std_init)
            return SquashedGaussianHead(*action_range(spec), compute_dtype(config), raw, MEAN_BOUND)
        return heads.GaussianHead(spec.action.outputs, config.log_std_init, compute_dtype(config))
    return heads.MultiCategoricalHead(spec.action.sizes, compute_dtype(config))


def _wrap_output(spec: EnvSpec, config: NetConfig) -> Callable[[Any], Distribution]:
    """Converts a caller's actor output: (mean, log_std) for continuous actions, else logits, choice after choice."""
    if isinstance(spec.action, Discrete):
        return lambda logits: heads.Categorical(jax.nn.log_softmax(logits.astype(jnp.float32)))
    if isinstance(spec.action, Box):
        bounds = action_range(spec) if config.policy == "squashed" else None

        def wrap(out: tuple[Array, Array]) -> Distribution:
            mean, log_std = (x.astype(jnp.float32) for x in out)
            log_std = jnp.broadcast_to(log_std, mean.shape)
            if bounds is None:
                return heads.DiagonalGaussian(mean, log_std)
            return SquashedGaussian(bounded(mean), jnp.clip(log_std, *LOG_STD), *bounds)

        return wrap
    head = heads.MultiCategoricalHead(spec.action.sizes)
    return lambda logits: head.read(logits.astype(jnp.float32), {})
