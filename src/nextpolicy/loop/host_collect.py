"""Collecting on the host: one member's environments, stepped group by group while the device acts and stores."""

from __future__ import annotations

from collections import deque
from typing import Any, Generic, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nextpolicy.envs.base import HostEnv, HostPool
from nextpolicy.loop.episodes import Running, account, learned_reward
from nextpolicy.loop.state import Setup
from nextpolicy.types import A, Array, Distribution, PolicySnapshot, Step


class Buffer(NamedTuple):
    """What the device keeps of a round while it is collected."""

    obs: Array  # [T + 1, N, ...] raw; the last row is what the next round starts from
    action: Array  # [T, N] or [T, N, A]
    dist: Distribution  # leaves [T, N, ...]: the behavioural policy's


class Table(NamedTuple, Generic[A]):
    """A round's numbers, each [T, N]; filled on the host and sent to the device once."""

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
    """What the host keeps of a round."""

    table: Table[np.ndarray]
    finals: list[tuple[int, np.ndarray, np.ndarray]]  # (t, environments [K], their true successors [K, ...])
    ended: np.ndarray  # [3] returns, lengths and number of the episodes that ended


class Compiled(NamedTuple):
    """The functions that run on the device; `hypers` and agents are data, so all members share them."""

    init: Any  # seeds [M] -> agents, leaves [M, ...]
    begin: Any  # (agent, explore) -> (keys of the round, its policy, noise for its actions)
    act: Any  # (snapshot, buffer, obs, noise, place, explore) -> (buffer, next place, action)
    keep: Any  # (buffer, obs, place) -> buffer: the observations after the last step
    successors: Any  # (buffer, t, environments, their true successors) -> next_obs [T, N, ...]
    learn: Any  # (hypers, agent, buffer, next_obs or None, table, ended, keys) -> (agent, metrics)
    warm_up: Any  # (agent, buffer, next_obs or None, table, keys) -> agent


class Worker:
    """One member's environments: its groups, what each saw last, and its unfinished episodes."""

    def __init__(self, setup: Setup, env: HostEnv, seed: int, gamma: float) -> None:
        self.setup, self.env, self.seed, self.gamma = setup, env, seed, gamma
        config = setup.config.environment
        self.num_envs, self.length, self.reward_clip = config.num_envs, config.rollout_length, config.reward_clip
        self.pools: list[HostPool] = []
        self.seen: list[Any] = []  # per group: observations [n, ...] that the next action is for
        self.running: list[Running] = []  # per group

    def start(self, round_index: int) -> None:
        """Fresh environments; their seed depends on the round, so that a resumed run does not repeat its start."""
        groups = max(g for g in range(1, self.env.groups + 1) if self.num_envs % g == 0)
        size = self.num_envs // groups
        for group in range(groups):
            self.pools.append(self.env.start(size))
            sequence = np.random.SeedSequence((self.seed, round_index, group))
            seed = int(sequence.generate_state(1)[0]) % (2**31 - self.num_envs)
            self.seen.append(self.pools[group].reset(seed))
        # Where a group's round starts in the buffer: row 0 and its first column. Placed on the device once, since
        # sending two small numbers with every step would cost as much as starting the step.
        self.places = [jnp.asarray([0, group * size], jnp.int32) for group in range(groups)]
        self.running = [Running(np.zeros(size), np.zeros(size), np.zeros(size, np.int64)) for _ in range(groups)]

    def close(self) -> None:
        pools, self.pools = self.pools, []
        for pool in pools:
            pool.close()

    def collect(
        self, compiled: Compiled, snapshot: PolicySnapshot, noise: Array, buffer: Buffer, explore: bool
    ) -> tuple[Buffer, Log]:
        """T steps of every environment; the round's observations, actions and distributions are left in the buffer.

        The device answers some time after it was asked. With two groups, the other one steps meanwhile; with more, an
        answer is fetched only after the next groups have asked too, as long as half of the groups are stepping.
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
                    # As NumPy: a compiled function transfers it faster than `device_put`.
                    obs = self.seen[group] if step is None else step.obs
                    given = (snapshot, buffer, obs, noise, places[group])
                    buffer, places[group], action = compiled.act(*given, explore=explore)
                    if patience:
                        action.copy_to_host_async()
                    asked.append((pool, action))
                    _answer(asked, patience)
                elif step is not None:
                    self.seen[group] = jax.device_put(step.obs)  # for this round's last row and the next one's first
                    buffer = compiled.keep(buffer, self.seen[group], places[group])
                if step is not None:  # only now: environments do not wait for bookkeeping
                    self._record(log, step, t - 1, group)
        return buffer, log

    def _record(self, log: Log, step: Step[np.ndarray], t: int, group: int) -> None:
        """Row t of the log from one group's step."""
        step = learned_reward(step, self.reward_clip)
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
    """Send the oldest actions to their environments, until at most `patience` groups are waiting for theirs."""
    while len(asked) > patience:
        pool, action = asked.popleft()
        pool.send(np.asarray(action))


def padded(log: Log, worker: Worker) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All true successors of a round as (t, environment, observation), padded so that few lengths are compiled.

    Padding is at t = T, which is out of range and dropped.
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
