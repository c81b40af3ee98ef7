"""The key schedule: which random numbers a member draws, and when. Both loops follow it."""

from __future__ import annotations

from typing import NamedTuple

import jax

from nextpolicy.core.shards import Shards
from nextpolicy.types import Array


class MemberKeys(NamedTuple):
    """Keys of a member's start; `key_envs` and `key_ages` are the environments', and differ between shards."""

    key_agent: Array
    key_envs: Array
    key_ages: Array


class RoundKeys(NamedTuple):
    """Keys of one round. Those for collecting differ between shards."""

    key_act: Array  # noise of the behavioural policy
    key_env: Array  # the environments' steps
    key_random: Array  # random actions, while warming up
    key_rest: Array  # the agent's key after a warm-up round; `learning_keys` splits it if the round learns


def member_keys(seed: Array, shards: Shards) -> MemberKeys:
    """From a seed to the keys of a member's start."""
    key_agent, key_envs, key_ages = jax.random.split(jax.random.key(seed), 3)
    return MemberKeys(key_agent, shards.key(key_envs), shards.key(key_ages))


def round_keys(key: Array, shards: Shards) -> RoundKeys:
    """From an agent's key to the keys of its next round."""
    key_rest, key_collect = jax.random.split(key)
    key_act, key_env, key_random = jax.random.split(shards.key(key_collect), 3)
    return RoundKeys(key_act, key_env, key_random, key_rest)


def learning_keys(key_rest: Array) -> tuple[Array, Array]:
    """(the agent's key after the round, the key to learn with)."""
    key_next, key_learn = jax.random.split(key_rest)
    return key_next, key_learn
