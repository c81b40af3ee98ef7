"""The deadline of a suite: work starts only if it is expected to end in time."""

from __future__ import annotations

import time


class Deadline:
    """A stop condition, called after every block: True if a block as long as the last one would end too late."""

    def __init__(self, at: float | None) -> None:
        self.at, self.last = at, time.time()
        self.opening = self.evaluation = 0.0  # longest start of an environment and longest evaluation of a member
        self.is_opening = True  # no block has ended since the start

    def __call__(self) -> bool:
        now = time.time()
        took, self.last = now - self.last, now
        if self.is_opening:
            self.opening, self.is_opening = max(self.opening, took), False
        return self.at is not None and now + took > self.at

    def allows_start(self) -> bool:
        """Whether an environment started now would save a checkpoint in time, judged by the slowest start so far."""
        self.last, self.is_opening = time.time(), True
        return self.at is None or self.last + self.opening < self.at

    def allows_evaluation(self) -> bool:
        """Whether the evaluation of a member would end in time, judged by the slowest evaluation so far."""
        return self.at is None or time.time() + self.evaluation < self.at
