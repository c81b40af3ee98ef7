"""Callbacks: your own code after each block of rounds, which may stop the training."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import pandas as pd

from nextpolicy.config import ConfigError, shown
from nextpolicy.run import metrics
from nextpolicy.run.folder import RunFolder
from nextpolicy.run.job import Job
from nextpolicy.run.run import Run


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


Callback = Callable[[BlockEnd], bool | None]


def stop_at_return(threshold: float) -> Callback:
    """A callback that stops the training once the mean return of every member in a block is at least `threshold`."""
    if not isinstance(threshold, int | float) or isinstance(threshold, bool) or not math.isfinite(threshold):
        raise ConfigError(f"stop_at_return: expected a finite number, got {shown(threshold)}")
    return lambda block: bool((block.returns() >= threshold).all())


def check(callback: Any) -> None:
    """Raise unless this is a function or None."""
    if callback is not None and not callable(callback):
        raise ConfigError(f"callback: expected a function of a BlockEnd, got {shown(callback)}")


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
        wants = self.callback(BlockEnd(Run(self.folder, lambda: job), frame, done, config.num_rounds))
        if not isinstance(wants, bool | np.bool_ | None):
            raise ConfigError(f"callback: expected True to stop, or nothing, got {shown(wants)}")
        self.asked = bool(wants)

    def stop(self) -> bool:
        return self.asked
