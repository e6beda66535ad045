"""Take the score that a program of rollout.program wrote."""

from __future__ import annotations

from collections.abc import Sequence

from verl_hpc.errors import RewardError


def program(program_rewards: Sequence[float] | None) -> Sequence[float]:
    """Return the rewards of a response's tokens that its program wrote.

    Raises:
        RewardError: there is no program, or it wrote no score.
    """
    if program_rewards is None:
        raise RewardError(
            "reward.function = program: no program wrote a score into the file of VERL_HPC_SCORE; "
            "set rollout.program, or choose another function"
        )
    return program_rewards
