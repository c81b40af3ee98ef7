"""How long a start takes, from a configuration to the first rounds done; run it twice to see what the caches save.

    python benchmarks/start.py gymnax/CartPole-v1:1 --cache FOLDER                           the first time: compiles
    python benchmarks/start.py gymnax/CartPole-v1:1 --cache FOLDER                           the second
    NEXTPOLICY_KEEP_TRACED=0 python benchmarks/start.py gymnax/CartPole-v1:1 --cache FOLDER  with JAX's own cache alone

A work is ENV:MEMBERS and then config fields. Imports of Python's start are not counted.
"""

from __future__ import annotations

import argparse
import time

import jax

from nextpolicy import presets
from nextpolicy.run.training import make_job


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", help="ENV:MEMBERS[:FIELD=VALUE...]")
    parser.add_argument("--cache", required=True, help="folder of compiled and traced programs")
    options = parser.parse_args()
    jax.config.update("jax_compilation_cache_dir", options.cache)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
    env, members, *pairs = options.work.split(":")
    clock = [time.perf_counter()]
    job = make_job(presets.build(env, algo="ppo", seeds=int(members), **dict(pair.split("=", 1) for pair in pairs)))
    clock.append(time.perf_counter())
    program = job.program()
    state = jax.block_until_ready(program.init(job.seeds))
    clock.append(time.perf_counter())
    jax.block_until_ready(program.block(state, 2))
    clock.append(time.perf_counter())
    parts = zip(("environment and networks", "programs and warm-up", "two rounds"), clock, clock[1:], strict=False)
    for name, before, after in parts:
        print(f"{name:<26}{after - before:7.2f} s")
    print(f"{'all':<26}{clock[-1] - clock[0]:7.2f} s")


if __name__ == "__main__":
    main()
