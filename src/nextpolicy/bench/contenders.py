"""The contenders of nextpolicy: its algorithms and the simulator alone. All run rounds of the same work."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nextpolicy.config import ConfigError, presets
from nextpolicy.envs.base import is_host_env
from nextpolicy.loop.actions import random_actions, shape_action
from nextpolicy.run.job import make_job


class Timing(NamedTuple):
    """Wall-clock time and CPU time (user and system, all threads)."""

    seconds: float
    cpu_seconds: float


class Reached(NamedTuple):
    """When half of the members reached a return, measured as the mean over the episodes that ended in a round."""

    seconds: float | None  # None: not within the training budget
    env_steps: int  # steps of one member until then
    there: int  # number of members that reached it before the measurement ended


Memory = tuple[int, str] | None  # (peak bytes, "contender" or "process"); None: use the peak of this process


@dataclass
class Contender:
    """A program under measurement. `run(rounds)` blocks until the rounds are done."""

    name: str
    steps_per_round: int
    run: Callable[[int], Any]
    compile_seconds: float = 0.0
    overhead: Callable[[], Any] | None = None  # fixed work of a run besides its rounds, to be subtracted
    one_length: bool = False  # each number of rounds needs its own compilation
    clock: Callable[[int], Timing] | None = None  # replaces `run` if the contender measures its own time
    memory: Callable[[], Memory] = lambda: None
    until: Callable[[float], Reached] | None = None
    close: Callable[[], None] = lambda: None


def timed(function: Callable[[], Any]) -> Timing:
    """The time until all outputs of `function` are computed."""
    cpu, clock = _cpu_seconds(), time.perf_counter()
    jax.block_until_ready(function())
    return Timing(time.perf_counter() - clock, _cpu_seconds() - cpu)


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def ours(env: str, algo: str, members: int, fields: dict[str, Any]) -> Contender:
    """nextpolicy with `members` members: seeds of one algorithm, or of several, separated by commas in `algo`."""
    algos = algo.split(",")
    config = presets.build(env, algo=tuple(algos), seeds=members // len(algos), **fields)
    if len(config.members()) != members:
        raise ConfigError(f"members: expected a multiple of {len(algos)}, the number of algorithms, got {members}")
    started = time.perf_counter()
    job = make_job(config)
    program = job.program()
    start = program.init(job.seeds)
    state_bytes = sum(x.nbytes for x in jax.tree.leaves(start))
    fresh = lambda: jax.tree.map(jnp.copy, start)  # noqa: E731
    now: dict[str, Any] = {"state": fresh(), "done": 0}

    def run(rounds: int) -> Any:
        metrics: Any = None
        while rounds > 0:
            if now["done"] >= config.num_rounds:  # beyond the end, the learning rate would become negative
                now.update(state=fresh(), done=0)
            length = min(rounds, program.capacity, config.num_rounds - now["done"])
            now["state"], metrics, _ = program.block(now["state"], length)
            now["done"] += length
            rounds -= length
        return jax.block_until_ready(metrics["accepted"])

    run(1)
    return Contender(
        f"nextpolicy {algo}",
        config.batch_size * members,
        run,
        time.perf_counter() - started,
        memory=lambda: _memory_of("jit_block", state_bytes),
        until=lambda target: _until(program, fresh(), config, target),
        close=program.close,
    )


def _until(program: Any, state: Any, config: Any, target: float) -> Reached:
    """Train in blocks of 1/50 of the budget. All rounds of a block count as equally long."""
    block = max(1, min(program.capacity, config.num_rounds // 50))
    seconds: list[float] = []
    returns = np.zeros((len(config.members()), 0))
    while len(seconds) < config.num_rounds:
        rounds = min(block, config.num_rounds - len(seconds))
        clock = time.perf_counter()
        state, metrics, _ = program.block(state, rounds)
        new = np.asarray(metrics["episode_return"])[:, :rounds]
        seconds += [(time.perf_counter() - clock) / rounds] * rounds
        returns = np.concatenate([returns, new], axis=1)
        if reached(returns, np.cumsum(seconds), config.batch_size, target).seconds is not None:
            break
    return reached(returns, np.cumsum(seconds), config.batch_size, target)


def reached(returns: np.ndarray, seconds: np.ndarray, steps_per_round: int, target: float) -> Reached:
    """`Reached` from mean returns [M, R] per round, NaN if no episode ended, and the times [R] at the end of rounds."""
    above = np.nan_to_num(returns, nan=-np.inf) >= target
    first = np.where(above.any(axis=1), above.argmax(axis=1), returns.shape[1])
    middle = int(np.sort(first)[(len(first) - 1) // 2])
    there = int((first < returns.shape[1]).sum())
    if middle == returns.shape[1]:
        return Reached(None, returns.shape[1] * steps_per_round, there)
    return Reached(float(seconds[middle]), (middle + 1) * steps_per_round, there)


def simulator(env: str, members: int, fields: dict[str, Any]) -> Contender:
    """Random actions in as many environments as the population has, without learning."""
    config = presets.build(env, **fields)
    made = make_job(config.replace(normalise_obs=False)).env
    if is_host_env(made):
        raise ValueError(f"simulator: expected an environment that runs inside XLA, got {env}")
    num_envs, length = config.environment.num_envs * members, config.environment.rollout_length

    def rounds_of(state: Any, key: jax.Array, rounds: jax.Array) -> jax.Array:
        def body(i: jax.Array, carry: Any) -> Any:
            state, total = carry
            key_act, key_env = jax.random.split(jax.random.fold_in(key, i))
            state, step = made.step(
                key_env, state, shape_action(made.spec, random_actions(made.spec, key_act, (num_envs,)))
            )
            return state, total + step.reward

        total: jax.Array = jax.lax.fori_loop(0, rounds * length, body, (state, jnp.zeros(num_envs)))[1]
        return total

    started = time.perf_counter()
    state = jax.jit(lambda key: made.reset(key, num_envs)[0])(jax.random.key(0))
    program = jax.jit(rounds_of).lower(state, jax.random.key(1), np.int32(1)).compile()
    run = lambda rounds: jax.block_until_ready(program(state, jax.random.key(1), np.int32(rounds)))  # noqa: E731
    run(1)
    seconds = time.perf_counter() - started
    return Contender(
        "simulator alone", num_envs * length, run, seconds, memory=lambda: program_memory(program.memory_analysis())
    )


def program_memory(stats: Any) -> Memory:
    """Peak bytes of a compiled program on each device: arguments, outputs and temporary buffers."""
    if stats is None:
        return None
    held = stats.argument_size_in_bytes + stats.output_size_in_bytes + stats.temp_size_in_bytes
    return int(held - stats.alias_size_in_bytes), "contender"


def _memory_of(name: str, donated: int) -> Memory:
    """The memory of the loaded program with this name and this many donated bytes."""
    for program in jax.local_devices()[0].client.live_executables():
        stats = program.get_compiled_memory_stats()
        if program.hlo_modules()[0].name == name and stats.alias_size_in_bytes == donated:
            return program_memory(stats)
    return None
