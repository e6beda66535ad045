"""A game: the model answers a task of reasoning-gym until it is right or out of turns."""

from __future__ import annotations

from collections.abc import Sequence

from verl_hpc.data.problem import Problem
from verl_hpc.environments.environment import Done, Environment
from verl_hpc.errors import ConfigError
from verl_hpc.rewards.functions.reasoning_gym import PREFIX
from verl_hpc.rewards.functions.reasoning_gym import reasoning_gym as compute_score


class ReasoningGym(Environment):
    """Says that an answer is wrong by the task's own scorer; a right answer ends the conversation.

    rollout.environment.max_turns limits the answers; reward.function: reasoning_gym scores the
    last.

    Args:
        right: least score of a right answer.
        says: observation for a wrong answer; {score} stands for its score.
    """

    def __init__(self, right: float = 1.0, says: str = "That is not right. Try again.") -> None:
        # Takes seconds, once, in the process that conversations are forked from.
        import reasoning_gym  # noqa: F401

        self._right, self._says = right, says

    def reset(self, problem: Problem) -> None:
        if not problem.data_source.startswith(PREFIX):
            raise ConfigError(
                f"environment reasoning_gym: data_source = {problem.data_source!r} is no task of "
                "reasoning-gym; use data of kind: reasoning_gym"
            )
        self._problem = problem

    def step(self, tokens: Sequence[int], text: str) -> str | Done:  # noqa: ARG002
        problem = self._problem
        score = compute_score(problem.data_source, text, problem.ground_truth, problem.extra)
        if score >= self._right:
            return Done()
        return self._says.replace("{score}", f"{score:g}")
