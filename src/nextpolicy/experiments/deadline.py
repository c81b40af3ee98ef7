"""When a suite must stop: work starts only if, judged by the work so far, it ends in time."""

from __future__ import annotations

import time


class Deadline:
    """Called after every block of rounds: True if another block as long as the last would end too late."""

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
        """Whether an environment started now would reach its first checkpoint, if it takes as long as the slowest."""
        self.last, self.is_opening = time.time(), True
        return self.at is None or self.last + self.opening < self.at

    def allows_evaluation(self) -> bool:
        """Whether a member evaluated now would be done in time, if it takes as long as the slowest."""
        return self.at is None or time.time() + self.evaluation < self.at
