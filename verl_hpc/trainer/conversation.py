"""Conversations that an engine is having: turns of the model, and observations between them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from verl_hpc.config.environment import EnvironmentConfig
from verl_hpc.data.observations import Observations
from verl_hpc.data.problem import Problem
from verl_hpc.environments.environment import Done, Environment
from verl_hpc.errors import RewardError
from verl_hpc.rewards.guard import describe, guarded
from verl_hpc.rollout.partial import observed, this_turn
from verl_hpc.rollout.protocol import Response
from verl_hpc.runtime.control import Control
from verl_hpc.runtime.limit import TimeLimitExceeded

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass
class Counts:
    """Of conversations, over all prompts of an engine."""

    turns: int = 0
    """Of the model."""
    failed: int = 0
    """Steps of environments that raised, or took too long."""


class Conversations:
    """`Turns` by environments, one for each prompt.

    Args:
        config: limits, and what an error does.
        make: an environment.
        problems: by the index of the engine's prompt.
        tokenizer: of the model.
        is_chat: by the same index, whether the prompt went through a chat template.
        seed: `seed(index, length)` of the turn that begins behind so many tokens.
        longest: tokens of a response.
        control: of the engine's ranks: the first one's environments take the steps.
    """

    def __init__(
        self,
        config: EnvironmentConfig,
        make: Callable[[], Environment],
        problems: Mapping[int, Problem],
        tokenizer: PreTrainedTokenizerBase,
        is_chat: Mapping[int, bool],
        seed: Callable[[int, int], int],
        longest: int,
        control: Control | None = None,
    ) -> None:
        self._config, self._make, self._problems = config, make, problems
        self._tokenizer, self._seed, self._longest = tokenizer, seed, longest
        self._encode = {
            chat: Observations(tokenizer, chat, config.role) for chat in {*is_chat.values()}
        }
        self._is_chat, self._control = is_chat, control
        self._environments: dict[int, Environment] = {}
        self._turns: dict[int, int] = {}
        self._waiting: dict[int, Response] = {}
        self.counts = Counts()

    def ended(self, index: int, response: Response) -> None:
        """See `Turns.ended`."""
        self._turns[index] = self._turns.get(index, 0) + 1
        self.counts.turns += 1
        if response.finish_reason == "stop" and self._turns[index] < self._config.max_turns:
            self._waiting[index] = response

    def next(self, wait: bool) -> Sequence[tuple[int, Response, int]]:  # noqa: ARG002
        """See `Turns.next`; environments take their steps here, one after another."""
        said = self._steps()
        found = []
        for index, response in self._waiting.items():
            text = said[index]
            if text is None:
                continue
            tokens = self._encode[self._is_chat[index]].tokens(text, response.tokens)
            longer = observed(response, tokens)
            if len(longer.tokens) < self._longest:
                found.append((index, longer, self._seed(index, len(longer.tokens))))
        self._waiting.clear()
        return found

    @property
    def under_way(self) -> Collection[int]:
        """See `Turns.under_way`."""
        return self._waiting.keys()

    def _steps(self) -> dict[int, str | None]:
        """What is said to each turn that waits; on all ranks what the first one's environments
        say."""
        control = self._control
        leads = control is None or control.rank == 0

        def steps() -> dict[int, str | None]:
            waiting = self._waiting.items() if leads else ()
            return {index: self._step(index, response) for index, response in waiting}

        if control is None or control.size == 1 or not self._waiting:
            return steps()
        return control.broadcast(control.together(steps))

    def _step(self, index: int, response: Response) -> str | None:
        """What the environment says; None where it has nothing more to say."""
        turn = this_turn(response)
        text = str(self._tokenizer.decode(list(turn), skip_special_tokens=True))
        try:
            with guarded(self._config.timeout_s):
                if index not in self._environments:
                    environment = self._make()
                    environment.reset(self._problems[index])
                    self._environments[index] = environment
                said = self._environments[index].step(turn, text)
                if not isinstance(said, str | Done):
                    kind = type(said).__name__
                    raise TypeError(f"a step gives {kind}; expected a text, or Done()")
                return said if isinstance(said, str) else None
        except TimeLimitExceeded as error:
            late = f"a step takes longer than timeout_s = {self._config.timeout_s:g}"
            self._failed(index, late, error)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # code of the user
            self._failed(index, describe(error), error)
        return None

    def _failed(self, index: int, reason: str, error: BaseException) -> None:
        self.counts.failed += 1
        if self._config.on_error == "stop":
            raise RewardError(
                f"rollout.environment.name = {self._config.name}, {self._problems[index].where}: "
                f"{reason}; mend it, or set rollout.environment.on_error: end"
            ) from error
