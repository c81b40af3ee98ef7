"""Networks that are linear in their parameters and normalise observations, and the same in NumPy."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from nextpolicy.core import running_stats
from nextpolicy.nets.greedy import epsilon_greedy
from nextpolicy.nets.squashed import SquashedGaussian
from nextpolicy.types import Networks, PolicySnapshot, RunningStats

STEPS, ENVS, OBS, ACTIONS = 5, 3, 3, 2
LOW, HIGH = (-2.0, 0.0), (2.0, 1.0)
FEATURES = OBS + ACTIONS + OBS * ACTIONS


def some_statistics(rng: np.random.Generator) -> RunningStats:
    return running_stats.of_batch(jnp.asarray(rng.normal(1.0, 2.0, size=(20, OBS))))


def prepare(stats: RunningStats | None, obs: Any) -> Any:
    return obs if stats is None else running_stats.normalise(stats, obs)


def features(obs: Any, action: Any) -> Any:
    """[..., FEATURES]"""
    products = (obs[..., :, None] * action[..., None, :]).reshape((*obs.shape[:-1], -1))
    return jnp.concatenate([obs, action, products], axis=-1)


def soft_networks(log_std: float) -> Networks:
    """Of SAC; actions have the same standard deviation everywhere."""

    def policy(snapshot: PolicySnapshot) -> Any:
        def act(obs: Any) -> SquashedGaussian:
            mean = prepare(snapshot.obs_stats, obs) @ snapshot.params["mean"]
            return SquashedGaussian(mean, jnp.full_like(mean, log_std), LOW, HIGH)

        return act

    def action_value(critic: Any, stats: Any) -> Any:
        return lambda obs, action: jnp.stack([features(prepare(stats, obs), action) @ w for w in critic])

    def init(key: Any) -> Any:
        rng = np.random.default_rng(0)
        weights = lambda *shape: jnp.asarray(rng.normal(size=shape))  # noqa: E731
        return {"actor": {"mean": weights(OBS, ACTIONS)}, "critic": (weights(FEATURES), weights(FEATURES))}

    return Networks(init, policy, lambda params, stats: lambda obs: obs[..., 0], action_value=action_value)


def greedy_networks() -> Networks:
    """Of PQN."""
    value = lambda critic, stats: lambda obs: prepare(stats, obs) @ critic  # noqa: E731

    def policy(snapshot: PolicySnapshot) -> Any:
        act = value(snapshot.params["critic"], snapshot.obs_stats)
        return lambda obs: epsilon_greedy(act(obs), snapshot.params["epsilon"])

    init = lambda key: {"critic": jnp.asarray(np.random.default_rng(0).normal(size=(OBS, ACTIONS)))}  # noqa: E731
    return Networks(init, policy, lambda params, stats: lambda obs: obs[..., 0], action_value=value)


def normalised(stats: RunningStats | None, obs: Any) -> np.ndarray:
    """`prepare` in NumPy."""
    x = np.asarray(obs, np.float64)
    if stats is None:
        return x
    spread = np.sqrt(np.asarray(stats.m2) / float(stats.samples) + 1e-8)
    return np.clip((x - np.asarray(stats.mean)) / spread, -10, 10)


def flags(rng: np.random.Generator) -> dict[str, Any]:
    """Some steps terminate, some are truncated and some are invalid."""
    drawn = rng.permutation(STEPS * ENVS).reshape(STEPS, ENVS)
    return {
        "terminated": jnp.asarray(drawn < 3),
        "truncated": jnp.asarray((drawn >= 3) & (drawn < 6)),
        "valid": jnp.asarray(drawn < 12),
    }
