"""A policy as JSON and arrays: spaces, normalisation, network and action distribution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from nextpolicy.config import ConfigError, NetConfig
from nextpolicy.core import running_stats
from nextpolicy.envs.base import Box, Discrete, EnvSpec
from nextpolicy.export import network
from nextpolicy.export.numpy_policy import FORMAT, Arrays
from nextpolicy.nets.squashed import LOG_STD, MEAN_BOUND
from nextpolicy.types import Array, PolicySnapshot, RunningStats

Description = dict[str, Any]  # the content of policy.json


def describe(
    spec: EnvSpec,
    config: NetConfig,
    snapshot: PolicySnapshot,
    arrange: Callable[[Array], Array] | None,
    made_by: dict[str, Any],
) -> tuple[Description, Arrays]:
    """Description and float32 arrays of a policy with the configured network; `arrange` is `HostEnv.arrange`."""
    observation, table = _observation(spec, arrange)
    action = _action(spec)
    greedy = "epsilon" in snapshot.params  # the policy of a network of action values
    layers, arrays = network.describe(spec, config, snapshot.params["critic"] if greedy else snapshot.params)
    distribution = {"kind": "categorical"} if action["kind"] == "discrete" else _gaussian(config, arrays)
    if greedy:
        distribution = {"kind": "epsilon_greedy", "epsilon": float(snapshot.params["epsilon"])}
    normaliser, statistics = _normaliser(snapshot.obs_stats if observation["divisor"] == 1 else None)
    description = {
        "format": FORMAT,
        "environment": spec.id,
        "observation": observation,
        "action": action,
        "normaliser": normaliser,
        "network": layers,
        "distribution": distribution,
        "made_by": made_by,
    }
    return description, {**table, **statistics, **arrays}


def _observation(spec: EnvSpec, arrange: Callable[[Array], Array] | None) -> tuple[dict[str, Any], Arrays]:
    """What the environment gives and how it becomes a network's input, and the table of observations, if any."""
    pixels = np.dtype(spec.obs_dtype) == np.uint8
    common = {"input_shape": list(spec.obs_shape), "divisor": 255 if pixels else 1}
    if spec.obs_table is not None or spec.first_state is not None:
        table = {} if spec.obs_table is None else {"observation_table": np.asarray(spec.obs_table, np.float32)}
        count = spec.obs_shape[0] if spec.obs_table is None else len(spec.obs_table)
        states = {"kind": "states", "shape": [], "dtype": "int64", "first": int(spec.first_state or 0), "count": count}
        return {**states, "table": next(iter(table), None), "layout": "as_given", **common}, table
    own = spec.obs_shape if spec.own_obs_shape is None else spec.own_obs_shape
    if spec.obs_tree is not None:
        raise _not_one_array(spec)
    layout = "as_given" if arrange is None else _layout(spec, own, arrange)
    dtype = np.dtype(spec.obs_dtype).name
    return {"kind": "array", "shape": list(own), "dtype": dtype, "layout": layout, **common}, {}


def _layout(spec: EnvSpec, shape: tuple[int, ...], arrange: Callable[[Array], Array]) -> str:
    """How `arrange` orders the axes of an observation, found by trying it."""
    sample = np.random.default_rng(0).integers(0, 256, (1, *shape), np.uint8)
    candidates = {"as_given": sample}
    if len(shape) == 3:
        candidates["channels_first"] = np.moveaxis(sample, 1, -1)
    wanted = np.asarray(arrange(jnp.asarray(sample)))
    for name, candidate in candidates.items():
        if np.array_equal(candidate.reshape((1, *spec.obs_shape)), wanted):
            return name
    raise _not_one_array(spec)


def _not_one_array(spec: EnvSpec) -> ConfigError:
    return ConfigError(
        f"export: expected observations of a Box or Discrete space, got those of {spec.id}; "
        "serialise policy.apply with jax.export"
    )


def _normaliser(stats: RunningStats | None) -> tuple[dict[str, Any] | None, Arrays]:
    if stats is None:
        return None, {}
    arrays = {
        "normaliser.mean": np.asarray(stats.mean, np.float32),
        "normaliser.variance": np.asarray(running_stats.variance(stats), np.float32),
    }
    about = {"mean": "normaliser.mean", "variance": "normaliser.variance"}
    return {**about, "clip": running_stats.CLIP, "epsilon": running_stats.EPSILON}, arrays


def _gaussian(config: NetConfig, arrays: Arrays) -> dict[str, Any]:
    """The distribution over continuous actions. Only a `GaussianHead` has `log_std`, which is renamed in `arrays`."""
    if "head.log_std" in arrays:
        arrays["log_std"] = arrays.pop("head.log_std")
        return {"kind": "gaussian", "log_std": "log_std", "bounds": "clipped"}
    mean_bound = MEAN_BOUND if config.policy == "squashed" else None  # None with SAC, which has policy=auto
    return {"kind": "squashed_gaussian", "mean_bound": mean_bound, "log_std_bounds": list(LOG_STD), "bounds": "tanh"}


def _action(spec: EnvSpec) -> dict[str, Any]:
    """The action space. Bounds are flat lists, with null for none."""
    space = spec.action
    if isinstance(space, Discrete):
        return {"kind": "discrete", "n": space.n, "start": space.start, "dtype": np.dtype(space.dtype).name}
    if not isinstance(space, Box) or space.tree is not None:
        got = "nested ones" if isinstance(space, Box) else type(space).__name__
        raise ConfigError(
            f"export: expected Discrete or Box actions, got {got}; serialise policy.apply with jax.export"
        )
    low, high = (np.broadcast_to(np.asarray(bound, np.float64), space.shape) for bound in (space.low, space.high))
    flat = lambda bound: [float(b) if np.isfinite(b) else None for b in bound.ravel()]  # noqa: E731
    bounds = {"low": flat(low), "high": flat(high)}
    return {"kind": "box", "shape": list(space.shape), **bounds, "dtype": np.dtype(space.dtype).name}
