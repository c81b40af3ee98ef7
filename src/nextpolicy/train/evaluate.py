"""Evaluation by a fixed number of episodes per environment, so that short episodes count no more than long ones."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from nextpolicy.envs.base import DeviceEnv
from nextpolicy.nets.build import Networks
from nextpolicy.train.rollout import shape_action
from nextpolicy.types import Array, PolicySnapshot, PyTree

NO_LIMIT = 10_000  # steps after which an episode of an environment without a time limit is given up


class Evaluation(NamedTuple):
    """Per environment and episode, [N, episodes]: return, length, and whether it ended inside the step limit."""

    returns: Array
    lengths: Array
    finished: Array


def evaluate(
    env: DeviceEnv,
    networks: Networks,
    snapshot: PolicySnapshot,
    key: Array,
    *,
    num_envs: int,
    episodes: int = 1,
    greedy: bool = False,
    max_steps: int | None = None,
) -> Evaluation:
    """The first `episodes` episodes of each of `num_envs` fresh environments; what comes after them is not counted."""
    limit = (max_steps or env.spec.time_limit or NO_LIMIT) * episodes
    policy = networks.policy(snapshot)
    key_reset, key_run = jax.random.split(key)
    env_state, obs = env.reset(key_reset, num_envs)
    slot = jnp.arange(episodes)[None, :]

    class Carry(NamedTuple):
        step: Array
        env_state: PyTree
        obs: Array
        done: Array  # [N] episodes finished
        returns: Array  # [N, episodes]
        lengths: Array

    def body(c: Carry) -> Carry:
        key_act, key_env = jax.random.split(jax.random.fold_in(key_run, c.step))
        dist = policy(c.obs)
        action = dist.mode() if greedy else dist.sample(key_act)
        env_state, step = env.step(key_env, c.env_state, shape_action(env.spec, action))
        current = slot == c.done[:, None]
        return Carry(
            step=c.step + 1,
            env_state=env_state,
            obs=step.obs,
            done=c.done + (step.terminated | step.truncated),
            returns=c.returns + jnp.where(current, step.reward[:, None], 0.0),
            lengths=c.lengths + current,
        )

    zeros = jnp.zeros((num_envs, episodes))
    start = Carry(jnp.int32(0), env_state, obs, jnp.zeros(num_envs, jnp.int32), zeros, zeros.astype(jnp.int32))
    end = jax.lax.while_loop(lambda c: (c.step < limit) & jnp.any(c.done < episodes), body, start)
    return Evaluation(end.returns, end.lengths, slot < end.done[:, None])


def trajectory(
    env: DeviceEnv, networks: Networks, snapshot: PolicySnapshot, key: Array, *, greedy: bool, max_steps: int
) -> tuple[list[Any], float]:
    """The states of one episode of one environment, to be drawn, and its return."""
    policy = networks.policy(snapshot)

    @jax.jit
    def advance(key: Array, env_state: PyTree, obs: Array) -> tuple[PyTree, Any]:
        key_act, key_env = jax.random.split(key)
        dist = policy(obs)
        action = dist.mode() if greedy else dist.sample(key_act)
        return env.step(key_env, env_state, shape_action(env.spec, action))

    key_reset, key_run = jax.random.split(key)
    env_state, obs = env.reset(key_reset, 1)
    first = lambda tree: jax.tree.map(lambda x: x[0], tree)  # noqa: E731
    states, total = [first(env_state)], 0.0
    for i in range(max_steps):
        env_state, step = advance(jax.random.fold_in(key_run, i), env_state, obs)
        obs, total = step.obs, total + float(step.reward[0])
        if bool(step.terminated[0] | step.truncated[0]):
            break
        states.append(first(env_state))
    return states, total
