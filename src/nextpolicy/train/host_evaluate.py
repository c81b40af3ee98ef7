"""Evaluation and filming on environments of the host, by whole episodes and unclipped scores."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np

from nextpolicy.envs.base import HostEnv
from nextpolicy.nets.build import Networks
from nextpolicy.train.evaluate import NO_LIMIT, Evaluation
from nextpolicy.train.rollout import shape_action
from nextpolicy.types import Array, PolicySnapshot

Act = Callable[[PolicySnapshot, Array, np.ndarray], np.ndarray]


def actor(env: HostEnv, networks: Networks, greedy: bool) -> Act:
    """`act(snapshot, key, obs)`: what the policy does on raw observations [N, ...]; compiled once for all members."""

    @jax.jit
    def choose(snapshot: PolicySnapshot, key: Array, obs: Array) -> Array:
        dist = networks.policy(snapshot)(env.arrange(obs))
        return shape_action(env.spec, dist.mode() if greedy else dist.sample(key))

    return lambda snapshot, key, obs: np.asarray(choose(snapshot, key, obs))


def evaluate_host(
    env: HostEnv,
    act: Act,
    snapshot: PolicySnapshot,
    key: Array,
    *,
    num_envs: int,
    episodes: int = 1,
    max_steps: int | None = None,
) -> Evaluation:
    """The first `episodes` episodes of each of `num_envs` fresh environments; what comes after them is not counted."""
    limit = (max_steps or env.spec.time_limit or NO_LIMIT) * episodes
    done = np.zeros(num_envs, np.int64)
    returns, lengths = np.zeros((num_envs, episodes), np.float32), np.zeros((num_envs, episodes), np.int32)
    pool = env.start(num_envs)
    try:
        key_reset, key_run = jax.random.split(key)
        obs = pool.reset(_seed(key_reset))
        for i in range(limit + episodes):  # auto-reset may take a step of its own
            pool.send(act(snapshot, jax.random.fold_in(key_run, i), obs))
            step = pool.recv()
            counted = np.flatnonzero((done < episodes) & step.valid)
            returns[counted, done[counted]] += step.score[counted]
            lengths[counted, done[counted]] += 1
            obs, done = step.obs, done + step.episode_over
            if np.all(done >= episodes):
                break
    finally:
        pool.close()
    return Evaluation(returns, lengths, np.arange(episodes)[None, :] < done[:, None])  # type: ignore[arg-type]


def film_host(
    env: HostEnv, act: Act, snapshot: PolicySnapshot, key: Array, *, max_steps: int
) -> tuple[list[np.ndarray], float]:
    """The frames of one episode, and its return."""
    pool = env.start(1, render=True)
    try:
        key_reset, key_run = jax.random.split(key)
        obs = pool.reset(_seed(key_reset))
        frames, total = [pool.render()], 0.0
        for i in range(max_steps):
            pool.send(act(snapshot, jax.random.fold_in(key_run, i), obs))
            step = pool.recv()
            obs, total = step.obs, total + float(step.score[0])
            if step.episode_over[0]:
                break
            frames.append(pool.render())
    finally:
        pool.close()
    return frames, total


def _seed(key: Array) -> int:
    return int(jax.random.randint(key, (), 0, 2**30))
