"""Many rounds of many members as one compiled program, for environments that run inside XLA."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from nextpolicy.config import ConfigError
from nextpolicy.train.rollout import collect, init_workers
from nextpolicy.train.state import Hypers, LearnerState, Setup, init_agent
from nextpolicy.train.update import Metrics, _shard_key, learn_nothing, learn_round
from nextpolicy.types import Array, PyTree

Observer = Callable[[Setup, LearnerState], PyTree]
Lower = Callable[[Any, tuple[Any, ...], int], Any]


class Program(NamedTuple):
    """A population's two compiled functions.

    `init(seeds [M])` gives the state with leaves [M, ...], warmed up. `block(state, rounds)` does up to `capacity`
    rounds and gives (state, metrics [M, capacity], observed); its buffers are donated, and `rounds` is data, so that no
    block length costs a compilation and how training is cut into blocks cannot change its result.
    """

    init: Callable[[Array], LearnerState]
    block: Callable[[LearnerState, int], tuple[LearnerState, Metrics, PyTree]]
    capacity: int
    mesh: Mesh
    close: Callable[[], None] = lambda: None  # stops what runs outside XLA, where anything does


def member_init(setup: Setup, hypers: Hypers, seed: Array) -> LearnerState:
    """One member at its start, before any warm-up."""
    key_agent, key_envs, key_spread = jax.random.split(jax.random.key(seed), 3)
    workers = init_workers(setup, _shard_key(setup, key_envs))
    desynchronise = getattr(setup.env, "desynchronise", None)
    if setup.config.environment.warmup_steps and desynchronise is not None:
        spread = desynchronise(_shard_key(setup, key_spread), workers.env_state)
        workers = workers._replace(env_state=spread)
    return LearnerState(init_agent(setup, key_agent), workers)


def member_round(
    setup: Setup, hypers: Hypers, state: LearnerState, warming: Array | None = None
) -> tuple[LearnerState, Metrics]:
    """One round of one member: collect, learn; or, while `warming`, collect at random and only fill the statistics."""
    agent, workers = state
    key_next, key_collect = jax.random.split(agent.key)
    agent = agent._replace(key=key_next)
    workers, rollout, episodes = collect(setup, hypers, agent, workers, _shard_key(setup, key_collect), warming)
    learn = jax.jit(partial(learn_round, setup, hypers))  # traced once, though its shapes are asked for first
    if warming is None:
        agent, metrics = learn(agent, rollout, episodes)
        return LearnerState(agent, workers), metrics
    empty = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(learn, agent, rollout, episodes)[1])
    warm = lambda *data: (learn_nothing(setup, *data), empty)  # noqa: E731
    agent, metrics = jax.lax.cond(warming, warm, learn, agent, rollout, episodes)
    return LearnerState(agent, workers), metrics


def repeat_rounds(
    one_round: Callable[[LearnerState], tuple[LearnerState, PyTree]], capacity: int, rounds: Array, state: LearnerState
) -> tuple[LearnerState, PyTree]:
    """`rounds` rounds; row i of each output [capacity, ...] is what the i-th of them gave."""
    # Under a jit of its own, asking for its shapes does not trace it twice: an environment can take seconds to trace.
    one_round = jax.jit(one_round)

    def body(i: Array, carry: tuple[LearnerState, PyTree]) -> tuple[LearnerState, PyTree]:
        state, rows = carry
        state, row = one_round(state)
        return state, jax.tree.map(lambda buffer, x: buffer.at[i].set(x), rows, row)

    shapes = jax.eval_shape(one_round, state)[1]
    empty = jax.tree.map(lambda s: jnp.zeros((capacity, *s.shape), s.dtype), shapes)
    return jax.lax.fori_loop(0, rounds, body, (state, empty))


def over_members(mode: str, function: Callable[..., Any], *arguments: PyTree) -> Any:
    """`function` for every member of the leading axis: side by side, or one after another."""
    if mode == "vmap":
        return jax.vmap(function)(*arguments)
    return jax.lax.map(lambda args: function(*args), arguments)


def population_block(
    mode: str,
    one_round: Callable[[Hypers, LearnerState], tuple[LearnerState, PyTree]],
    capacity: int,
    rounds: Array,
    hypers: Hypers,
    state: LearnerState,
) -> tuple[LearnerState, PyTree]:
    """`rounds` rounds of every member, outputs [M, capacity, ...].

    Side by side, each round is mapped over members, not each member over rounds: mapping a loop traces its body again.
    """
    if mode == "map":
        member = lambda h, s: repeat_rounds(partial(one_round, h), capacity, rounds, s)  # noqa: E731
        return over_members(mode, member, hypers, state)
    state, rows = repeat_rounds(lambda s: over_members(mode, jax.jit(one_round), hypers, s), capacity, rounds, state)
    return state, jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), rows)


def population_mode(mode: str) -> str:
    """`vmap` or `map`. `auto` is vmap on accelerators and one after another on CPUs, where it is the faster."""
    cpu = jax.default_backend() == "cpu"
    if mode == "vmap" and cpu:
        raise ConfigError(
            "population: got 'vmap' on a CPU, where XLA's thread pool can wait for ever; takes 'auto' or 'map' there, "
            "or 'force-vmap' at your own risk"
        )
    return "vmap" if mode == "force-vmap" else mode if mode != "auto" else "map" if cpu else "vmap"


def layout(members: int, shares: int, devices: list[Any]) -> Mesh:
    """How a population lies on the devices: over members as far as they go, then over environments.

    `shares` is what the environments may be split by: any divisor of it.
    """
    across_members = max(d for d in range(1, len(devices) + 1) if members % d == 0)
    left = len(devices) // across_members
    across_envs = max(d for d in range(1, left + 1) if shares % d == 0)
    # Environments are split only where members cannot fill the machine: it changes what a minibatch is made of.
    if members >= len(devices):
        across_envs = 1
    grid = np.asarray(devices[: across_members * across_envs]).reshape(across_members, across_envs)
    return Mesh(grid, ("members", "envs"))


def build_program(
    setup: Setup,
    hypers: Hypers,
    *,
    capacity: int,
    observer: Observer | None = None,
    devices: list[Any] | None = None,
    lower: Lower | None = None,
) -> Program:
    """Compile-once functions for the population whose numbers are `hypers` (leaves [M]).

    `lower(function, arguments, donated)` may lower the block in its own way, on one device.
    """
    # Every device takes an equal part of the environments and of each minibatch.
    shares = math.gcd(setup.config.environment.num_envs, setup.config.ppo.minibatch_size)
    mesh = layout(len(hypers.gamma), shares, devices or jax.devices())
    idle = {d.process_index for d in jax.devices()} - {d.process_index for d in mesh.devices.flat}
    if idle:
        count = len(hypers.gamma)
        raise ValueError(f"num_processes: got {jax.process_count()} for {count} members, takes a divisor of that")
    shards = mesh.shape["envs"]
    if shards > 1:
        setup = replace(setup, axis_name="envs", env_shards=shards)
    mode = population_mode(setup.config.run.population)
    members, replicated = PartitionSpec("members"), PartitionSpec()
    state_spec = LearnerState(members, PartitionSpec("members", "envs") if shards > 1 else members)  # type: ignore[arg-type]

    def init(hypers: Hypers, seeds: Array) -> LearnerState:
        return over_members(mode, partial(member_init, setup), hypers, seeds)

    # Warm-up rounds go through the same compiled block: an environment's step can take longer to compile than to run.
    warm_rounds = -(-setup.config.environment.warmup_steps // setup.config.ppo.rollout_length)

    def block(hypers: Hypers, state: LearnerState, rounds: Array, warming: Array) -> Any:
        flag = warming if warm_rounds else None

        def one_round(hypers: Hypers, state: LearnerState) -> tuple[LearnerState, tuple[Metrics, PyTree]]:
            state, metrics = member_round(setup, hypers, state, flag)
            return state, (metrics, None if observer is None else observer(setup, state))

        state, (metrics, observed) = population_block(mode, one_round, capacity, rounds, hypers, state)
        return state, metrics, observed

    # On one device there is nothing to spread, and what was traced before the mesh was known need not be traced again.
    spread = partial(jax.shard_map, mesh=mesh, check_vma=False) if mesh.size > 1 else lambda function, **_: function
    jit_init = jax.jit(spread(init, in_specs=(members, members), out_specs=state_spec))
    in_specs, out_specs = (members, state_spec, replicated, replicated), (state_spec, members, members)
    jit_block = jax.jit(spread(block, in_specs=in_specs, out_specs=out_specs), donate_argnums=1)
    placed = jax.tree.map(lambda x: jax.device_put(x, NamedSharding(mesh, members)), hypers)

    compiled: dict[str, Callable[..., Any]] = {}

    def start(seeds: Array) -> LearnerState:
        seeds = jax.device_put(seeds, NamedSharding(mesh, members))
        if not compiled:
            shapes = _placed_shapes(mesh, state_spec, jax.eval_shape(jit_init, placed, seeds))
            arguments = (placed, shapes, np.int32(0), np.bool_(False))
            block = jit_block.lower(*arguments) if lower is None or mesh.size > 1 else lower(jit_block, arguments, 1)
            with ThreadPoolExecutor(1) as pool:  # both hold an environment's reset: side by side it is paid for once
                block = pool.submit(block.compile)
                compiled["init"] = jit_init.lower(placed, seeds).compile()
                compiled["block"] = block.result()
        state = compiled["init"](placed, seeds)
        for first in range(0, warm_rounds, capacity):
            rounds = np.int32(min(capacity, warm_rounds - first))
            state = compiled["block"](placed, state, rounds, np.bool_(True))[0]
        return state

    def train(state: LearnerState, rounds: int) -> Any:
        return compiled.get("block", jit_block)(placed, state, np.int32(rounds), np.bool_(False))

    return Program(init=start, block=train, capacity=capacity, mesh=mesh)


def _placed_shapes(mesh: Mesh, spec: LearnerState, shapes: LearnerState) -> LearnerState:
    """Shapes and types of a state, and where its parts lie."""

    def place(part: Any, shapes: PyTree) -> PyTree:
        sharding = NamedSharding(mesh, part)
        return jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=sharding), shapes)

    return LearnerState(place(spec.agent, shapes.agent), place(spec.workers, shapes.workers))
