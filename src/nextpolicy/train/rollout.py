"""Collecting data with the behavioural policy, inside XLA."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from nextpolicy.envs.base import DeviceEnv, Discrete, EnvSpec
from nextpolicy.nets.heads import Categorical, DiagonalGaussian
from nextpolicy.train.state import Agent, Hypers, Setup, Workers
from nextpolicy.types import Array, EnvStep, Rollout


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
    """The workers after a step, and what it finished; a step that is not valid belongs to no episode."""
    cut = step.terminated | step.truncated
    real = jnp.ones_like(cut) if step.valid is None else step.valid
    reward = jnp.where(real, step.reward, 0.0)
    discounted = workers.discounted_return * gamma + reward
    returns, lengths = workers.episode_return + reward, workers.episode_length + real
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
    setup: Setup, hypers: Hypers, agent: Agent, workers: Workers, key: Array, explore: Array | None = None
) -> tuple[Workers, Rollout, Episodes]:
    """T steps of every environment under the behavioural policy, or at random where `explore` (one bool) holds."""
    env, length = setup.env, setup.config.ppo.rollout_length
    assert env is not None
    policy = setup.networks.policy(agent.behaviour)
    key_act, key_env, key_random = jax.random.split(key, 3)
    # All of the policy's randomness in one piece: inside the loop every kernel costs its launch at every step.
    noise = action_noise(setup.spec, key_act, (length, setup.local_envs))
    uniform = None if explore is None else random_actions(setup.spec, key_random, (length, setup.local_envs))

    def one_step(
        workers: Workers, inputs: tuple[Array, Array, Array | None]
    ) -> tuple[Workers, tuple[Rollout, Episodes]]:
        key, noise, uniform = inputs
        dist = policy(workers.obs)
        action = dist.perturbed(noise)
        if explore is not None and uniform is not None:
            action = jnp.where(explore, uniform, action)
        env_state, step = env.step(key, workers.env_state, shape_action(setup.spec, action))
        after, episodes = record(workers, env_state, step, hypers.gamma)
        taken = Rollout(
            obs=workers.obs,
            next_obs=step.next_obs,
            action=action,
            reward=step.reward,
            terminated=step.terminated,
            truncated=step.truncated,
            behaviour_log_prob=step.reward,  # filled in below, for all steps at once
            behaviour_dist=dist,
            valid=step.valid,
        )
        return after, (taken, episodes)

    inputs = (jax.random.split(key_env, length), noise, uniform)
    workers, (rollout, episodes) = jax.lax.scan(one_step, workers, inputs, unroll=_unroll(env))
    totals = jax.tree.map(jnp.sum, episodes)._replace(discounted_return=episodes.discounted_return)
    log_prob = rollout.behaviour_dist.log_prob(rollout.action)
    return workers, rollout._replace(behaviour_log_prob=log_prob), totals


def _unroll(env: DeviceEnv) -> int:
    """Steps per turn of the loop: where a step is a few small kernels, an accelerator spends as much on the turn."""
    return 1 if jax.default_backend() == "cpu" else getattr(env, "unroll", 1)


def action_noise(spec: EnvSpec, key: Array, lead: tuple[int, ...]) -> Array:
    """Noise for one action each, with leading axes `lead`."""
    if isinstance(spec.action, Discrete):
        return Categorical.noise(key, (*lead, spec.action.n))
    return DiagonalGaussian.noise(key, (*lead, math.prod(spec.action.shape)))


def random_actions(spec: EnvSpec, key: Array, lead: tuple[int, ...]) -> Array:
    """Uniform actions as a policy gives them, [*lead] or [*lead, A]; two wide where the environment has no bound."""
    if isinstance(spec.action, Discrete):
        return jax.random.randint(key, lead, 0, spec.action.n)
    bounds = (
        jnp.broadcast_to(jnp.asarray(x, jnp.float32), spec.action.shape) for x in (spec.action.low, spec.action.high)
    )
    low, high = (x.reshape((1,) * len(lead) + (-1,)) for x in bounds)
    low = jnp.where(jnp.isfinite(low), low, jnp.where(jnp.isfinite(high), high - 2.0, -1.0))
    high = jnp.where(jnp.isfinite(high), high, low + 2.0)
    return low + (high - low) * jax.random.uniform(key, (*lead, low.shape[-1]))
