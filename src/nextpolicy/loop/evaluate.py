"""Evaluation over a fixed number of episodes per environment, so that short episodes are not over-represented.

Device environments run inside XLA and host environments step in Python. Both share accounting and action selection.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nextpolicy.envs.base import DeviceEnv, HostEnv, is_host_env
from nextpolicy.loop.actions import shape_action
from nextpolicy.loop.episodes import Tally, count
from nextpolicy.types import Array, Networks, PolicySnapshot, PyTree, Step

DEFAULT_LIMIT = 10_000  # maximum steps per episode if the environment has no time limit

Act = Callable[[Array, Array], Array]  # (key, raw observations [N, ...]) -> actions in the environment's shape
Evaluate = Callable[[PolicySnapshot, Array], "Evaluation"]


class Evaluation(NamedTuple):
    """Per environment and episode, [N, episodes]: return, length, and whether it ended within the step limit."""

    returns: Any
    lengths: Any
    finished: Any


def evaluator(
    env: DeviceEnv | HostEnv,
    networks: Networks,
    *,
    num_envs: int,
    episodes: int = 1,
    greedy: bool = False,
    max_steps: int | None = None,
) -> Evaluate:
    """A function `evaluate(snapshot, key)` that plays `episodes` episodes in each of `num_envs` fresh environments.

    Compiled once for all members; on the host, only the policy is.
    """
    limit = (max_steps or env.spec.time_limit or DEFAULT_LIMIT) * episodes
    act = actor(env, networks, greedy)
    if is_host_env(env):
        compiled = jax.jit(lambda snapshot, key, obs: act(snapshot)(key, obs))
        return lambda snapshot, key: _on_host(env, partial(compiled, snapshot), key, num_envs, episodes, limit)
    return jax.jit(lambda snapshot, key: _on_device(env, act(snapshot), key, num_envs, episodes, limit))


def actor(env: DeviceEnv | HostEnv, networks: Networks, greedy: bool) -> Callable[[PolicySnapshot], Act]:
    """A function from a snapshot to a policy `act(key, obs)` on raw observations."""
    arrange = env.arrange if is_host_env(env) else lambda obs: obs

    def bind(snapshot: PolicySnapshot) -> Act:
        policy = networks.policy(snapshot)  # bound outside the loop over steps, since it may evaluate a table

        def act(key: Array, obs: Array) -> Array:
            dist = policy(arrange(obs))
            return shape_action(env.spec, dist.mode() if greedy else dist.sample(key))

        return act

    return bind


def _on_device(env: DeviceEnv, act: Act, key: Array, num_envs: int, episodes: int, limit: int) -> Evaluation:
    key_reset, key_run = jax.random.split(key)
    env_state, obs = env.reset(key_reset, num_envs)

    def body(carry: tuple[Array, PyTree, Array, Tally]) -> tuple[Array, PyTree, Array, Tally]:
        i, env_state, obs, tally = carry
        key_act, key_env = jax.random.split(jax.random.fold_in(key_run, i))
        env_state, step = env.step(key_env, env_state, act(key_act, obs))
        return i + 1, env_state, step.obs, count(tally, step)

    zeros = jnp.zeros((num_envs, episodes))
    tally = Tally(jnp.zeros(num_envs, jnp.int32), zeros, zeros.astype(jnp.int32))
    unfinished = lambda carry: (carry[0] < limit) & jnp.any(carry[3].done < episodes)  # noqa: E731
    tally = jax.lax.while_loop(unfinished, body, (jnp.int32(0), env_state, obs, tally))[3]
    return Evaluation(tally.returns, tally.lengths, jnp.arange(episodes)[None, :] < tally.done[:, None])


def _on_host(env: HostEnv, act: Act, key: Array, num_envs: int, episodes: int, limit: int) -> Evaluation:
    returns, lengths = np.zeros((num_envs, episodes), np.float32), np.zeros((num_envs, episodes), np.int32)
    tally = Tally(np.zeros(num_envs, np.int64), returns, lengths)
    steps = limit + episodes  # auto-reset may take one extra step per episode
    with contextlib.closing(_host_steps(env, act, key, num_envs, steps)) as played:
        for _, step in played:
            tally = count(tally, step)
            if np.all(tally.done >= episodes):
                break
    return Evaluation(tally.returns, tally.lengths, np.arange(episodes)[None, :] < tally.done[:, None])


def _host_steps(
    env: HostEnv, act: Act, key: Array, num_envs: int, steps: int, render: bool = False
) -> Generator[tuple[np.ndarray | None, Step[np.ndarray]], None, None]:
    """Yields (frame, step) for `steps` steps; `frame` shows the first environment before the step, if `render`."""
    pool = env.start(num_envs, render=render)
    try:
        key_reset, key_run = jax.random.split(key)
        obs = pool.reset(int(jax.random.randint(key_reset, (), 0, 2**30)))
        for i in range(steps):
            frame = pool.render() if render else None
            pool.send(np.asarray(act(jax.random.fold_in(key_run, i), obs)))  # type: ignore[arg-type]
            step = pool.recv()
            yield frame, step
            obs = step.obs
    finally:
        pool.close()


class Film(NamedTuple):
    """The frames of one episode, possibly cut short, its return so far, and whether it ended."""

    frames: list[np.ndarray]  # uint8 [H, W, 3]
    total: float
    ended: bool


def film(
    env: DeviceEnv | HostEnv, networks: Networks, snapshot: PolicySnapshot, key: Array, *, greedy: bool, max_steps: int
) -> Film:
    """Render at most `max_steps` steps of one episode."""
    act = jax.jit(actor(env, networks, greedy)(snapshot))
    if is_host_env(env):
        played: Generator[tuple[Any, Step[Any]], None, None] = _host_steps(env, act, key, 1, max_steps, render=True)
    else:
        played = _device_steps(env, act, key, max_steps)
    frames, tally = [], Tally(np.zeros(1, np.int64), np.zeros((1, 1)), np.zeros((1, 1), np.int64))
    with contextlib.closing(played):
        for frame, step in played:
            frames.append(frame)
            tally = count(tally, jax.device_get(step))
            if tally.done[0]:
                break
    return Film(frames, float(tally.returns[0, 0]), bool(tally.done[0]))


def _device_steps(
    env: DeviceEnv, act: Act, key: Array, steps: int
) -> Generator[tuple[np.ndarray, Step[Array]], None, None]:
    """Yields (frame before the step, step) of one environment for `steps` steps."""

    @jax.jit
    def advance(key: Array, env_state: PyTree, obs: Array) -> tuple[PyTree, Step[Array]]:
        key_act, key_env = jax.random.split(key)
        return env.step(key_env, env_state, act(key_act, obs))

    key_reset, key_run = jax.random.split(key)
    env_state, obs = env.reset(key_reset, 1)
    for i in range(steps):
        frame = np.asarray(env.render(jax.device_get(jax.tree.map(lambda x: x[0] if x.ndim else x, env_state))))  # type: ignore[attr-defined]
        env_state, step = advance(jax.random.fold_in(key_run, i), env_state, obs)
        yield frame, step
        obs = step.obs
