"""Many rounds of many members in one compiled program, for environments that run on the device."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from nextpolicy.config import ConfigError
from nextpolicy.core.shards import Shards
from nextpolicy.envs.base import DeviceEnv
from nextpolicy.loop.collect import collect, init_workers
from nextpolicy.loop.keys import member_keys, round_keys
from nextpolicy.loop.replay import reads_replay, remember, with_replay_of
from nextpolicy.loop.round import one_round, warm_up_round
from nextpolicy.loop.state import Hypers, MemberState, Setup, init_agent
from nextpolicy.types import Array, Metrics, PyTree

Observer = Callable[[Setup, MemberState], PyTree]


class Keeper(Protocol):
    """Keeps traced programs between starts, see `run.traced`."""

    def recall(self, hypers: PyTree, seeds: Array) -> tuple[Any, Any] | None: ...

    def lower(self, init: Any, block: Any, arguments: tuple[Any, ...], seeds: Array) -> tuple[Any, Any]: ...


class Program(NamedTuple):
    """A population's two compiled functions.

    `init(seeds [M])` returns the state after warm-up, leaves [M, ...]. `block(state, rounds)` runs up to `capacity`
    rounds and returns (state, metrics [M, capacity], observed). It donates the state's buffers. `rounds` is traced, so
    a new block length needs no compilation, and the block length does not change the result.
    """

    init: Callable[[Array | np.ndarray], MemberState]
    block: Callable[[MemberState, int], tuple[MemberState, Metrics, PyTree]]
    capacity: int
    mesh: Mesh
    close: Callable[[], None] = lambda: None  # stops host environments


def member_init(setup: Setup, env: DeviceEnv, seed: Array) -> MemberState:
    """The initial state of one member, before warm-up."""
    keys = member_keys(seed, setup.shards)
    return MemberState(init_agent(setup, keys.key_agent), init_workers(setup, env, keys))


def member_round(
    setup: Setup, env: DeviceEnv, hypers: Hypers, state: MemberState, warming: Array | None = None
) -> tuple[MemberState, Metrics]:
    """One round of one member: collect and learn, or if `warming`, act at random and update only the statistics."""
    agent, workers = state
    keys = round_keys(agent.key, setup.shards)
    workers, rollout, episodes = collect(setup, env, hypers, agent, workers, keys, warming)
    # Jitted, so that `eval_shape` and the actual call trace the round only once.
    learn = jax.jit(lambda agent, rollout: one_round(setup, hypers, agent, rollout, episodes, keys))
    agent = remember(setup, agent, rollout)
    if warming is None:
        agent, metrics = learn(agent, rollout)
        return MemberState(agent, workers), metrics
    empty = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(learn, agent, rollout)[1])
    warm_up = lambda agent, rollout: (warm_up_round(setup, agent, rollout, keys), empty)  # noqa: E731
    after, metrics = jax.lax.cond(warming, reads_replay(warm_up), reads_replay(learn), agent, rollout)
    return MemberState(with_replay_of(agent, after), workers), metrics


def repeat_rounds(
    one_round: Callable[[MemberState], tuple[MemberState, PyTree]], capacity: int, rounds: Array, state: MemberState
) -> tuple[MemberState, PyTree]:
    """`rounds` rounds; row i of each output [capacity, ...] is the output of round i."""
    # Jitted, so that `eval_shape` and the loop trace the round only once. Tracing can take seconds.
    one_round = jax.jit(one_round)

    def body(i: Array, carry: tuple[MemberState, PyTree]) -> tuple[MemberState, PyTree]:
        state, rows = carry
        state, row = one_round(state)
        return state, jax.tree.map(lambda buffer, x: buffer.at[i].set(x), rows, row)

    shapes = jax.eval_shape(one_round, state)[1]
    empty = jax.tree.map(lambda s: jnp.zeros((capacity, *s.shape), s.dtype), shapes)
    return jax.lax.fori_loop(0, rounds, body, (state, empty))


def over_members(mode: str, function: Callable[..., Any], *arguments: PyTree) -> Any:
    """Apply `function` to every member of the leading axis: in parallel (`vmap`) or sequentially (`map`)."""
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

    With `vmap`, members are mapped inside the loop over rounds, since mapping a loop would trace its body again.
    """
    if mode == "map":
        member = lambda h, s: repeat_rounds(partial(one_round, h), capacity, rounds, s)  # noqa: E731
        return over_members(mode, member, hypers, state)
    state, rows = repeat_rounds(lambda s: over_members(mode, jax.jit(one_round), hypers, s), capacity, rounds, state)
    return state, jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), rows)


