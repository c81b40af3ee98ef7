"""What a run would be, without training it: members, rounds, memory and time, from two compiled rounds."""

from __future__ import annotations

import math
import time

import jax

from nextpolicy.config import TrainConfig
from nextpolicy.run.job import Job, make_job
from nextpolicy.run.processes import peak_memory
from nextpolicy.run.progress import duration


def describe(config: TrainConfig) -> list[str]:
    """Lines about the run of a configuration, which is compiled and runs two rounds, of which the second is timed."""
    job = make_job(config.replace(warmup_steps=0))
    job.check_population()
    compiling, per_round = _measured(job)
    members, rounds, warm_up = len(config.members()), config.num_rounds, config.warm_up_rounds
    shape = f"{config.environment.num_envs} environments x {config.environment.rollout_length} steps"
    speed = config.batch_size * members / per_round
    algos = f"{len(config.run.algo)} algorithm{'s' * (len(config.run.algo) > 1)}"
    swept = math.prod(len(values) for values in config.run.sweep.values())
    seeds = len(config.run.seeds)
    memory = f"{peak_memory() / 1e9:.2f} GB" + " on the device" * (jax.default_backend() != "cpu")
    return [
        f"members: {members} ({algos} x {swept} swept x {seeds} seeds) on {config.environment.env}",
        f"rounds: {rounds} of {shape} = {rounds * config.batch_size:,} steps of each member"
        + f", after {warm_up} rounds of warm-up" * bool(warm_up),
        f"memory: {memory}; a checkpoint takes about {_size(job) / 1e6:.1f} MB",
        f"time: {duration(compiling)} to compile, then {duration((rounds + warm_up) * per_round)} "
        f"at {speed:,.0f} steps/s, without evaluation and saving",
    ]


def _measured(job: Job) -> tuple[float, float]:
    """Seconds until the first round has ended, less one round, and seconds of a round."""
    started = time.perf_counter()
    program = job.program()
    try:
        state = jax.block_until_ready(program.init(job.seeds))
        state, metrics, _ = program.block(state, 1)
        jax.block_until_ready((state, metrics))
        first = time.perf_counter()
        jax.block_until_ready(program.block(state, 1))
        per_round = time.perf_counter() - first
    finally:
        program.close()
    return max(first - started - per_round, 0.0), per_round


def _size(job: Job) -> int:
    """Bytes of a state."""
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(job.template()))
