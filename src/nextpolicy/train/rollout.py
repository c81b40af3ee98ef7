"""Collecting data with the behavioural policy, inside XLA."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from nextpolicy.core import running_stats
from nextpolicy.envs.base import DeviceEnv, Discrete, EnvSpec
from nextpolicy.train.state import Agent, Hypers, LearnerState, Setup, Workers
from nextpolicy.types import Array, EnvStep, PolicySnapshot, Rollout


class Episodes(NamedTuple):
    """What finished during a round, and the discounted returns that scale the reward."""

    returns: Array  # sum over finished episodes
    lengths: Array
    finished: Array  # how many
    discounted_return: Array  # [T, N] running discounted return after each step


def init_workers(setup: Setup, key: Array) -> Workers:
    """N environments at the start of an episode."""
    assert setup.env is not None
    env_state, obs = setup.env.reset(key, setup.local_envs)
    zeros = jnp.zeros(setup.local_envs, jnp.float32)
    return Workers(env_state, obs, zeros, zeros, jnp.zeros(setup.local_envs, jnp.int32))


def shape_action(spec: EnvSpec, action: Array) -> Array:
    """A policy's action [N] or [N, A] in the environment's own shape."""
    return action if isinstance(spec.action, Discrete) else action.reshape((-1, *spec.action.shape))


def record(workers: Workers, env_state: Any, step: EnvStep, gamma: Array) -> tuple[Workers, Episodes]:
    """The workers after a step, and what it finished."""
    cut = step.terminated | step.truncated
    discounted = workers.discounted_return * gamma + step.reward
    returns, lengths = workers.episode_return + step.reward, workers.episode_length + 1
    after = Workers(
        env_state=env_state,
        obs=step.obs,
        discounted_return=jnp.where(cut, 0.0, discounted),
        episode_return=jnp.where(cut, 0.0, returns),
        episode_length=jnp.where(cut, 0, lengths),
    )
    episodes = Episodes(
        returns=jnp.sum(jnp.where(cut, returns, 0.0)),
        lengths=jnp.sum(jnp.where(cut, lengths, 0), dtype=jnp.float32),
        finished=jnp.sum(cut, dtype=jnp.float32),
        discounted_return=discounted,
    )
    return after, episodes


def collect(
    setup: Setup, hypers: Hypers, agent: Agent, workers: Workers, key: Array
) -> tuple[Workers, Rollout, Episodes]:
    """T steps of every environment under the behavioural policy."""
    env = setup.env
    assert env is not None
    policy = setup.networks.policy(agent.behaviour)

    def one_step(workers: Workers, key: Array) -> tuple[Workers, tuple[Rollout, Episodes]]:
        key_act, key_env = jax.random.split(key)
        dist = policy(workers.obs)
        action = dist.sample(key_act)
        env_state, step = env.step(key_env, workers.env_state, shape_action(setup.spec, action))
        after, episodes = record(workers, env_state, step, hypers.gamma)
        taken = Rollout(
            obs=workers.obs,
            next_obs=step.next_obs,
            action=action,
            reward=step.reward,
            terminated=step.terminated,
            truncated=step.truncated,
            behaviour_log_prob=dist.log_prob(action),
            behaviour_dist=dist,
            valid=step.valid,
        )
        return after, (taken, episodes)

    keys = jax.random.split(key, setup.config.ppo.rollout_length)
    workers, (rollout, episodes) = jax.lax.scan(one_step, workers, keys)
    totals = jax.tree.map(jnp.sum, episodes)._replace(discounted_return=episodes.discounted_return)
    return workers, rollout, totals


def random_action(env: DeviceEnv, key: Array, num_envs: int) -> Array:
    """Uniform actions for N environments."""
    if isinstance(env.spec.action, Discrete):
        return jax.random.randint(key, (num_envs,), 0, env.spec.action.n)
    box = env.spec.action
    low, high = (jnp.broadcast_to(jnp.asarray(x, jnp.float32), box.shape) for x in (box.low, box.high))
    unit = jax.random.uniform(key, (num_envs, *box.shape))
    return low[None] + (high - low)[None] * unit


def warm_up(setup: Setup, hypers: Hypers, state: LearnerState, key: Array) -> LearnerState:
    """Random-action steps that spread the episodes out in time and fill the statistics, before round 0.

    The target is the behavioural policy, so it takes the filled statistics over.
    """
    env = setup.env
    assert env is not None
    key_spread, key_steps = jax.random.split(key)
    agent, workers = state
    if hasattr(env, "desynchronise"):
        workers = workers._replace(env_state=env.desynchronise(key_spread, workers.env_state))

    def one_step(carry: tuple[Workers, Any, Any], key: Array) -> tuple[tuple[Workers, Any, Any], None]:
        workers, obs_stats, reward_stats = carry
        key_act, key_env = jax.random.split(key)
        env_state, step = env.step(key_env, workers.env_state, random_action(env, key_act, setup.local_envs))
        if obs_stats is not None:
            obs_stats = running_stats.update(obs_stats, workers.obs.astype(jnp.float32), axis_name=setup.axis_name)
        workers, episodes = record(workers, env_state, step, hypers.gamma)
        if reward_stats is not None:
            reward_stats = running_stats.update(reward_stats, episodes.discounted_return, axis_name=setup.axis_name)
        return (workers, obs_stats, reward_stats), None

    keys = jax.random.split(key_steps, setup.config.environment.warmup_steps)
    carry = (workers, agent.obs_stats, agent.reward_stats)
    (workers, obs_stats, reward_stats), _ = jax.lax.scan(one_step, carry, keys)
    target = PolicySnapshot(agent.target.params, obs_stats)
    return LearnerState(agent._replace(obs_stats=obs_stats, reward_stats=reward_stats, target=target), workers)
