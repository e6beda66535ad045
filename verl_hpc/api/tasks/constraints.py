"""Constraints of tasks: texts to choose from, a regular expression, a function, or a model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import torch

from verl_hpc.api.loading import load_causal_lm
from verl_hpc.api.tasks.settings import ConstraintConfig
from verl_hpc.errors import ConfigError
from verl_hpc.rewards.user_code import load_function
from verl_hpc.rollout.constraint import Constraint

Rows = Sequence[Sequence[int]]


def constraint_of(
    given: Any, tokenizer: Any, device: torch.device, ends: Sequence[int], setting: str
) -> Constraint:
    """Make the constraint of a task's samples.

    Args:
        given: a `ConstraintConfig`; or a list of texts, a regular expression, a function as
            transformers' prefix_allowed_tokens_fn, or a language model.
        device: device of a model that is loaded.
        ends: tokens that end a response.
        setting: name of the setting, for messages.

    Raises:
        ConfigError: it is something else, or cannot be used.
        ModelError: a model that cannot be loaded.
    """
    least = 0.001
    if isinstance(given, ConstraintConfig):
        least, config = given.min_probability, given
        given = config.choices or config.regex
        if config.function is not None:
            given = load_function(config.function, setting=f"{setting}.function", error=ConfigError)
        elif config.model is not None:
            given = load_causal_lm(config.model, device=device)
    if isinstance(given, str):
        return OfRegex(given, tokenizer, setting)
    if isinstance(given, list | tuple) and given and all(isinstance(text, str) for text in given):
        return OfChoices(given, tokenizer, ends)
    if isinstance(given, torch.nn.Module):
        return OfModel(given, least)
    if callable(given):
        return OfFunction(given)
    raise ConfigError(
        f"{setting} is {type(given).__name__}; expected texts to choose from, a regular "
        "expression, a function of (row, token ids), or a language model"
    )


class OfChoices:
    """The response is one of some texts, as the tokenizer writes it, and then ends."""

    def __init__(self, texts: Sequence[str], tokenizer: Any, ends: Sequence[int]) -> None:
        self._next: dict[tuple[int, ...], set[int]] = {}
        for text in texts:
            ids = (*tokenizer.encode(text, add_special_tokens=False), ends[0])
            for place, token in enumerate(ids):
                self._next.setdefault(ids[:place], set()).add(token)

    def __call__(self, prompts: Rows, responses: Rows) -> Sequence[Collection[int]]:
        """See `Constraint`."""
        del prompts
        return [self._next[tuple(response)] for response in responses]


class OfRegex:
    """The response as a whole matches a regular expression, in whichever tokens; by llguidance.

    Raises:
        ConfigError: llguidance is not installed, or cannot read the expression or the tokenizer.
    """

    def __init__(self, regex: str, tokenizer: Any, setting: str) -> None:
        try:
            from llguidance import LLMatcher, grammar_from
            from llguidance.hf import from_tokenizer
        except ImportError:
            raise ConfigError(
                f"{setting}.regex needs llguidance, which comes with vLLM and is not installed; "
                "pip install llguidance, or give choices"
            ) from None
        try:
            table = from_tokenizer(tokenizer)
        except (ValueError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{setting}.regex: llguidance cannot read the tokenizer: {error}"
            ) from error
        self._matcher = LLMatcher(table, grammar_from("regex", regex))
        if self._matcher.is_error():
            reason = self._matcher.get_error().splitlines()[0]
            raise ConfigError(f"{setting}.regex = {regex!r}: {reason}")

    def __call__(self, prompts: Rows, responses: Rows) -> Sequence[Collection[int]]:
        """See `Constraint`."""
        del prompts
        return [self._after(list(response)) for response in responses]

    def _after(self, response: list[int]) -> Collection[int]:
        self._matcher.reset()
        self._matcher.consume_tokens(response)
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        allowed: Collection[int] = np.flatnonzero(np.unpackbits(bits, bitorder="little")).tolist()
        return allowed


class OfFunction:
    """A function as transformers' prefix_allowed_tokens_fn says which tokens are allowed."""

    def __init__(self, function: Callable[[int, torch.Tensor], Collection[int]]) -> None:
        self._function = function

    def __call__(self, prompts: Rows, responses: Rows) -> Sequence[Collection[int]]:
        """See `Constraint`; rows are counted over those that have not ended."""
        pairs = zip(prompts, responses, strict=True)
        return [
            [int(i) for i in self._function(row, torch.tensor([*prompt, *response]))]
            for row, (prompt, response) in enumerate(pairs)
        ]


class OfModel:
    """A language model allows the tokens that it finds likely enough, and its likeliest one.

    Args:
        model: with the actor's tokenizer; it is not trained.
        least: least probability.
    """

    def __init__(self, model: torch.nn.Module, least: float) -> None:
        self._model, self._least = model.eval(), least

    def __call__(self, prompts: Rows, responses: Rows) -> Sequence[Collection[int]]:
        """See `Constraint`."""
        rows = [torch.tensor([*p, *r]) for p, r in zip(prompts, responses, strict=True)]
        if not rows:
            return []
        device = next(self._model.parameters()).device
        padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(device)
        lengths = torch.tensor([len(row) for row in rows], device=device)
        mask = (torch.arange(padded.shape[1], device=device) < lengths[:, None]).long()
        with torch.no_grad():
            output = self._model(padded, attention_mask=mask)
        logits = getattr(output, "logits", output)
        last = logits[torch.arange(len(rows), device=device), lengths - 1].float()
        probabilities = last.softmax(-1)
        likely = (probabilities >= self._least) | (
            probabilities == probabilities.amax(-1, keepdim=True)
        )
        return [torch.nonzero(row)[:, 0].tolist() for row in likely]
