"""Collection on the device: the behavioural policy acts in N environments for T steps, in one scan."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from nextpolicy.envs.base import DeviceEnv
from nextpolicy.loop.actions import action_noise, random_actions, shape_action
from nextpolicy.loop.episodes import Running, account, clip_reward
from nextpolicy.loop.keys import MemberKeys, RoundKeys
from nextpolicy.loop.state import Agent, Hypers, Setup, Workers
from nextpolicy.types import Array, Episodes, PyTree, Rollout, Step

EnvStep = Callable[[PyTree, PyTree, Array], tuple[PyTree, Step[Array]]]


def init_workers(setup: Setup, env: DeviceEnv, keys: MemberKeys) -> Workers:
    """N environments after a reset. With a warm-up, episode ages are randomised if the environment supports it."""
    env_state, obs = env.reset(keys.key_envs, setup.local_envs)
    desynchronise = getattr(env, "desynchronise", None)
    if setup.config.environment.warmup_steps and desynchronise is not None:
        env_state = desynchronise(keys.key_ages, env_state)
    zeros = jnp.zeros(setup.local_envs, jnp.float32)
    return Workers(env_state, obs, Running(zeros, zeros, jnp.zeros(setup.local_envs, jnp.int32)))


def collect(
    setup: Setup,
    env: DeviceEnv,
    hypers: Hypers,
    agent: Agent,
    workers: Workers,
    keys: RoundKeys,
    explore: Array | None = None,
) -> tuple[Workers, Rollout, Episodes]:
    """T steps of every environment with the behavioural policy, or with random actions if `explore` (bool [])."""
    config = setup.config.environment
    shape = (config.rollout_length, setup.local_envs)
    policy = setup.networks.policy(setup.algorithm.behaviour(agent.learner))
    # Draw all noise before the scan: inside, every kernel would be launched at every step.
    noise = action_noise(setup.spec, keys.key_act, shape)
    uniform = None if explore is None else random_actions(setup.spec, keys.key_random, shape)

    def one_step(workers: Workers, inputs: tuple[PyTree, Array, Array | None]) -> tuple[Workers, tuple[Rollout, Array]]:
        randomness, noise, uniform = inputs
        dist = policy(workers.obs)
        action = dist.perturbed(noise)
        if explore is not None and uniform is not None:
            action = jnp.where(explore, uniform, action)
        env_state, step = env_step(randomness, workers.env_state, shape_action(setup.spec, action))
        step = clip_reward(step, config.reward_clip)
        running, discounted_return, ended = account(workers.running, step, hypers.algorithm.gamma)
        assert step.next_obs is not None
        taken = Rollout(
            obs=workers.obs,
            next_obs=step.next_obs,
            action=action,
            reward=step.reward,
            terminated=step.terminated,
            truncated=step.truncated,
            behaviour_log_prob=step.reward,  # placeholder; computed below for all steps at once
            behaviour_dist=dist,
            discounted_return=discounted_return,
            valid=step.valid,
        )
        return Workers(env_state, step.obs, running), (taken, jnp.stack(ended))  # one write, not three

    randomness, env_step = _randomness(env, jax.random.split(keys.key_env, config.rollout_length), setup.local_envs)
    workers, (rollout, ended) = jax.lax.scan(one_step, workers, (randomness, noise, uniform), unroll=_unroll(env))
    log_prob = rollout.behaviour_dist.log_prob(rollout.action)
    return workers, rollout._replace(behaviour_log_prob=log_prob), Episodes(*jnp.sum(ended, axis=0))


def _randomness(env: DeviceEnv, keys: Array, num_envs: int) -> tuple[PyTree, EnvStep]:
    """What each step of the scan reads in place of a key, leaves [T, ...], and the function that takes it."""
    draw, step_drawn = getattr(env, "draw", None), getattr(env, "step_drawn", None)
    if draw is None or step_drawn is None or jax.default_backend() != "cpu":
        return keys, env.step
    # On a CPU, hashing a few keys takes as long as a small environment step: do it for all steps at once.
    return jax.vmap(partial(draw, num_envs=num_envs))(keys), step_drawn


def _unroll(env: DeviceEnv) -> int:
    """Steps per scan iteration. On an accelerator, the loop overhead can equal the work of a small environment step."""
    return 1 if jax.default_backend() == "cpu" else getattr(env, "unroll", 1)