def population_mode(mode: str) -> str:
    """`vmap` or `map`. `auto` is `vmap` on accelerators and `map` on CPUs, where it is faster."""
    cpu = jax.default_backend() == "cpu"
    if mode == "vmap" and cpu:
        raise ConfigError(
            "population: expected 'auto' or 'map' on a CPU, got 'vmap', which can deadlock XLA's thread pool; "
            "use 'force-vmap' to take the risk"
        )
    return "vmap" if mode == "force-vmap" else mode if mode != "auto" else "map" if cpu else "vmap"


def layout(members: int, shares: int, devices: list[Any]) -> Mesh:
    """The device mesh of a population: split over members first, then over environments.

    The environments can be split into any number of parts that divides `shares`.
    """
    across_members = max(d for d in range(1, len(devices) + 1) if members % d == 0)
    left = len(devices) // across_members
    across_envs = max(d for d in range(1, left + 1) if shares % d == 0)
    # Split environments only if there are fewer members than devices, since it changes the composition of minibatches.
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
    keeper: Keeper | None = None,
) -> Program:
    """The program of a population with `hypers` (leaves [M]); each function is compiled once.

    On one device, `keeper` provides the programs that an earlier start has traced.
    """
    shares = setup.config.algorithm.environment_shards(setup.config.environment.num_envs)
    mesh = layout(len(hypers.period), shares, devices or jax.devices())
    _check_processes(mesh, len(hypers.period))
    shards = mesh.shape["envs"]
    setup = setup.sharded(Shards("envs", shards)) if shards > 1 else setup
    members, everywhere = PartitionSpec("members"), PartitionSpec()
    spec = MemberState(members, PartitionSpec("members", "envs") if shards > 1 else members)  # type: ignore[arg-type]
    # On one device, skip `shard_map`, so that functions that were already traced are not traced again.
    spread = partial(jax.shard_map, mesh=mesh, check_vma=False) if mesh.size > 1 else lambda function, **_: function
    init, block = _functions(setup, env, capacity, observer)
    jit_init = jax.jit(spread(init, in_specs=members, out_specs=spec))
    in_specs, out_specs = (members, spec, everywhere, everywhere), (spec, members, members)
    jit_block = jax.jit(spread(block, in_specs=in_specs, out_specs=out_specs), donate_argnums=1)
    placed = jax.tree.map(lambda x: jax.device_put(x, NamedSharding(mesh, members)), hypers)
    shapes = lambda seeds: _placed_shapes(mesh, spec, jax.eval_shape(jit_init, seeds))  # noqa: E731
    programs = _Programs(jit_init, jit_block, placed, shapes, keeper if mesh.size == 1 else None)
    warm_up = setup.config.warm_up_rounds

    def start(seeds: Array | np.ndarray) -> MemberState:
        state = programs.init(jax.device_put(seeds, NamedSharding(mesh, members)))
        # Warm-up rounds use the same compiled block, since an environment may take longer to compile than to run.
        for first in range(0, warm_up, capacity):
            state = programs.block(state, min(capacity, warm_up - first), warming=True)[0]
        return programs.as_state(state)

    def train(state: MemberState, rounds: int) -> Any:
        state, *outputs = programs.block(state, rounds)
        return programs.as_state(state), *outputs

    return Program(init=start, block=train, capacity=capacity, mesh=mesh)


