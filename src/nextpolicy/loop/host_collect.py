"""Collection on the host: one member's environments step in groups, while the device computes and stores actions."""

from __future__ import annotations

from collections import deque
from typing import Any, Generic, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nextpolicy.envs.base import HostEnv, HostPool
from nextpolicy.loop.episodes import Running, account, clip_reward
from nextpolicy.loop.state import Setup
from nextpolicy.types import A, Array, Distribution, PolicySnapshot, Step


class Buffer(NamedTuple):
    """A round's data on the device, filled during collection."""

    obs: Array  # [T + 1, N, ...] raw; the next round starts from the last row
    action: Array  # [T, N] or [T, N, A]
    dist: Distribution  # leaves [T, N, ...]: distribution of the behavioural policy


class Table(NamedTuple, Generic[A]):
    """A round's scalars, each [T, N], filled on the host and transferred to the device once."""

    reward: A
    terminated: A
    truncated: A
    valid: A
    discounted_return: A

    @classmethod
    def empty(cls, length: int, num_envs: int) -> Table[np.ndarray]:
        number, flag = np.zeros((length, num_envs), np.float32), np.zeros((length, num_envs), bool)
        return Table(number, flag, flag.copy(), flag.copy(), number.copy())


class Log(NamedTuple):
    """A round's data on the host."""

    table: Table[np.ndarray]
    finals: list[tuple[int, np.ndarray, np.ndarray]]  # (t, environments [K], their true successors [K, ...])
    ended: np.ndarray  # [3] sum of returns, sum of lengths and number of the episodes that ended


class Compiled(NamedTuple):
    """The compiled device functions. `hypers` and agents are arguments, so all members share these functions."""

    init: Any  # seeds [M] -> agents, leaves [M, ...]
    begin: Any  # (agent, explore) -> (keys of the round, behavioural policy, noise for its actions)
    act: Any  # (snapshot, buffer, obs, noise, place, explore) -> (buffer, next place, action)
    keep: Any  # (buffer, obs, place) -> buffer, with the observations after the last step
    successors: Any  # (buffer, t, environments, their true successors) -> next_obs [T, N, ...]
    learn: Any  # (hypers, agent, buffer, next_obs or None, table, ended, keys) -> (agent, metrics)
    warm_up: Any  # (agent, buffer, next_obs or None, table, keys) -> agent


class Worker:
    """One member's environments in groups, with their latest observations and unfinished episodes."""

    def __init__(self, setup: Setup, env: HostEnv, seed: int, gamma: float) -> None:
        self.setup, self.env, self.seed, self.gamma = setup, env, seed, gamma
        config = setup.config.environment
        self.num_envs, self.length, self.reward_clip = config.num_envs, config.rollout_length, config.reward_clip
        self.pools: list[HostPool] = []
        self.seen: list[Any] = []  # per group: latest observations [n, ...]
        self.running: list[Running] = []  # per group

    def start(self, round_index: int) -> None:
        """Start fresh environments. Their seeds depend on the round, so that a resumed run has new episodes."""
        groups = max(g for g in range(1, self.env.groups + 1) if self.num_envs % g == 0)
        size = self.num_envs // groups
        for group in range(groups):
            self.pools.append(self.env.start(size))
            sequence = np.random.SeedSequence((self.seed, round_index, group))
            seed = int(sequence.generate_state(1)[0]) % (2**31 - self.num_envs)
            self.seen.append(self.pools[group].reset(seed))
        # The (row, column) where each group starts in the buffer. It stays on the device, since a transfer at every
        # step would take as long as dispatching the step.
        self.places = [jnp.asarray([0, group * size], jnp.int32) for group in range(groups)]
        self.running = [Running(np.zeros(size), np.zeros(size), np.zeros(size, np.int64)) for _ in range(groups)]

    def close(self) -> None:
        pools, self.pools = self.pools, []
        for pool in pools:
            pool.close()

    def collect(
        self, compiled: Compiled, snapshot: PolicySnapshot, noise: Array, buffer: Buffer, explore: bool
    ) -> tuple[Buffer, Log]:
        """T steps of every environment. Observations, actions and distributions are stored in the buffer.

        The device computes actions asynchronously. With two groups, one steps while the device computes actions for the
        other. With more groups, requests for later groups are dispatched before the actions of earlier groups are
        fetched, while about half of the groups are stepping.
        """
        log = Log(Table.empty(self.length, self.num_envs), [], np.zeros(3))
        places = list(self.places)
        patience = max(len(self.pools) // 2 - 1, 0)
        asked: deque[tuple[HostPool, Array]] = deque()
        for t in range(self.length + 1):
            if t == self.length:
                _answer(asked, 0)
            for group, pool in enumerate(self.pools):
                step = pool.recv() if t > 0 else None
                if t < self.length:
                    # Passed as NumPy: a compiled function transfers its arguments faster than `device_put`.
                    obs = self.seen[group] if step is None else step.obs
                    given = (snapshot, buffer, obs, noise, places[group])
                    buffer, places[group], action = compiled.act(*given, explore=explore)
                    if patience:
                        action.copy_to_host_async()
                    asked.append((pool, action))
                    _answer(asked, patience)
                elif step is not None:
                    self.seen[group] = jax.device_put(step.obs)  # last row of this round, first row of the next
                    buffer = compiled.keep(buffer, self.seen[group], places[group])
                if step is not None:  # after dispatch, so that environments do not wait for it
                    self._record(log, step, t - 1, group)
        return buffer, log

    def _record(self, log: Log, step: Step[np.ndarray], t: int, group: int) -> None:
        """Write one group's step to row t of the log."""
        step = clip_reward(step, self.reward_clip)
        self.running[group], discounted_return, ended = account(self.running[group], step, self.gamma)
        column = group * len(step.reward)
        valid = np.ones_like(step.terminated) if step.valid is None else step.valid
        rows = (step.reward, step.terminated, step.truncated, valid, discounted_return)
        for table, row in zip(log.table, rows, strict=True):
            table[t, column : column + len(row)] = row
        log.ended[:] += ended
        if step.final_index is not None and step.final_obs is not None:
            log.finals.append((t, step.final_index + column, step.final_obs))


def _answer(asked: deque[tuple[HostPool, Array]], patience: int) -> None:
    """Send the oldest actions to their environments until at most `patience` groups are waiting for actions."""
    while len(asked) > patience:
        pool, action = asked.popleft()
        pool.send(np.asarray(action))


def padded(log: Log, worker: Worker) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The true successors of a round as (t, environment, observation), padded to a power of two to limit compilation.

    Padding has t = T, which is out of range and therefore dropped.
    """
    count = sum(len(index) for _, index, _ in log.finals)
    room = 1 << max(count - 1, 0).bit_length()
    like = log.finals[0][2] if log.finals else np.asarray(worker.seen[0])
    t, environment = np.full(room, worker.length, np.int32), np.zeros(room, np.int32)
    final_obs = np.zeros((room, *like.shape[1:]), like.dtype)
    if log.finals:
        t[:count] = np.concatenate([np.full(len(index), at) for at, index, _ in log.finals])
        environment[:count] = np.concatenate([index for _, index, _ in log.finals])
        final_obs[:count] = np.concatenate([obs for _, _, obs in log.finals])
    return t, environment, final_obs
