"""What the evidence of all criteria costs: time of a round with every signal over that with the paper's alone.

    python benchmarks/evidence_cost.py gymnax/Breakout-MinAtar brax/hopper [--turns 30] [--criterion oracle]

`any-signal` measures all signals, `stable-values` only its own; XLA removes what no criterion reads. Both programs run
in turns in one process, so that what slows the machine slows both. Prints the median and the quartiles of the ratio.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any, NamedTuple

import jax

from nextpolicy.config import presets
from nextpolicy.loop.population import build_program
from nextpolicy.run.job import make_job


class Runner:
    """A population of dynamic SV-PPO and its state."""

    def __init__(self, env: str, criterion: str, seeds: int, rounds: int) -> None:
        job = make_job(presets.build(env, algo="sv-dynamic", criterion=criterion, seeds=seeds))
        self.program = build_program(job.setup, job.env, job.hypers, capacity=rounds, devices=jax.devices()[:1])
        self.state: Any = self.program.init(job.seeds)
        self.rounds = rounds
        self.seconds()  # compiles

    def seconds(self) -> float:
        """Time of a block."""
        begin = time.perf_counter()
        self.state, metrics, _ = self.program.block(self.state, self.rounds)
        jax.block_until_ready(metrics)
        return time.perf_counter() - begin


class Cost(NamedTuple):
    env: str
    criterion: str
    quartiles: list[float]  # of the ratio

    def __str__(self) -> str:
        low, median, high = (100 * (ratio - 1) for ratio in self.quartiles)
        return f"{self.env}: {self.criterion} costs {median:.1f} % of a round (quartiles {low:.1f} and {high:.1f})"


def measure(env: str, criterion: str, seeds: int, rounds: int, turns: int) -> Cost:
    one, every = (Runner(env, name, seeds, rounds) for name in ("stable-values", criterion))
    ratios = []
    for turn in range(turns):  # the order changes, so that neither always runs after the other
        pair = (one.seconds(), every.seconds()) if turn % 2 else (every.seconds(), one.seconds())[::-1]
        ratios.append(pair[1] / pair[0])
    return Cost(env, criterion, statistics.quantiles(ratios, n=4))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("envs", nargs="+")
    parser.add_argument("--criterion", default="any-signal", help="any-signal, with all signals, or one of the others")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--turns", type=int, default=30)
    options = parser.parse_args()
    for env in options.envs:
        print(measure(env, options.criterion, options.seeds, options.rounds, options.turns), flush=True)


if __name__ == "__main__":
    main()
