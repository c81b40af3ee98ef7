"""Start-up time, from a configuration to the end of the first rounds. Run it twice to measure the effect of the caches.

    python benchmarks/start.py brax/hopper:12 --cache FOLDER         first run: compiles
    python benchmarks/start.py brax/hopper:12 --cache FOLDER         second run: uses the cache
    python benchmarks/start.py brax/hopper:12 --purejaxrl CHECKOUT   PureJaxRL on the same work

Two runs with NEXTPOLICY_KEEP_TRACED=0 and another folder measure the effect of JAX's compilation cache alone.

A work is ENV:MEMBERS followed by config fields. Without --cache, nothing is cached. The time of imports and device
initialisation is shown separately, since it is the same for all contenders. The times of tracing, lowering and
compiling are reported by JAX and summed over threads.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp

EVENTS = {
    "/jax/core/compile/jaxpr_trace_duration": "tracing",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lowering",
    "/jax/core/compile/backend_compile_duration": "compiling or loading",
    "/jax/compilation_cache/cache_retrieval_time_sec": "loading",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", help="ENV:MEMBERS[:FIELD=VALUE...]")
    parser.add_argument("--cache", help="folder of compiled and traced programs")
    parser.add_argument("--purejaxrl", help="checkout of PureJaxRL, to measure instead of nextpolicy")
    options = parser.parse_args()
    env, _, rest = options.work.partition(":")
    members, *pairs = rest.split(":")
    if not members.isdigit() or not all("=" in pair for pair in pairs):
        parser.error(f"work: expected ENV:MEMBERS[:FIELD=VALUE...], got {options.work}")
    fields: dict[str, Any] = dict(pair.split("=", 1) for pair in pairs)
    clock = Clock()
    if options.cache:
        jax.config.update("jax_compilation_cache_dir", options.cache)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    spent: Counter[str] = Counter()
    jax.monitoring.register_event_duration_secs_listener(lambda name, seconds, **_: spent.update({name: seconds}))
    prepare(env, options.purejaxrl is not None)
    clock.lap("imports and device", counted=False)
    if options.purejaxrl:
        from nextpolicy.bench import peers

        peers.purejaxrl(options.purejaxrl, env, int(members), fields, probe=False).run(2)
        clock.lap("program and two rounds")
    else:
        ours(clock, env, int(members), fields)
    clock.tell()
    parts = (f"{name} {spent[event]:.2f}" for event, name in EVENTS.items())
    print(f"seconds of {', '.join(parts)}")


def ours(clock: Clock, env: str, members: int, fields: dict[str, Any]) -> None:
    from nextpolicy.config import presets
    from nextpolicy.run.job import make_job

    job = make_job(presets.build(env, algo="ppo", seeds=members, **fields))
    clock.lap("environment and networks")
    program = job.program()
    state = jax.block_until_ready(program.init(job.seeds))
    clock.lap("programs and warm-up")
    jax.block_until_ready(program.block(state, 2))
    clock.lap("two rounds")


def prepare(env: str, peer: bool) -> None:
    """Import the contender's dependencies and initialise the device."""
    from nextpolicy.envs.brax import import_brax
    from nextpolicy.envs.gymnax import import_gymnax

    if env.startswith("brax/") or peer:  # PureJaxRL's scripts always import it
        import_brax()
    if env.startswith(("gymnax/", "brax/")):
        import_gymnax()
    jax.block_until_ready(jnp.zeros(1) + 1)


class Clock:
    """Lap times of the wall clock."""

    def __init__(self) -> None:
        self.before, self.laps, self.total = time.perf_counter(), list[tuple[str, float]](), 0.0

    def lap(self, name: str, counted: bool = True) -> None:
        now = time.perf_counter()
        self.laps.append((name, now - self.before))
        self.total += (now - self.before) * counted
        self.before = now

    def tell(self) -> None:
        (first, seconds), *rest = self.laps
        print(f"{f'({first}, not counted)':<40}{seconds:7.2f} s")
        for name, seconds in [*rest, ("all", self.total)]:
            print(f"{name:<40}{seconds:7.2f} s")


if __name__ == "__main__":
    main()
