"""Callbacks: your own code after each block of rounds, which may stop the training."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import pandas as pd

from nextpolicy.config import ConfigError, shown, whole
from nextpolicy.loop.evaluate import evaluator
from nextpolicy.run import arrays, evaluations, metrics
from nextpolicy.run.folder import RunError, RunFolder
from nextpolicy.run.job import Job
from nextpolicy.run.run import Run
from nextpolicy.runfiles import BEST, EVALUATIONS


@dataclass(frozen=True)
class BlockEnd:
    """What a callback receives after the metrics and the checkpoint of a block have been saved."""

    run: Run  # with the policies of this moment: run.policy(), run.evaluate()
    metrics: pd.DataFrame  # of this block: one row per member and round
    rounds_done: int
    rounds: int  # in total

    @property
    def env_steps(self) -> int:
        """Environment steps of each member so far."""
        return self.rounds_done * self.run.config.batch_size

    def returns(self) -> pd.Series:
        """Mean return of each member's episodes that ended in this block; NaN if none did."""
        ended = self.metrics[self.metrics["episodes"] > 0]
        total = (ended["episode_return"] * ended["episodes"]).groupby(ended["member"]).sum()
        episodes = self.metrics.groupby("member")["episodes"].sum()
        return (total.reindex(episodes.index) / episodes).rename("return")


# Its method `rounds_until(done, batch_size)`, if it has one, says after how many rounds it wants to be called again.
Callback = Callable[[BlockEnd], bool | None]
LONGEST = 10**8  # rounds; longer than any run
STOP_ROUNDS = 10  # rounds over which `stop_at_return` averages


class StopAtReturn:
    """See `stop_at_return`."""

    def __init__(self, threshold: float) -> None:
        number = isinstance(threshold, int | float) and not isinstance(threshold, bool)
        if not number or not abs(threshold) <= sys.float_info.max:  # as a float, a large integer would overflow
            raise ConfigError(f"stop_at_return: expected a finite number, got {shown(threshold)}")
        self.threshold = threshold

    def __call__(self, block: BlockEnd) -> bool:
        return bool((block.returns() >= self.threshold).all())

    def rounds_until(self, done: int, batch_size: int) -> int:
        return STOP_ROUNDS - done % STOP_ROUNDS


def stop_at_return(threshold: float) -> Callback:
    """A callback that stops the training once the mean return of every member in a block is at least `threshold`.

    Blocks have at most 10 rounds then.
    """
    return StopAtReturn(threshold)


