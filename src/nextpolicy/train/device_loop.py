"""Many rounds of many members as one compiled program, for environments that run inside XLA."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from nextpolicy.train.rollout import collect, init_workers, warm_up
from nextpolicy.train.state import Hypers, LearnerState, Setup, init_agent
from nextpolicy.train.update import Metrics, _shard_key, learn_round
from nextpolicy.types import Array, PyTree

Observer = Callable[[Setup, LearnerState], PyTree]


class Program(NamedTuple):
    """A population's two compiled functions.

    `init(seeds [M])` gives the state with leaves [M, ...]. `block(state, rounds)` does up to `capacity` rounds and
    gives (state, metrics [M, capacity], observed); its buffers are donated, and `rounds` is data, so that no block
    length costs a compilation and how training is cut into blocks cannot change its result.
    """

    init: Callable[[Array], LearnerState]
    block: Callable[[LearnerState, int], tuple[LearnerState, Metrics, PyTree]]
    capacity: int
    mesh: Mesh


def member_init(setup: Setup, hypers: Hypers, seed: Array) -> LearnerState:
    """One member at its start."""
    key_agent, key_envs, key_warm = jax.random.split(jax.random.key(seed), 3)
    state = LearnerState(init_agent(setup, key_agent), init_workers(setup, _shard_key(setup, key_envs)))
    if setup.config.environment.warmup_steps:
        state = warm_up(setup, hypers, state, _shard_key(setup, key_warm))
    return state


def member_round(setup: Setup, hypers: Hypers, state: LearnerState) -> tuple[LearnerState, Metrics]:
    """One round of one member: collect, learn."""
    agent, workers = state
    key_next, key_collect = jax.random.split(agent.key)
    workers, rollout, episodes = collect(setup, hypers, agent, workers, _shard_key(setup, key_collect))
    agent, metrics = learn_round(setup, hypers, agent._replace(key=key_next), rollout, episodes)
    return LearnerState(agent, workers), metrics


def member_block(
    setup: Setup, observer: Observer | None, capacity: int, rounds: Array, hypers: Hypers, state: LearnerState
) -> tuple[LearnerState, Metrics, PyTree]:
    """`rounds` rounds of one member; row i of each output belongs to the i-th of them."""

    def one_round(state: LearnerState) -> tuple[LearnerState, tuple[Metrics, PyTree]]:
        state, metrics = member_round(setup, hypers, state)
        return state, (metrics, None if observer is None else observer(setup, state))

    def body(i: Array, carry: tuple[LearnerState, PyTree]) -> tuple[LearnerState, PyTree]:
        state, rows = carry
        state, row = one_round(state)
        return state, jax.tree.map(lambda buffer, x: buffer.at[i].set(x), rows, row)

    shapes = jax.eval_shape(one_round, state)[1]
    empty = jax.tree.map(lambda s: jnp.zeros((capacity, *s.shape), s.dtype), shapes)
    state, (metrics, observed) = jax.lax.fori_loop(0, rounds, body, (state, empty))
    return state, metrics, observed


def over_members(mode: str, function: Callable[..., Any], *arguments: PyTree) -> Any:
    """`function` for every member of the leading axis: side by side, or one after another."""
    if mode == "vmap":
        return jax.vmap(function)(*arguments)
    return jax.lax.map(lambda args: function(*args), arguments)


def population_mode(mode: str) -> str:
    """`auto` is vmap on accelerators and one after another on CPUs, where it is the faster."""
    return mode if mode != "auto" else "map" if jax.default_backend() == "cpu" else "vmap"


def layout(members: int, num_envs: int, devices: list[Any]) -> Mesh:
    """How a population lies on the devices: over members as far as they go, then over environments."""
    across_members = max(d for d in range(1, len(devices) + 1) if members % d == 0)
    left = len(devices) // across_members
    across_envs = max(d for d in range(1, left + 1) if num_envs % d == 0)
    # Environments are split only where members cannot fill the machine: it changes what a minibatch is made of.
    if members >= len(devices):
        across_envs = 1
    grid = np.asarray(devices[: across_members * across_envs]).reshape(across_members, across_envs)
    return Mesh(grid, ("members", "envs"))


def build_program(
    setup: Setup, hypers: Hypers, *, capacity: int, observer: Observer | None = None, devices: list[Any] | None = None
) -> Program:
    """Compile-once functions for the population whose numbers are `hypers` (leaves [M])."""
    mesh = layout(len(hypers.gamma), setup.config.environment.num_envs, devices or jax.devices())
    shards = mesh.shape["envs"]
    if shards > 1:
        _check_shards(setup, shards)
        setup = replace(setup, axis_name="envs", env_shards=shards)
    mode = population_mode(setup.config.run.population)
    members, replicated = PartitionSpec("members"), PartitionSpec()
    state_spec = LearnerState(members, PartitionSpec("members", "envs") if shards > 1 else members)  # type: ignore[arg-type]

    def init(hypers: Hypers, seeds: Array) -> LearnerState:
        return over_members(mode, partial(member_init, setup), hypers, seeds)

    def block(hypers: Hypers, state: LearnerState, rounds: Array) -> tuple[LearnerState, Metrics, PyTree]:
        return over_members(mode, partial(member_block, setup, observer, capacity, rounds), hypers, state)

    spread = partial(jax.shard_map, mesh=mesh, check_vma=False)
    jit_init = jax.jit(spread(init, in_specs=(members, members), out_specs=state_spec))
    jit_block = jax.jit(
        spread(block, in_specs=(members, state_spec, replicated), out_specs=(state_spec, members, members)),
        donate_argnums=1,
    )
    placed = jax.tree.map(lambda x: jax.device_put(x, NamedSharding(mesh, members)), hypers)
    return Program(
        init=lambda seeds: jit_init(placed, jax.device_put(seeds, NamedSharding(mesh, members))),
        block=lambda state, rounds: jit_block(placed, state, jnp.int32(rounds)),
        capacity=capacity,
        mesh=mesh,
    )


def _check_shards(setup: Setup, shards: int) -> None:
    size = setup.config.ppo.minibatch_size
    if size % shards:
        raise ValueError(
            f"minibatch_size: got {size}, takes a multiple of the {shards} devices the environments lie on"
        )