class _Programs:
    """The two functions of a population, compiled at the first call. A state may be given as the list of its leaves."""

    def __init__(
        self, init: Any, block: Any, hypers: Hypers, shapes: Callable[[Array], MemberState], keeper: Keeper | None
    ) -> None:
        self.jit_init, self.jit_block, self.hypers, self.shapes, self.keeper = init, block, hypers, shapes, keeper
        self.compiled: tuple[Callable[..., Any], Callable[..., Any]] | None = None
        self.shapes_of_state: list[Callable[[], PyTree]] = []  # the first that fits is used

    def init(self, seeds: Array) -> Any:
        if self.compiled is None:
            self.compiled = self._compile(seeds)
        return self.compiled[0](seeds)

    def block(self, state: PyTree, rounds: int, warming: bool = False) -> Any:
        block = self.jit_block if self.compiled is None else self.compiled[1]
        return block(self.hypers, state, np.int32(rounds), np.bool_(warming))

    def as_state(self, state: MemberState | list[Array]) -> MemberState:
        """The state from its leaves."""
        if isinstance(state, MemberState):
            return state
        for shapes in self.shapes_of_state:
            leaves, structure = jax.tree.flatten(shapes())
            if [(x.shape, x.dtype) for x in leaves] == [(x.shape, x.dtype) for x in state]:
                restored: MemberState = jax.tree.unflatten(structure, state)
                return restored
        raise RuntimeError(
            "program cache: expected a program of this configuration, got one with a state of other shapes; "
            "set NEXTPOLICY_KEEP_TRACED=0"
        )

    def _in_a_thread(self, seeds: Array) -> Callable[[], PyTree]:
        """Start to trace the shapes of a state while the device works; the result is () if that fails.

        JAX's settings may differ in another thread.
        """

        def trace() -> PyTree:
            with contextlib.suppress(Exception):
                return self.shapes(seeds)
            return ()

        pool = ThreadPoolExecutor(1)
        result = pool.submit(trace).result
        pool.shutdown(wait=False)
        return result

    def _compile(self, seeds: Array) -> tuple[Callable[..., Any], Callable[..., Any]]:
        lowered = None if self.keeper is None else self.keeper.recall(self.hypers, seeds)
        self.shapes_of_state = [partial(self.shapes, seeds)]
        if lowered is not None:
            self.shapes_of_state.insert(0, self._in_a_thread(seeds))
        else:
            arguments = (self.hypers, self.shapes(seeds), np.int32(0), np.bool_(False))
            if self.keeper is None:
                lowered = self.jit_init.lower(seeds), self.jit_block.lower(*arguments)
            else:
                lowered = self.keeper.lower(self.jit_init, self.jit_block, arguments, seeds)
        with ThreadPoolExecutor(1) as pool:  # both contain the environment's reset, so compile in parallel
            block = pool.submit(lowered[1].compile)
            return lowered[0].compile(), block.result()


def _functions(
    setup: Setup, env: DeviceEnv, capacity: int, observer: Observer | None
) -> tuple[Callable[[Array], MemberState], Callable[..., Any]]:
    """The two functions of a population, before sharding and compilation."""

    def mode(members: int) -> str:
        # An axis of a single member makes XLA copy and transpose weights in every gradient step.
        return "map" if members == 1 else population_mode(setup.config.run.population)

    def init(seeds: Array) -> MemberState:
        return over_members(mode(len(seeds)), partial(member_init, setup, env), seeds)

    def block(hypers: Hypers, state: MemberState, rounds: Array, warming: Array) -> Any:
        flag = warming if setup.config.warm_up_rounds else None

        def one(hypers: Hypers, state: MemberState) -> tuple[MemberState, tuple[Metrics, PyTree]]:
            state, metrics = member_round(setup, env, hypers, state, flag)
            return state, (metrics, None if observer is None else observer(setup, state))

        how = mode(len(hypers.period))
        state, (metrics, observed) = population_block(how, one, capacity, rounds, hypers, state)
        return state, metrics, observed

    return init, block


def _check_processes(mesh: Mesh, members: int) -> None:
    """Raise unless the mesh includes devices of every process."""
    if {d.process_index for d in jax.devices()} - {d.process_index for d in mesh.devices.flat}:
        raise ValueError(f"num_processes: expected a divisor of {members} members, got {jax.process_count()}")


def _placed_shapes(mesh: Mesh, spec: MemberState, shapes: MemberState) -> MemberState:
    """Shapes, dtypes and shardings of a state."""

    def place(part: Any, shapes: PyTree) -> PyTree:
        sharding = NamedSharding(mesh, part)
        return jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=sharding), shapes)

    return MemberState(place(spec.agent, shapes.agent), place(spec.workers, shapes.workers))
