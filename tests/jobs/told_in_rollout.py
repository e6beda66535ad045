"""verl_hpc whose rank 0 gets a request to leave in the middle of the second step's rollout, however
long that takes."""

import os
import signal

QUESTIONS = 5
"""How often the engine has asked whether it is to leave."""


def tell_rank_0() -> None:
    from verl_hpc.generation.rollout import Rollout

    preempted, asked = Rollout.preempted, []

    def asks(self: Rollout) -> bool:
        asked.append(self.version)
        if os.environ["PMI_RANK"] == "0" and asked.count(1) == QUESTIONS:
            os.kill(os.getpid(), signal.SIGTERM)
        return preempted(self)

    Rollout.preempted = asks
