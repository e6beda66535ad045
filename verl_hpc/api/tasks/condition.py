"""Prompts that say which reward their answer is to get, or got."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from verl_hpc.api.prompts import PromptText
from verl_hpc.api.tasks.settings import ConditionConfig
from verl_hpc.data.problem import Problem
from verl_hpc.data.prompts import Encoder


class Condition:
    """Writes rewards into prompts.

    With levels, a reward's is its place among the newest rewards: those are sorted into as many
    parts of equal size (Quark's quantiles, arXiv 2205.13636, section 2.1). Equal rewards have the
    same level, that of their middle place; the best one's is always the highest.

    Args:
        config: of the task.
        tokenizer: of the actor.
    """

    def __init__(self, config: ConditionConfig, tokenizer: Any) -> None:
        self._config, self._tokenizer = config, tokenizer
        self._window: deque[float] = deque(maxlen=config.window)

    @property
    def asked(self) -> str:
        """What a rollout's prompts begin with."""
        if self._config.levels is not None:
            return self._text(str(self._config.levels))
        assert self._config.target is not None
        return self._text(self._number(self._config.target))

    def earned(self, rewards: Sequence[float]) -> list[str]:
        """What the prompts of responses begin with that got these rewards, which join the window
        first."""
        if self._config.levels is None:
            return [self._text(self._number(reward)) for reward in rewards]
        self._window.extend(rewards)
        return [self._text(str(self._level(reward))) for reward in rewards]

    def _level(self, reward: float) -> int:
        levels, known = self._config.levels, self._window
        assert levels is not None
        if reward >= max(known):
            return levels
        below = sum(value < reward for value in known)
        equal = sum(value == reward for value in known)
        return min(int(levels * (below + equal / 2) / len(known)), levels - 1) + 1

    def _number(self, reward: float) -> str:
        return f"{reward:.{self._config.digits}f}"

    def _text(self, reward: str) -> str:
        return self._config.text.replace("{reward}", reward)

    def prompt(self, problem: Problem, text: str = "") -> PromptText:
        """A problem's prompt with a text before it."""
        return prompt_of(problem, self._tokenizer, text)

    def state(self) -> dict[str, float]:
        """The newest rewards, by their place."""
        return {f"{place:04d}": value for place, value in enumerate(self._window)}

    def load_state(self, state: Mapping[str, float]) -> None:
        """Go on from what `state` gave."""
        self._window.clear()
        self._window.extend(state[name] for name in sorted(state))


def prompt_of(problem: Problem, tokenizer: Any, text: str = "") -> PromptText:
    """A problem's prompt in tokens, with a text before it; before the last message of a chat.

    Raises:
        DataError: as `Encoder.prompt`.
    """
    prompt = problem.prompt
    if isinstance(prompt, str):
        whole: Any = text + prompt
    else:
        *others, last = prompt
        whole = [*others, {**last, "content": text + last.get("content", "")}]
    ids = Encoder(tokenizer).prompt(replace(problem, prompt=whole))
    return PromptText.of(tokenizer.decode(ids, skip_special_tokens=True), ids)
