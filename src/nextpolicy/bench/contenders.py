"""Our own contenders. Each does rounds of the same work and says how long they took."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from nextpolicy import presets
from nextpolicy.run.training import make_job
from nextpolicy.train.rollout import random_actions, shape_action


@dataclass
class Contender:
    """Something that does rounds of environment steps; `run(rounds)` blocks until they are done."""

    name: str
    steps_per_round: int
    run: Callable[[int], Any]
    compile_seconds: float = 0.0
    notes: dict[str, Any] = field(default_factory=dict)


def timed(function: Callable[[], Any]) -> float:
    """Seconds until everything `function` returns is there."""
    started = time.perf_counter()
    jax.block_until_ready(function())
    return time.perf_counter() - started


def ours(env: str, algo: str, members: int, fields: dict[str, Any]) -> Contender:
    """Our trainer with `members` members: seeds of one algorithm, or of several separated by commas."""
    algos = algo.split(",")
    config = presets.build(env, algo=tuple(algos), seeds=members // len(algos), **fields)
    job = make_job(config)  # reads models and imports what the environment needs: not compilation
    started = time.perf_counter()
    program = job.program()
    holder = {"state": program.init(job.seeds)}

    def run(rounds: int) -> Any:
        while rounds > 0:
            now = min(rounds, program.capacity)
            holder["state"], metrics, _ = program.block(holder["state"], now)
            rounds -= now
        return jax.block_until_ready(metrics["accepted"])

    run(1)
    seconds = time.perf_counter() - started
    return Contender(f"nextpolicy {algo}", config.batch_size * members, run, seconds)


def simulator(env: str, members: int, fields: dict[str, Any]) -> Contender:
    """Random actions in as many environments as the population has, and nothing else."""
    config = presets.build(env, **fields)
    made = make_job(config.replace(normalise_obs=False)).setup.env
    assert made is not None
    num_envs, length = config.environment.num_envs * members, config.ppo.rollout_length

    @jax.jit
    def rounds_of(state: Any, key: jax.Array, rounds: int) -> Any:
        def body(i: jax.Array, carry: Any) -> Any:
            state, total = carry
            key_act, key_env = jax.random.split(jax.random.fold_in(key, i))
            state, step = made.step(
                key_env, state, shape_action(made.spec, random_actions(made.spec, key_act, (num_envs,)))
            )
            return state, total + step.reward

        return jax.lax.fori_loop(0, rounds * length, body, (state, jnp.zeros(num_envs)))

    started = time.perf_counter()
    state = jax.jit(lambda key: made.reset(key, num_envs)[0])(jax.random.key(0))
    run = lambda rounds: jax.block_until_ready(rounds_of(state, jax.random.key(1), rounds)[1])  # noqa: E731
    run(1)
    return Contender("simulator alone", num_envs * length, run, time.perf_counter() - started)
