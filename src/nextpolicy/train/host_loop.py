"""Rounds of a population whose environments run on the host: the same `learn_round`, another way of collecting.

Each member has its own environments, in groups that are stepped in turn: while the policy acts for one group, the
others step. Members run one after another through the same compiled functions and share one buffer on the device.
An observation crosses to the device once and is stored once: the successor of step t is the observation of step t + 1,
except where an environment was reset within its step, and those few true successors are kept beside.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from nextpolicy.envs.base import HostEnv
from nextpolicy.train.device_loop import Program
from nextpolicy.train.host_collect import Buffer, Compiled, Worker, padded
from nextpolicy.train.rollout import Episodes, action_noise, random_actions, shape_action
from nextpolicy.train.state import Agent, Hypers, LearnerState, Setup, init_agent
from nextpolicy.train.update import Metrics, learn_nothing, learn_round
from nextpolicy.types import Array, PolicySnapshot, PyTree, Rollout


def compile_functions(setup: Setup, env: HostEnv) -> Compiled:
    """Compiled on first use, once for all members."""
    length, num_envs, spec = setup.config.ppo.rollout_length, setup.config.environment.num_envs, setup.spec

    def begin(agent: Agent, explore: bool) -> tuple[Agent, Array]:
        key_next, key_collect = jax.random.split(agent.key)
        key_act, _, key_random = jax.random.split(key_collect, 3)
        draw = partial(random_actions, spec, key_random) if explore else partial(action_noise, spec, key_act)
        return agent._replace(key=key_next), draw((length, num_envs))

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
        hypers: Hypers, agent: Agent, buffer: Buffer, next_obs: Array | None, data: dict[str, Array], explore: bool
    ) -> tuple[Agent, Metrics | None]:
        rollout = Rollout(
            obs=buffer.obs[:-1],
            next_obs=buffer.obs[1:] if next_obs is None else next_obs,
            action=buffer.action,
            reward=data["reward"],
            terminated=data["terminated"],
            truncated=data["truncated"],
            behaviour_log_prob=buffer.dist.log_prob(buffer.action),
            behaviour_dist=buffer.dist,
            valid=None if env.resets_in_step else data["valid"],
        )
        returns, lengths, finished = data["totals"]
        episodes = Episodes(returns, lengths, finished, data["discounted_return"])
        if explore:
            return learn_nothing(setup, agent, rollout, episodes), None
        return learn_round(setup, hypers, agent, rollout, episodes)

    return Compiled(
        init=jax.jit(lambda seeds: init_members(setup, seeds).agent),
        begin=jax.jit(begin, static_argnames="explore", donate_argnums=0),
        act=jax.jit(act, static_argnames="explore", donate_argnums=1),
        keep=jax.jit(keep, donate_argnums=0),
        successors=jax.jit(successors),
        learn=jax.jit(learn, static_argnames="explore", donate_argnums=1),
    )


def _write(whole: Array, part: Array, place: Array) -> Array:
    """`part` [n, ...] into `whole` [T, N, ...] at `place`: a row, and the column from which on."""
    return jax.lax.dynamic_update_slice(whole, part[None], (*place, *[0] * (whole.ndim - 2)))


class HostLoop:
    """A population on host environments, with the interface of a device program."""

    def __init__(self, setup: Setup, hypers: Hypers, env: HostEnv, seeds: np.ndarray) -> None:
        self.setup, self.env = setup, env
        self.hypers = [jax.tree.map(lambda x, i=i: np.asarray(x[i]), hypers) for i in range(len(seeds))]
        gammas = np.asarray(hypers.gamma, np.float64)
        self.workers = [Worker(setup, env, int(s), float(g)) for s, g in zip(seeds, gammas, strict=True)]
        self.compiled = compile_functions(setup, env)
        self.buffer: Buffer | None = None

    def init(self, seeds: Array) -> LearnerState:
        """Fresh agents, leaves [M, ...]; the same parameters as a device program's for the same seeds."""
        return LearnerState(self.compiled.init(jnp.asarray(seeds)), None)  # type: ignore[arg-type]

    def block(self, state: LearnerState, rounds: int) -> tuple[LearnerState, Metrics, PyTree]:
        """`rounds` rounds of every member; environments start with the first block and then go on."""
        agents = _apart(state.agent, len(self.workers))
        if not self.workers[0].pools:
            agents = self._start(agents)
        rows: list[list[Metrics]] = [[] for _ in agents]
        for _ in range(rounds):
            for i in range(len(agents)):
                agents[i], metrics = self._round(i, agents[i])
                assert metrics is not None
                rows[i].append(metrics)
        # Fetched first: NumPy, given a list of JAX's arrays, takes a ctrl-C that comes meanwhile for bad data.
        table = jax.tree.map(lambda *x: np.stack(x), *[m for row in jax.device_get(rows) for m in row])
        shaped = jax.tree.map(lambda x: x.reshape((len(agents), rounds)), table)
        return LearnerState(_together(agents), None), shaped, None  # type: ignore[arg-type]

    def close(self) -> None:
        """Stop every environment."""
        for worker in self.workers:
            worker.close()

    def _start(self, agents: list[Agent]) -> list[Agent]:
        warm_up = -(-self.setup.config.environment.warmup_steps // self.setup.config.ppo.rollout_length)
        for i, worker in enumerate(self.workers):
            done = int(agents[i].round)
            worker.start(done)
            for _ in range(warm_up if done == 0 else 0):
                agents[i] = self._round(i, agents[i], explore=True)[0]
        return agents

    def _round(self, member: int, agent: Agent, explore: bool = False) -> tuple[Agent, Metrics | None]:
        """Collect and learn; or, to warm up, act at random and only fill the statistics."""
        worker, compiled = self.workers[member], self.compiled
        agent, noise = compiled.begin(agent, explore=explore)
        buffer = self._room(agent, worker) if self.buffer is None else self.buffer
        self.buffer = None  # donated while it is filled: nothing is left to reuse if collection fails
        buffer, log = worker.collect(compiled, agent.behaviour, noise, buffer, explore)
        next_obs = compiled.successors(buffer, *padded(log, worker)) if self.env.resets_in_step else None
        data = {
            name: getattr(log, name) for name in ("reward", "terminated", "truncated", "discounted_return", "valid")
        }
        data["totals"] = log.totals.astype(np.float32)
        agent, metrics = compiled.learn(self.hypers[member], agent, buffer, next_obs, data, explore=explore)
        self.buffer = buffer
        return agent, metrics

    def _room(self, agent: Agent, worker: Worker) -> Buffer:
        """An empty buffer of the right shapes."""
        length, num_envs = worker.length, worker.num_envs
        seen = worker.seen[0]
        one = jax.eval_shape(
            lambda o: self.env.arrange(o), jax.ShapeDtypeStruct((num_envs, *seen.shape[1:]), seen.dtype)
        )
        dist = jax.eval_shape(lambda a, o: self.setup.networks.policy(a.behaviour)(o), agent, one)
        action = jax.eval_shape(lambda d: d.mode(), dist)
        zeros = lambda rows: lambda x: jnp.zeros((rows, *x.shape), x.dtype)  # noqa: E731
        return Buffer(zeros(length + 1)(one), zeros(length)(action), jax.tree.map(zeros(length), dist))


@partial(jax.jit, static_argnums=1)
def _apart(agents: Agent, members: int) -> list[Agent]:
    """Leaves [M, ...] as one agent per member."""
    return [jax.tree.map(lambda x, i=i: x[i], agents) for i in range(members)]


@jax.jit
def _together(agents: list[Agent]) -> Agent:
    """One agent per member as leaves [M, ...]."""
    return jax.tree.map(lambda *x: jnp.stack(x), *agents)


def init_members(setup: Setup, seeds: Array) -> LearnerState:
    """Agents of all members before any round; host environments keep no state that could be saved."""

    def one(seed: Array) -> Agent:
        key_agent, _, _ = jax.random.split(jax.random.key(seed), 3)
        return init_agent(setup, key_agent)

    return LearnerState(jax.lax.map(one, jnp.asarray(seeds)), None)  # type: ignore[arg-type]


def build_host_program(setup: Setup, hypers: Hypers, env: HostEnv, seeds: np.ndarray, *, capacity: int) -> Program:
    """The population whose numbers are `hypers` (leaves [M]) on environments of the host."""
    loop = HostLoop(setup, hypers, env, seeds)
    mesh = Mesh(np.asarray(jax.devices()[:1]).reshape(1, 1), ("members", "envs"))
    return Program(loop.init, loop.block, capacity, mesh, loop.close)
