"""Run one block of rounds, fetch its metrics to the host and check that all values are finite."""

from __future__ import annotations

import time
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from nextpolicy.loop.population import Program
from nextpolicy.loop.state import MemberState
from nextpolicy.run import interrupt, metrics
from nextpolicy.run.job import Job
from nextpolicy.run.processes import fetch
from nextpolicy.types import Array, PyTree


class TrainingError(RuntimeError):
    """Training failed. The message is one line."""


class Block(NamedTuple):
    """The results of a block of rounds, on the host. `metrics` and `observed` are [M, rounds, ...]."""

    first: int
    rounds: int
    metrics: dict[str, np.ndarray]
    observed: PyTree
    seconds: float

    def frame(self, job: Job) -> pd.DataFrame:
        """One row per member and round."""
        scalars = {name: values for name, values in self.metrics.items() if name != "finite"}
        config, rate = job.config, self.steps_per_second(job)
        return metrics.table(config.members(), self.first, config.batch_size, scalars, rate)

    def steps_per_second(self, job: Job) -> float:
        """Environment steps per second, summed over members."""
        return self.rounds * job.config.batch_size * len(job.config.members()) / self.seconds


def run_block(program: Program, state: MemberState, first: int, rounds: int) -> tuple[MemberState, Block]:
    """Run `rounds` rounds, starting at round `first`, in as many calls as the capacity of the program needs."""
    started, calls = time.perf_counter(), []
    for done in range(0, rounds, program.capacity):
        interrupt.check()
        some = min(program.capacity, rounds - done)
        state, *outputs = program.block(state, some)
        calls.append(jax.tree.map(partial(_first_rounds, some), fetch(tuple(outputs))))
    values, observed = jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *calls)
    return state, Block(first, rounds, values, observed, time.perf_counter() - started)


def _first_rounds(rounds: int, output: np.ndarray) -> np.ndarray:
    return output[:, :rounds]


def finite_members(state: MemberState) -> np.ndarray:
    """Whether the parameters, optimiser state, statistics and target of each member are finite, [M]."""
    return np.asarray(fetch(_all_finite((state.agent.learner, state.agent.target))))


@jax.jit
def _all_finite(tree: PyTree) -> Array:
    floats = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(x.reshape(x.shape[0], -1)), axis=1) for x in floats]), axis=0)


def check_finite(job: Job, state: MemberState, block: Block, saved: int) -> None:
    """Raise if the block or the state is not finite. `saved` is the round of the last checkpoint."""
    bad = np.argwhere(~block.metrics["finite"]).tolist()
    if bad:
        member, offset = min(bad, key=lambda b: b[1])
        what, when = "rewards or parameters", f"in round {block.first + offset}"
    elif not np.all(finite := finite_members(state)):
        member = int(np.argmin(finite))
        what, when = "observations, statistics or the target policy", f"after round {block.first + block.rounds - 1}"
    else:
        return
    who = job.config.members()[member]
    stands = f"the checkpoint of round {saved} is the last finite one" if saved else "there is no checkpoint yet"
    raise TrainingError(
        f"{what} were not finite {when} of member {member} ({who.variant}, seed {who.seed}); training stopped, {stands}"
    )
