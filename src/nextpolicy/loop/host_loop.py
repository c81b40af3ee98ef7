"""Training of a population whose environments run on the host. Rounds use the same `one_round` as device environments.

Each member has its own environments, in groups that step in turn: while the policy acts for one group, the others step.
Members run one after another through the same compiled functions and share one buffer on the device. Each observation
is transferred and stored once, since the successor of step t is the observation of step t + 1. The exceptions are
environments that were reset within the step; their true successors are stored separately.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from nextpolicy.envs.base import HostEnv
from nextpolicy.loop.actions import action_noise, random_actions, shape_action
from nextpolicy.loop.host_collect import Buffer, Compiled, Log, Table, Worker, padded
from nextpolicy.loop.keys import RoundKeys, member_keys, round_keys
from nextpolicy.loop.population import Program
from nextpolicy.loop.replay import remember
from nextpolicy.loop.round import one_round, warm_up_round
from nextpolicy.loop.state import Agent, Hypers, MemberState, Setup, init_agent
from nextpolicy.types import Array, Episodes, Metrics, PolicySnapshot, PyTree, Rollout


def compile_functions(setup: Setup, env: HostEnv) -> Compiled:
    """The device functions, compiled on first use and shared by all members."""
    config, spec = setup.config.environment, setup.spec

    def begin(agent: Agent, explore: bool) -> tuple[RoundKeys, PolicySnapshot, Array]:
        keys = round_keys(agent.key, setup.shards)
        draw = partial(random_actions, spec, keys.key_random) if explore else partial(action_noise, spec, keys.key_act)
        return keys, setup.algorithm.behaviour(agent.learner), draw((config.rollout_length, config.num_envs))

    def act(
        snapshot: PolicySnapshot, buffer: Buffer, obs: Array, noise: Array, place: Array, explore: bool
    ) -> tuple[Buffer, Array, Array]:
        obs = env.arrange(obs)
        dist = setup.networks.policy(snapshot)(obs)
        own = jax.lax.dynamic_slice(noise, (*place, *[0] * (noise.ndim - 2)), (1, len(obs), *noise.shape[2:]))[0]
        action = own if explore else dist.perturbed(own)
        row = Buffer(obs, action, dist)
        buffer = jax.tree.map(lambda whole, part: _write(whole, part, place), buffer, row)
        return buffer, place.at[0].add(1), shape_action(spec, action)

    def keep(buffer: Buffer, obs: Array, place: Array) -> Buffer:
        return buffer._replace(obs=_write(buffer.obs, env.arrange(obs), place))

    def successors(buffer: Buffer, t: Array, environment: Array, final_obs: Array) -> Array:
        return buffer.obs[1:].at[t, environment].set(env.arrange(final_obs), mode="drop")

    def learn(
        hypers: Hypers,
        agent: Agent,
        buffer: Buffer,
        next_obs: Array | None,
        table: Table[Array],
        ended: Array,
        keys: RoundKeys,
    ) -> tuple[Agent, Metrics]:
        rollout = _rollout(env, buffer, next_obs, table)
        return one_round(setup, hypers, remember(setup, agent, rollout), rollout, Episodes(*ended), keys)

    def warm_up(agent: Agent, buffer: Buffer, next_obs: Array | None, table: Table[Array], keys: RoundKeys) -> Agent:
        rollout = _rollout(env, buffer, next_obs, table)
        return warm_up_round(setup, remember(setup, agent, rollout), rollout, keys)

    return Compiled(
        init=jax.jit(lambda seeds: init_members(setup, seeds).agent),
        begin=jax.jit(begin, static_argnames="explore"),
        act=jax.jit(act, static_argnames="explore", donate_argnums=1),
        keep=jax.jit(keep, donate_argnums=0),
        successors=jax.jit(successors),
        learn=jax.jit(learn, donate_argnums=1),
        warm_up=jax.jit(warm_up, donate_argnums=0),
    )


def _rollout(env: HostEnv, buffer: Buffer, next_obs: Array | None, table: Table[Array]) -> Rollout:
    """The rollout of a round from its data on the device and on the host."""
    return Rollout(
        obs=buffer.obs[:-1],
        next_obs=buffer.obs[1:] if next_obs is None else next_obs,
        action=buffer.action,
        reward=table.reward,
        terminated=table.terminated,
        truncated=table.truncated,
        behaviour_log_prob=buffer.dist.log_prob(buffer.action),
        behaviour_dist=buffer.dist,
        discounted_return=table.discounted_return,
        valid=None if env.resets_in_step else table.valid,
    )


def _write(whole: Array, part: Array, place: Array) -> Array:
    """Write `part` [n, ...] into `whole` [T, N, ...] at `place` = (row, first column)."""
    return jax.lax.dynamic_update_slice(whole, part[None], (*place, *[0] * (whole.ndim - 2)))


class HostLoop:
    """A population on host environments, with the interface of a device program."""

    def __init__(self, setup: Setup, hypers: Hypers, env: HostEnv, seeds: np.ndarray) -> None:
        self.setup, self.env = setup, env
        self.hypers = [jax.tree.map(lambda x, i=i: np.asarray(x[i]), hypers) for i in range(len(seeds))]
        gammas = np.asarray(hypers.algorithm.gamma, np.float64)
        self.workers = [Worker(setup, env, int(s), float(g)) for s, g in zip(seeds, gammas, strict=True)]
        self.compiled = compile_functions(setup, env)
        self.buffer: Buffer | None = None

    def init(self, seeds: Array | np.ndarray) -> MemberState:
        """Initial agents, leaves [M, ...], with the same parameters as in a device program with the same seeds."""
        return MemberState(self.compiled.init(jnp.asarray(seeds)), ())

    def block(self, state: MemberState, rounds: int) -> tuple[MemberState, Metrics, PyTree]:
        """`rounds` rounds of every member. Environments start in the first block and continue in later blocks."""
        agents = _apart(state.agent, len(self.workers))
        if not self.workers[0].pools:
            agents = self._start(agents)
        rows: list[list[Metrics]] = [[] for _ in agents]
        for _ in range(rounds):
            for i in range(len(agents)):
                agents[i], metrics = self._round(i, agents[i])
                rows[i].append(metrics)
        # Fetch first: if ctrl-C interrupts NumPy while it reads a list of JAX arrays, a misleading error is raised.
        table = jax.tree.map(lambda *x: np.stack(x), *[m for row in jax.device_get(rows) for m in row])
        shaped = jax.tree.map(lambda x: x.reshape((len(agents), rounds)), table)
        return MemberState(_together(agents), ()), shaped, None

    def close(self) -> None:
        """Stop every environment."""
        for worker in self.workers:
            worker.close()

    def _start(self, agents: list[Agent]) -> list[Agent]:
        for i, worker in enumerate(self.workers):
            done = int(agents[i].round)
            worker.start(done)
            for _ in range(self.setup.config.warm_up_rounds if done == 0 else 0):
                agents[i] = self._warm_up(i, agents[i])
        return agents

    def _round(self, member: int, agent: Agent) -> tuple[Agent, Metrics]:
        """One round of one member: collect and learn."""
        keys, buffer, next_obs, log = self._collect(member, agent, explore=False)
        data = (buffer, next_obs, log.table, log.ended.astype(np.float32), keys)
        agent, metrics = self.compiled.learn(self.hypers[member], agent, *data)
        self.buffer = buffer
        return agent, metrics

    def _warm_up(self, member: int, agent: Agent) -> Agent:
        """One warm-up round of one member: act at random and update only the statistics."""
        keys, buffer, next_obs, log = self._collect(member, agent, explore=True)
        agent = self.compiled.warm_up(agent, buffer, next_obs, log.table, keys)
        self.buffer = buffer
        return agent

    def _collect(self, member: int, agent: Agent, explore: bool) -> tuple[RoundKeys, Buffer, Array | None, Log]:
        worker, compiled = self.workers[member], self.compiled
        keys, behaviour, noise = compiled.begin(agent, explore=explore)
        buffer = self._room(behaviour, worker) if self.buffer is None else self.buffer
        self.buffer = None  # donated during collection, so it cannot be reused if collection fails
        buffer, log = worker.collect(compiled, behaviour, noise, buffer, explore)
        next_obs = compiled.successors(buffer, *padded(log, worker)) if self.env.resets_in_step else None
        return keys, buffer, next_obs, log

    def _room(self, behaviour: PolicySnapshot, worker: Worker) -> Buffer:
        """An empty buffer of the right shapes."""
        length, num_envs = worker.length, worker.num_envs
        seen = worker.seen[0]
        one = jax.eval_shape(
            lambda o: self.env.arrange(o), jax.ShapeDtypeStruct((num_envs, *seen.shape[1:]), seen.dtype)
        )
        dist = jax.eval_shape(lambda b, o: self.setup.networks.policy(b)(o), behaviour, one)
        action = jax.eval_shape(lambda d: d.mode(), dist)
        zeros = lambda rows: lambda x: jnp.zeros((rows, *x.shape), x.dtype)  # noqa: E731
        return Buffer(zeros(length + 1)(one), zeros(length)(action), jax.tree.map(zeros(length), dist))


@partial(jax.jit, static_argnums=1)
def _apart(agents: Agent, members: int) -> list[Agent]:
    """Split leaves [M, ...] into one agent per member."""
    return [jax.tree.map(lambda x, i=i: x[i], agents) for i in range(members)]


@jax.jit
def _together(agents: list[Agent]) -> Agent:
    """Stack one agent per member into leaves [M, ...]."""
    return jax.tree.map(lambda *x: jnp.stack(x), *agents)


def init_members(setup: Setup, seeds: Array) -> MemberState:
    """All members before the first round. The state of host environments cannot be saved, so `workers` is empty."""
    one = lambda seed: init_agent(setup, member_keys(seed, setup.shards).key_agent)  # noqa: E731
    return MemberState(jax.lax.map(one, jnp.asarray(seeds)), ())


def build_host_program(setup: Setup, hypers: Hypers, env: HostEnv, seeds: np.ndarray, *, capacity: int) -> Program:
    """The program of a population with `hypers` (leaves [M]) on host environments."""
    loop = HostLoop(setup, hypers, env, seeds)
    mesh = Mesh(np.asarray(jax.devices()[:1]).reshape(1, 1), ("members", "envs"))
    return Program(loop.init, loop.block, capacity, mesh, loop.close)
