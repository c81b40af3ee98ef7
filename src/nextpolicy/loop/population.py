"""Many rounds of many members as one compiled program, for environments that run inside XLA."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from nextpolicy.config import ConfigError
from nextpolicy.core.shards import Shards
from nextpolicy.envs.base import DeviceEnv
from nextpolicy.loop.collect import collect, init_workers
from nextpolicy.loop.keys import member_keys, round_keys
from nextpolicy.loop.round import one_round, warm_up_round
from nextpolicy.loop.state import Hypers, MemberState, Setup, init_agent
from nextpolicy.types import Array, Metrics, PyTree

Observer = Callable[[Setup, MemberState], PyTree]
Lower = Callable[[Any, tuple[Any, ...], int], Any]


class Program(NamedTuple):
    """A population's two compiled functions.

    `init(seeds [M])` returns the state with leaves [M, ...], warmed up. `block(state, rounds)` does up to `capacity`
    rounds and returns (state, metrics [M, capacity], observed); it donates the state's buffers. `rounds` is data, so a
    new block length costs no compilation, and the length of blocks cannot change the result.
    """

    init: Callable[[Array | np.ndarray], MemberState]
    block: Callable[[MemberState, int], tuple[MemberState, Metrics, PyTree]]
    capacity: int
    mesh: Mesh
    close: Callable[[], None] = lambda: None  # stops the environments that run on the host


def member_init(setup: Setup, env: DeviceEnv, seed: Array) -> MemberState:
    """One member at its start, before any warm-up."""
    keys = member_keys(seed, setup.shards)
    return MemberState(init_agent(setup, keys.key_agent), init_workers(setup, env, keys))


def member_round(
    setup: Setup, env: DeviceEnv, hypers: Hypers, state: MemberState, warming: Array | None = None
) -> tuple[MemberState, Metrics]:
    """One round of one member: collect, learn; or, while `warming`, collect at random and only fill the statistics."""
    agent, workers = state
    keys = round_keys(agent.key, setup.shards)
    workers, rollout, episodes = collect(setup, env, hypers, agent, workers, keys, warming)
    # Under a jit of its own, the round is traced once, though its shapes are asked for first.
    learn = jax.jit(lambda agent, rollout: one_round(setup, hypers, agent, rollout, episodes, keys))
    if warming is None:
        agent, metrics = learn(agent, rollout)
        return MemberState(agent, workers), metrics
    empty = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(learn, agent, rollout)[1])
    warm_up = lambda agent, rollout: (warm_up_round(setup, agent, rollout, keys), empty)  # noqa: E731
    agent, metrics = jax.lax.cond(warming, warm_up, learn, agent, rollout)
    return MemberState(agent, workers), metrics


def repeat_rounds(
    one_round: Callable[[MemberState], tuple[MemberState, PyTree]], capacity: int, rounds: Array, state: MemberState
) -> tuple[MemberState, PyTree]:
    """`rounds` rounds; row i of each output [capacity, ...] is what the i-th of them gave."""
    # Under a jit of its own, the round is traced once, though its shapes are asked for first. Tracing can take seconds.
    one_round = jax.jit(one_round)

    def body(i: Array, carry: tuple[MemberState, PyTree]) -> tuple[MemberState, PyTree]:
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
    one_round: Callable[[Hypers, MemberState], tuple[MemberState, PyTree]],
    capacity: int,
    rounds: Array,
    hypers: Hypers,
    state: MemberState,
) -> tuple[MemberState, PyTree]:
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
            "population: expected 'auto' or 'map' on a CPU, got 'vmap', with which XLA's thread pool can deadlock; "
            "'force-vmap' takes the risk"
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
    env: DeviceEnv,
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
    shares = setup.config.algorithm.environment_shards(setup.config.environment.num_envs)
    mesh = layout(len(hypers.period), shares, devices or jax.devices())
    _check_processes(mesh, len(hypers.period))
    shards = mesh.shape["envs"]
    setup = setup.sharded(Shards("envs", shards)) if shards > 1 else setup
    members, everywhere = PartitionSpec("members"), PartitionSpec()
    spec = MemberState(members, PartitionSpec("members", "envs") if shards > 1 else members)  # type: ignore[arg-type]
    # On one device there is nothing to spread, and what was traced before the mesh was known need not be traced again.
    spread = partial(jax.shard_map, mesh=mesh, check_vma=False) if mesh.size > 1 else lambda function, **_: function
    init, block = _functions(setup, env, capacity, observer)
    jit_init = jax.jit(spread(init, in_specs=members, out_specs=spec))
    in_specs, out_specs = (members, spec, everywhere, everywhere), (spec, members, members)
    jit_block = jax.jit(spread(block, in_specs=in_specs, out_specs=out_specs), donate_argnums=1)
    placed = jax.tree.map(lambda x: jax.device_put(x, NamedSharding(mesh, members)), hypers)
    compiled: dict[str, Callable[..., Any]] = {}

    def start(seeds: Array | np.ndarray) -> MemberState:
        seeds = jax.device_put(seeds, NamedSharding(mesh, members))
        if not compiled:
            shapes = _placed_shapes(mesh, spec, jax.eval_shape(jit_init, seeds))
            arguments = (placed, shapes, np.int32(0), np.bool_(False))
            lowered = jit_block.lower(*arguments) if lower is None or mesh.size > 1 else lower(jit_block, arguments, 1)
            with ThreadPoolExecutor(1) as pool:  # both contain an environment's reset: in parallel, it is paid for once
                pending = pool.submit(lowered.compile)
                compiled["init"] = jit_init.lower(seeds).compile()
                compiled["block"] = pending.result()
        state = compiled["init"](seeds)
        # Warm-up rounds go through the same compiled block: an environment may take longer to compile than to run.
        for first in range(0, setup.config.warm_up_rounds, capacity):
            rounds = np.int32(min(capacity, setup.config.warm_up_rounds - first))
            state = compiled["block"](placed, state, rounds, np.bool_(True))[0]
        return state

    def train(state: MemberState, rounds: int) -> Any:
        return compiled.get("block", jit_block)(placed, state, np.int32(rounds), np.bool_(False))

    return Program(init=start, block=train, capacity=capacity, mesh=mesh)


def _functions(
    setup: Setup, env: DeviceEnv, capacity: int, observer: Observer | None
) -> tuple[Callable[[Array], MemberState], Callable[..., Any]]:
    """The two functions of a population, before they are spread and compiled."""
    mode = population_mode(setup.config.run.population)

    def init(seeds: Array) -> MemberState:
        return over_members(mode, partial(member_init, setup, env), seeds)

    def block(hypers: Hypers, state: MemberState, rounds: Array, warming: Array) -> Any:
        flag = warming if setup.config.warm_up_rounds else None

        def one(hypers: Hypers, state: MemberState) -> tuple[MemberState, tuple[Metrics, PyTree]]:
            state, metrics = member_round(setup, env, hypers, state, flag)
            return state, (metrics, None if observer is None else observer(setup, state))

        state, (metrics, observed) = population_block(mode, one, capacity, rounds, hypers, state)
        return state, metrics, observed

    return init, block


def _check_processes(mesh: Mesh, members: int) -> None:
    """Every process must have a part of the work."""
    if {d.process_index for d in jax.devices()} - {d.process_index for d in mesh.devices.flat}:
        raise ValueError(f"num_processes: expected a divisor of {members} members, got {jax.process_count()}")


def _placed_shapes(mesh: Mesh, spec: MemberState, shapes: MemberState) -> MemberState:
    """Shapes and types of a state, and where its parts lie."""

    def place(part: Any, shapes: PyTree) -> PyTree:
        sharding = NamedSharding(mesh, part)
        return jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=sharding), shapes)

    return MemberState(place(spec.agent, shapes.agent), place(spec.workers, shapes.workers))
