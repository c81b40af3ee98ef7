"""Speed and compile time of two revisions, in turns: each in its own process, one works while the other waits.

    python benchmarks/two_revisions.py CHECKOUT [--env ENV] [--set NAME=VALUE ...] [--rounds 20] [--turns 60]

CHECKOUT is another working copy (`git worktree add`). Prints the compile time of both, the median rates and the median
ratio of this checkout to the other, with quartiles. The process that starts second compiles a few per cent slower;
`--other-first` changes the order.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

WORKER = """
import json, sys, time
import jax
try:
    from nextpolicy.config import presets
    from nextpolicy.run.job import make_job
except ImportError:  # before configurations were a package
    from nextpolicy import presets
    from nextpolicy.run.training import make_job

env, rounds, members = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
fields = dict(pair.split("=", 1) for pair in sys.argv[4:])
config = presets.build(env, seeds=members, devices=1, **fields)
job = make_job(config)
started = time.perf_counter()
program = job.program()
state = jax.block_until_ready(program.init(job.seeds))
print(json.dumps(time.perf_counter() - started), flush=True)
state, *_ = program.block(state, 2)
for _ in sys.stdin:
    jax.block_until_ready(state.agent.round)
    started = time.perf_counter()
    state, *_ = program.block(state, rounds)
    jax.block_until_ready(state.agent.round)
    print(json.dumps(rounds * config.batch_size * members / (time.perf_counter() - started)), flush=True)
"""


class Revision:
    """A process that trains with the code of one checkout."""

    def __init__(self, checkout: Path, options: argparse.Namespace) -> None:
        settings = {**os.environ, "PYTHONPATH": str(checkout / "src"), "NEXTPOLICY_KEEP_TRACED": "0"}
        command = [sys.executable, "-c", WORKER, options.env, str(options.rounds), str(options.members), *options.set]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=settings)
        self.compile_seconds = self._answer()

    def rate(self) -> float:
        """Steps per second of one turn."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def _answer(self) -> float:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            sys.exit("the process of one revision ended early; its error is above")
        return float(json.loads(line))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--env", default="gymnax/CartPole-v1")
    parser.add_argument("--set", nargs="*", default=[], action="extend", metavar="NAME=VALUE", help="fields of both")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--members", type=int, default=1)
    parser.add_argument("--other-first", action="store_true")
    options = parser.parse_args()
    if not (options.checkout / "src" / "nextpolicy").is_dir():
        parser.error(f"checkout: expected a working copy with src/nextpolicy, got {options.checkout}")
    if options.turns < 2:
        parser.error(f"turns: expected a whole number of at least 2, got {options.turns}")
    roots = [Path(__file__).parents[1], options.checkout.resolve()]
    started = [Revision(root, options) for root in (reversed(roots) if options.other_first else roots)]
    here, there = reversed(started) if options.other_first else started
    pairs = []
    for turn in range(options.turns):
        first, second = (here, there) if turn % 2 else (there, here)
        rates = {first: first.rate()} | {second: second.rate()}
        pairs.append((rates[here], rates[there]))
    ratios = [a / b for a, b in pairs]
    quartiles = ", ".join(f"{q:.3f}" for q in statistics.quantiles(ratios, n=4))
    print(f"compile: {here.compile_seconds:.2f} s here, {there.compile_seconds:.2f} s there")
    print(
        f"rate: {statistics.median(p[0] for p in pairs):,.0f} here, {statistics.median(p[1] for p in pairs):,.0f} there"
    )
    print(f"ratio here / there, quartiles of {options.turns} turns: {quartiles}")
    for revision in (here, there):
        revision.close()


if __name__ == "__main__":
    main()
