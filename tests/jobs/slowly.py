"""verl_hpc with a rank that takes its time in an operator of every step but the first, so that a
test can meet it there."""

import os
import time

from verl_hpc.metrics.timeline import Timeline

SECONDS = 1.5
"""Three times as long as a rank's record of what it does may be old."""


def slow_down(rank: str, operator: str) -> None:
    begin = Timeline.begin

    def begin_slowly(self: Timeline, step: int, name: str, place: str) -> None:
        begin(self, step, name, place)
        if step > 1 and name == operator and os.environ["PMI_RANK"] == rank:
            time.sleep(SECONDS)

    Timeline.begin = begin_slowly
