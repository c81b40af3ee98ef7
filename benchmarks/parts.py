"""Times the parts of a round separately (collection, evaluation of the target, gradient steps, all of learning), and a
whole round of the training program.

    python benchmarks/parts.py brax/hopper:36 brax/hopper:36:compute_dtype=bfloat16
    python benchmarks/parts.py gymnax/Breakout-MinAtar:16:torso=mlp:hidden=64,64 --kernels 15

A work is ENV[:MEMBERS[:NAME=VALUE...]], as in `nextpolicy bench`. `--kernels K` lists the K slowest kernels of each
part and their number of launches, from a profile of one call.
"""

from __future__ import annotations

import argparse
import glob
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from nextpolicy.algos.ppo import PPO
from nextpolicy.bench.work import parse_works
from nextpolicy.config import presets
from nextpolicy.envs.base import is_host_env
from nextpolicy.loop.collect import collect
from nextpolicy.loop.keys import round_keys
from nextpolicy.loop.population import member_init, over_members, population_mode
from nextpolicy.loop.round import one_round
from nextpolicy.run.job import Job, make_job

NEEDS = {
    "collect": (),
    "evaluate": ("collect",),
    "improve": ("collect", "evaluate"),
    "learn": ("collect",),
    "round": (),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", nargs="+", help="ENV[:MEMBERS[:NAME=VALUE...]]")
    parser.add_argument("--only", nargs="+", choices=NEEDS, default=list(NEEDS))
    parser.add_argument("--kernels", type=int, default=0, metavar="K")
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    if options.repeats < 1:
        parser.error(f"repeats: expected a whole number of at least 1, got {options.repeats}")
    try:
        works = parse_works(options.work, "1", "", [])
        jobs = [make_job(presets.build(w.env, algo="sv-dynamic", seeds=w.members, **w.fields)) for w in works]
    except ValueError as error:
        parser.error(str(error))
    for work, job in zip(works, jobs, strict=True):
        if is_host_env(job.env):
            parser.error(f"work: expected an environment that runs inside XLA, got {work.env}; see benchmarks/atari.py")
    for work, job in zip(works, jobs, strict=True):
        device = f"{jax.devices()[0].device_kind}, JAX {jax.__version__}"
        print(f"{work.title}, {work.members} members  ({device})", flush=True)
        if set(options.only) - {"round"}:
            time_parts(job, options)
        if "round" in options.only:
            time_round(job, options)
        jax.clear_caches()


def time_parts(job: Job, options: argparse.Namespace) -> None:
    """Compile, time and print each part. Later parts use the outputs of earlier parts."""
    setup, hypers, env = job.setup, jax.tree.map(jnp.asarray, job.hypers), job.env
    assert not is_host_env(env)
    algorithm = setup.algorithm
    assert isinstance(algorithm, PPO)
    state = jax.jit(jax.vmap(lambda seed: member_init(setup, env, seed)))(jnp.asarray(job.seeds))
    keys = lambda s: round_keys(s.agent.key, setup.shards)  # noqa: E731
    mode = population_mode(job.config.run.population)
    needed = {part for name in options.only for part in (name, *NEEDS[name])}

    def part(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        if name not in needed:
            return None
        compiled = jax.jit(partial(over_members, mode, function)).lower(*arguments).compile()
        result = jax.block_until_ready(compiled(*arguments))
        if name in options.only:
            tell(name, lambda: compiled(*arguments), options)
        return result

    _, rollout, episodes = part(
        "collect", lambda h, s: collect(setup, env, h, s.agent, s.workers, keys(s)), hypers, state
    )

    def evaluate(h: Any, s: Any, r: Any) -> Any:
        log_prob = setup.networks.policy(s.agent.target)(r.obs).log_prob(r.action)
        return algorithm.evaluate_target(h.algorithm, s.agent.learner, r, log_prob)

    def improve(h: Any, s: Any, r: Any, t: Any) -> Any:
        return algorithm.improve(h.algorithm, s.agent.learner, r, t, h.algorithm.learning_rate, s.agent.key)

    targets = part("evaluate", evaluate, hypers, state, rollout)
    part("improve", improve, hypers, state, rollout, targets)
    learn = lambda h, s, r, e: one_round(setup, h, s.agent, r, e, keys(s))  # noqa: E731
    part("learn", learn, hypers, state, rollout, episodes)


def time_round(job: Job, options: argparse.Namespace) -> None:
    """Time and print a whole round of the training program."""
    program = job.program()
    state = [program.init(jnp.asarray(job.seeds))]

    def block() -> Any:
        state[0], metrics, _ = program.block(state[0], 1)
        return metrics

    jax.block_until_ready(block())
    tell("round", block, options)
    program.close()


def tell(name: str, call: Callable[[], Any], options: argparse.Namespace) -> None:
    """Print the time of a call, and its kernels if `--kernels` is given."""
    print(f"  {name:<10}{1e3 * seconds(call, options.repeats):9.2f} ms", flush=True)
    if options.kernels:
        print(kernels(call, options.kernels), flush=True)


def seconds(call: Callable[[], Any], repeats: int) -> float:
    """The mean time of a call; median of three measurements."""
    times = []
    for _ in range(3):
        started = time.perf_counter()
        for _ in range(repeats):
            result = call()
        jax.block_until_ready(result)
        times.append((time.perf_counter() - started) / repeats)
    return statistics.median(times)


def kernels(call: Callable[[], Any], count: int) -> str:
    """The slowest kernels of one call, from the profiler."""
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(call())
        files = glob.glob(f"{folder}/**/*.xplane.pb", recursive=True)
        data = jax.profiler.ProfileData.from_file(files[0])
    total: dict[str, float] = defaultdict(float)
    times: dict[str, int] = defaultdict(int)
    for plane in data.planes:
        for line in plane.lines if "GPU" in plane.name else ():
            for event in line.events if "Stream" in line.name else ():
                total[event.name] += event.duration_ns
                times[event.name] += 1
    rows = sorted(total, key=lambda name: -total[name])
    whole = f"    {sum(total.values()) / 1e6:9.3f} ms in {sum(times.values())} kernels of {len(rows)} kinds"
    return "\n".join([whole, *(f"    {total[n] / 1e6:9.3f} ms {times[n]:6d}x  {n[:90]}" for n in rows[:count])])


if __name__ == "__main__":
    main()