class EvaluateEvery:
    """A callback that evaluates every member's policy over whole episodes, and keeps the best policy of each.

    Evaluates with sampled actions after the first round that completes another `env_steps` steps, and at the end of
    training. Blocks end there. Writes `evaluations.csv` to the run folder; `run.policy("best")` is the policy with the
    highest mean return.

    env_steps  steps of each member between evaluations, over all its environments
    episodes   episodes of each evaluation
    policy     "target" or "behaviour"
    """

    def __init__(self, env_steps: float, episodes: int = 32, policy: str = "target") -> None:
        self.every, self.episodes = whole("evaluate_every", env_steps, 1, 10**15), whole("episodes", episodes, 1, 10**6)
        if policy not in ("target", "behaviour"):
            raise ConfigError(f"policy: expected 'target' or 'behaviour', got {policy!r}")
        self.policy = policy
        self._evaluate: Any = None

    def rounds_until(self, done: int, batch_size: int) -> int:
        """The number of rounds after which it evaluates next, if `done` rounds have been trained."""
        following = (done * batch_size // self.every + 1) * self.every
        return -(-following // batch_size) - done

    def __call__(self, block: BlockEnd) -> None:
        before = (block.rounds_done - block.metrics["round"].nunique()) * block.run.config.batch_size
        if block.env_steps // self.every != before // self.every or block.rounds_done == block.rounds:
            self._evaluate_all(block)

    def catch_up(self, block: BlockEnd) -> None:
        """Evaluate a run that was cut off after a block was saved and before it was evaluated."""
        file = block.run.path / EVALUATIONS
        if not file.is_file() or block.env_steps not in set(evaluations.read(file)["env_steps"]):
            self(block)

    def _evaluate_all(self, block: BlockEnd) -> None:
        rows = [self._row(block, member) for member in range(len(block.run.members))]
        file = block.run.path / EVALUATIONS
        earlier = evaluations.read(file) if file.is_file() else pd.DataFrame(columns=list(rows[0]))
        earlier = earlier[earlier["env_steps"] < block.env_steps]  # a run that was cut off repeats the rest
        best = earlier.dropna(subset="mean").groupby("member")["mean"].max()
        (block.run.path / BEST).mkdir(exist_ok=True)
        for row in rows:
            if row["mean"] > best.get(row["member"], -math.inf):
                path, member = block.run.path / BEST / f"member-{row['member']:05d}.npz", row["member"]
                snapshot = block.run.snapshot(self.policy, member)
                arrays.save(path, snapshot, member=member, env_steps=block.env_steps)
        table = pd.concat([earlier, pd.DataFrame(rows)]) if len(earlier) else pd.DataFrame(rows)
        evaluations.write(file, table)

    def _row(self, block: BlockEnd, member: int) -> dict[str, Any]:
        job = block.run._job
        if self._evaluate is None:  # compiled once
            self._evaluate = evaluator(job.env, job.setup.networks, num_envs=self.episodes)
        key = jax.random.fold_in(jax.random.key(0), member)
        result = jax.device_get(self._evaluate(block.run.snapshot(self.policy, member), key))
        who = block.run.members[member]
        mean, std = float(result.returns.mean()), float(result.returns.std())
        found = {"env_steps": block.env_steps, "member": member, "variant": who.variant, "seed": who.seed}
        return {**found, "episodes": self.episodes, "mean": mean, "std": std}


class _All:
    """Several callbacks as one, which stops if one of them wants to."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self.callbacks = callbacks

    def __call__(self, block: BlockEnd) -> bool:
        wishes = [_answer(callback(block)) for callback in self.callbacks]  # also after one that wants to stop
        return any(wishes)

    def catch_up(self, block: BlockEnd) -> None:
        for callback in self.callbacks:
            catch_up(callback, block)

    def rounds_until(self, done: int, batch_size: int) -> int:
        return min(rounds_until(callback, done, batch_size) for callback in self.callbacks)


def _answer(wants: object) -> bool:
    if not isinstance(wants, bool | np.bool_ | None):
        raise ConfigError(f"callback: expected True to stop, or nothing, got {shown(wants)}")
    return bool(wants)


def all_of(*chosen: Callback | None) -> Callback | None:
    """One callback that calls all of these, and stops if one of them wants to; None if there are none."""
    given = [callback for callback in chosen if callback is not None]
    return _All(given) if given else None


def rounds_until(callback: Callback | None, done: int, batch_size: int) -> int:
    """After how many rounds the callback wants to be called at the latest, at least 1."""
    wish = getattr(callback, "rounds_until", None)
    wanted = LONGEST if wish is None else wish(done, batch_size)
    if not isinstance(wanted, int | np.integer) or isinstance(wanted, bool):
        raise ConfigError(f"callback: expected a whole number of rounds from rounds_until, got {shown(wanted)}")
    return max(1, min(LONGEST, int(wanted)))


def catch_up(callback: Callback | None, block: BlockEnd) -> None:
    """Give a callback with a method `catch_up` the last block before a run was cut off, as far as its last round."""
    wish = getattr(callback, "catch_up", None)
    if wish is not None:
        wish(block)


def checked(callback: Callback | Sequence[Callback] | None) -> Callback | None:
    """One callback, from a function, several functions, or None."""
    several = callback if isinstance(callback, list | tuple) else [callback]
    for each in several:
        if each is not None and not callable(each):
            raise ConfigError(f"callback: expected a function of a BlockEnd, or a list of them, got {shown(each)}")
    return all_of(*several)


class Caller:
    """Calls a callback after each block and remembers whether it asked to stop. Works in process 0 only."""

    def __init__(self, callback: Callback | None, job: Job, folder: RunFolder) -> None:
        self.callback, self.job, self.folder = callback, job, folder
        self.asked = False

    def on_block(self, first: int, values: dict[str, np.ndarray], observed: Any) -> None:
        if self.callback is None or jax.process_index() > 0:
            return
        config, job = self.job.config, self.job
        scalars = {name: value for name, value in values.items() if name != "finite"}
        frame = metrics.table(config.members(), first, config.batch_size, scalars, math.nan)
        done = first + len(values["accepted"][0])
        with self._failing(done):
            wants = self.callback(BlockEnd(Run(self.folder, lambda: job), frame, done, config.num_rounds))
        self.asked = _answer(wants)

    def on_resume(self, done: int) -> None:
        """Call before the first block of a run that was resumed after `done` rounds."""
        if self.callback is None or jax.process_index() > 0:
            return
        job, run = self.job, Run(self.folder, lambda: self.job)
        last = pd.DataFrame({"round": [done - 1]})
        with self._failing(done):
            catch_up(self.callback, BlockEnd(run, last, done, job.config.num_rounds))

    @contextlib.contextmanager
    def _failing(self, done: int) -> Iterator[None]:
        """Record the errors of a callback that `run_job` passes on, since they could also mean an unusable folder."""
        try:
            yield
        except (RunError, SystemExit) as error:
            config = self.job.config
            facts = {"rounds_done": done, "rounds": config.num_rounds, "env_steps": done * config.batch_size}
            reason = (str(error).strip() or type(error).__name__).split("\n")[0]
            self.folder.set_status("failed", **facts, reason=reason)
            raise

    def rounds_until(self, done: int) -> int:
        """The greatest length of the next block."""
        return rounds_until(self.callback, done, self.job.config.batch_size)

    def stop(self) -> bool:
        return self.asked
