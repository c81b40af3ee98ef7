"""When a suite must stop: what is begun is what can be expected to end in time, going by what was seen so far."""

from __future__ import annotations

import time


class Deadline:
    """Asked after every block: would one more, as long as the last, end too late?"""

    def __init__(self, at: float | None) -> None:
        self.at, self.last = at, time.time()
        self.opening = self.evaluation = 0.0  # the longest start, and the longest evaluation of a member, so far
        self.is_opening = True  # no block has ended since the start

    def __call__(self) -> bool:
        now = time.time()
        took, self.last = now - self.last, now
        if self.is_opening:
            self.opening, self.is_opening = max(self.opening, took), False
        return self.at is not None and now + took > self.at

    def allows_start(self) -> bool:
        """Whether an environment begun now would come to its first checkpoint, if that takes as long as ever before."""
        self.last, self.is_opening = time.time(), True
        return self.at is None or self.last + self.opening < self.at

    def allows_evaluation(self) -> bool:
        """Whether a member evaluated now would be done in time, if it takes as long as any before it."""
        return self.at is None or time.time() + self.evaluation < self.at
