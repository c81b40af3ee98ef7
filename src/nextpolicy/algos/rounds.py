"""What every algorithm does at the end of a round."""

from __future__ import annotations

import jax.numpy as jnp

from nextpolicy.core import minibatch, running_stats
from nextpolicy.core.shards import Shards
from nextpolicy.types import Array, Params, Rollout, RunningStats


def observed(stats: RunningStats | None, rollout: Rollout, shards: Shards) -> RunningStats | None:
    """The observation statistics after the rollout; None if observations are not normalised."""
    if stats is None:
        return None
    obs, valid = minibatch.flatten((rollout.obs, rollout.valid))
    return running_stats.update(stats, obs.astype(jnp.float32), valid, shards.axis_name)


def all_finite(shards: Shards, rollout: Rollout, params: Params) -> Array:
    """Whether rewards and parameters are finite."""
    import optax  # importing it takes .3 s, which code that only reads configurations should not pay

    return jnp.isfinite(shards.mean(rollout.reward, rollout.valid)) & jnp.isfinite(optax.tree.norm(params))
