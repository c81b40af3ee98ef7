"""The PRNG key schedule, shared by both loops."""

from __future__ import annotations

from typing import NamedTuple

import jax

from nextpolicy.core.shards import Shards
from nextpolicy.types import Array


class MemberKeys(NamedTuple):
    """Keys for initialising a member. `key_envs` and `key_ages` are for environments and differ between shards."""

    key_agent: Array
    key_envs: Array
    key_ages: Array


class RoundKeys(NamedTuple):
    """Keys of one round. Those for collection (act, env, random) differ between shards."""

    key_act: Array  # noise of the behavioural policy
    key_env: Array  # environment steps
    key_random: Array  # random actions during warm-up
    key_rest: Array  # the agent's key after a warm-up round; otherwise `learning_keys` splits it


def member_keys(seed: Array, shards: Shards) -> MemberKeys:
    """The keys for initialising the member with this seed."""
    key_agent, key_envs, key_ages = jax.random.split(jax.random.key(seed), 3)
    return MemberKeys(key_agent, shards.key(key_envs), shards.key(key_ages))


def round_keys(key: Array, shards: Shards) -> RoundKeys:
    """The keys of an agent's next round, from the agent's key."""
    key_rest, key_collect = jax.random.split(key)
    key_act, key_env, key_random = jax.random.split(shards.key(key_collect), 3)
    return RoundKeys(key_act, key_env, key_random, key_rest)


def learning_keys(key_rest: Array) -> tuple[Array, Array]:
    """(the agent's key after the round, the key for learning)."""
    key_next, key_learn = jax.random.split(key_rest)
    return key_next, key_learn
