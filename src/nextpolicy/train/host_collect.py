"""Collecting on the host: one member's environments, stepped group by group while the device acts and remembers."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nextpolicy.envs.base import HostEnv, HostPool, HostStep
from nextpolicy.nets.heads import Distribution
from nextpolicy.train.state import Setup
from nextpolicy.types import Array, PolicySnapshot


class Buffer(NamedTuple):
    """What the device keeps of a round while it is collected."""

    obs: Array  # [T + 1, N, ...] raw; the last row is what the next round starts from
    action: Array  # [T, N] or [T, N, A]
    dist: Distribution  # leaves [T, N, ...]: the behavioural policy's


class Log(NamedTuple):
    """What the host keeps of a round: a few bytes per step, sent to the device once."""

    reward: np.ndarray  # [T, N]
    terminated: np.ndarray
    truncated: np.ndarray
    valid: np.ndarray
    discounted_return: np.ndarray
    finals: list[tuple[int, np.ndarray, np.ndarray]]  # (t, environments [K], their true successors [K, ...])
    totals: np.ndarray  # [3] returns, lengths and number of the finished episodes

    @classmethod
    def empty(cls, length: int, num_envs: int) -> Log:
        number, flag = np.zeros((length, num_envs), np.float32), np.zeros((length, num_envs), bool)
        return cls(number, flag, flag.copy(), flag.copy(), number.copy(), [], np.zeros(3))


class Counters(NamedTuple):
    """The unfinished episodes of a member's N environments."""

    episode_return: np.ndarray
    episode_length: np.ndarray
    discounted_return: np.ndarray

    @classmethod
    def zeros(cls, num_envs: int) -> Counters:
        return cls(np.zeros(num_envs), np.zeros(num_envs, np.int64), np.zeros(num_envs))


class Compiled(NamedTuple):
    """The functions that run on the device; `hypers` and agents are data, so all members share them."""

    init: Any  # seeds [M] -> agents, leaves [M, ...]
    begin: Any  # (agent, explore) -> (agent, noise for the round)
    act: Any  # (snapshot, buffer, obs, noise, place, explore) -> (buffer, next place, action)
    keep: Any  # (buffer, obs, place) -> buffer: the observations after the last step
    successors: Any  # (buffer, t, environments, their true successors) -> next_obs [T, N, ...]
    learn: Any  # (hypers, agent, buffer, next_obs or None, data, explore) -> (agent, metrics or None)


class Worker:
    """One member's environments: its groups, what each saw last, and its unfinished episodes."""

    def __init__(self, setup: Setup, env: HostEnv, seed: int, gamma: float) -> None:
        self.setup, self.env, self.seed, self.gamma = setup, env, seed, gamma
        self.num_envs, self.length = setup.config.environment.num_envs, setup.config.ppo.rollout_length
        self.pools: list[HostPool] = []
        self.seen: list[Any] = []  # per group: observations [n, ...] that the next action is for

    def start(self, round_index: int) -> None:
        """Fresh environments; the seed also goes by the round, so that a resumed run does not repeat its start."""
        groups = max(g for g in range(1, self.env.groups + 1) if self.num_envs % g == 0)
        size = self.num_envs // groups
        for group in range(groups):
            self.pools.append(self.env.start(size))
            sequence = np.random.SeedSequence((self.seed, round_index, group))
            seed = int(sequence.generate_state(1)[0]) % (2**31 - self.num_envs)
            self.seen.append(self.pools[group].reset(seed))
        # Where in the buffer a group's round starts: row 0 and its first column. On the device once and for all, since
        # sending two small numbers with every step would cost as much as starting the step does.
        self.places = [jnp.asarray([0, group * size], jnp.int32) for group in range(groups)]
        self.counters = Counters.zeros(self.num_envs)

    def close(self) -> None:
        pools, self.pools = self.pools, []
        for pool in pools:
            pool.close()

    def collect(
        self, compiled: Compiled, snapshot: PolicySnapshot, noise: Array, buffer: Buffer, explore: bool
    ) -> tuple[Buffer, Log]:
        """T steps of every environment; the round's observations, actions and distributions are left in the buffer.

        The device answers some time after it was asked. With two groups the other one steps meanwhile; with more, an
        answer is fetched only after the next groups have asked too, as long as half of the groups are stepping.
        """
        log = Log.empty(self.length, self.num_envs)
        places = list(self.places)
        patience = max(len(self.pools) // 2 - 1, 0)
        asked: deque[tuple[HostPool, Array]] = deque()
        for t in range(self.length + 1):
            if t == self.length:
                _answer(asked, 0)
            for group, pool in enumerate(self.pools):
                step = pool.recv() if t > 0 else None
                if t < self.length:
                    # As NumPy: a compiled function takes that over faster than `device_put` does.
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
                if step is not None:  # only now: environments are not kept waiting for bookkeeping
                    self._record(log, step, t - 1, group * pool.num_envs)
        return buffer, log

    def _record(self, log: Log, step: HostStep, t: int, column: int) -> None:
        """Row t of the log from one group's step; a step that is not valid belongs to no episode."""
        part = slice(column, column + len(step.reward))
        returns, lengths, discounted = (x[part] for x in self.counters)
        returns += np.where(step.valid, step.score, 0.0)
        lengths += step.valid
        discounted[:] = discounted * self.gamma + np.where(step.valid, step.reward, 0.0)
        rows = (step.reward, step.terminated, step.truncated, step.valid, discounted)
        for table, row in zip(log[:5], rows, strict=True):
            table[t, part] = row
        over = step.episode_over
        log.totals[:] += (returns[over].sum(), lengths[over].sum(), over.sum())
        returns[over], lengths[over] = 0.0, 0
        discounted[step.terminated | step.truncated] = 0.0
        if step.final_obs is not None:
            log.finals.append((t, step.final_index + column, step.final_obs))


def _answer(asked: deque[tuple[HostPool, Array]], patience: int) -> None:
    """Send the oldest actions on to their environments, until no more than `patience` groups are without."""
    while len(asked) > patience:
        pool, action = asked.popleft()
        pool.send(np.asarray(action))


def padded(log: Log, worker: Worker) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All true successors of a round as (t, environment, observation), padded so that few lengths are compiled.

    Padding is at t = T, which lies outside and is dropped.
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
