"""Requests to reward functions, and how the functions are called."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, TypeVar

RewardFunction = Callable[..., Any]
"""A function called by keyword with those of `NAMES` that it takes, or if it is `batched` as
`function(requests)`.

A user's function of two arguments is called as `function(response, ground_truth)`.
The result is the score, or a mapping with "score" and further figures; of one that is `batched` a
list of these.
"""

KEYWORDS = ("data_source", "solution_str", "ground_truth", "extra_info")
"""Keywords with which verl calls functions."""
MORE_KEYWORDS = (
    *("response_ids", "turns", "truncated", "stop_reason", "row", "prompt", "program_rewards"),
)
NAMES = (*KEYWORDS, *MORE_KEYWORDS)
OF_THE_RESPONSE = (
    *("solution_str", "response_ids", "turns", "truncated", "stop_reason", "program_rewards"),
)
"""Those of `NAMES` that differ between responses to one prompt."""
PLURALS = {f"{name}s": name for name in KEYWORDS}
"""Keywords with which verl's batch reward manager calls functions of a whole list, each with its
singular."""


class Turn(TypedDict):
    """A part of a response."""

    role: Literal["assistant", "environment"]
    content: str
    """Text of the part, without special tokens."""
    token_ids: list[int]


@dataclass(frozen=True)
class Request:
    """A response, and the fields of the problem it answers."""

    index: int
    """Row of the problem in its data set."""
    data_source: str
    ground_truth: Any
    extra: dict[str, Any]
    response: str
    """The response as text; of several turns the model's last."""
    origin: str = ""
    """The file of the problem, and the line or row in it."""
    prompt: str | Sequence[Mapping[str, Any]] = ""
    """Text, or a chat list of {role, content}; a message may have further fields, or no content."""
    response_ids: Sequence[int] = ()
    """Tokens of the response, with those of an environment between its turns."""
    turns: Sequence[Turn] = ()
    """Turns of the model and the environment, in order."""
    truncated: bool = False
    """Whether the response was cut at the length limit."""
    columns: Callable[[], Mapping[str, Any]] = dict
    """Function that reads `row`."""
    stop_reason: str = ""
    """What ended the response, or its last turn: "length" if it is truncated, else the stop string
    or the text of the stop token."""
    experiment_name: str = ""
    """The run's name."""
    program_rewards: Sequence[float] | None = None
    """Rewards of the response's tokens that its program wrote, whose sum is its score; None without
    a program, or if it wrote none."""

    @property
    def row(self) -> Mapping[str, Any]:
        """All columns of the row, as its file has them; none of a generated task.

        Raises:
            DataError: one of them cannot be read.
        """
        return self.columns()


def text_of_prompt(prompt: str | Sequence[Mapping[str, Any]]) -> str:
    """Return the text of a prompt: that of a chat's messages, separated by empty lines. A message
    has text, a list of parts of which those with text count, or no content, such as one that calls
    a tool."""
    if isinstance(prompt, str):
        return prompt
    texts = (_text_of_content(message.get("content")) for message in prompt)
    return "\n\n".join(text for text in texts if text)


def _text_of_content(content: Any) -> str:
    if isinstance(content, list | tuple):
        return "".join(_text_of_part(part) for part in content)
    return "" if content is None else str(content)


def _text_of_part(part: Any) -> str:
    return str(part.get("text") or "") if isinstance(part, Mapping) else str(part)


_F = TypeVar("_F", bound=RewardFunction)


def batched(function: _F) -> _F:
    """Mark a function as one of a whole list: it is called with a rank's requests together, such as
    to have many answers of a service under way at once.

    It returns a list of the same length, of numbers, of mappings with a "score", or of exceptions,
    each of which fails its response alone.
    """
    function.is_batched = True  # type: ignore[attr-defined]
    return function


def bounded(function: _F) -> _F:
    """Mark a function as batched and as ending in time by settings of its own."""
    function.is_bounded = True  # type: ignore[attr-defined]
    return batched(function)


def is_bounded(function: RewardFunction) -> bool:
    """Whether the function needs no time limit."""
    return bool(getattr(function, "is_bounded", False))


def is_batched(function: RewardFunction) -> bool:
    """Whether the function is called with a whole list."""
    return bool(getattr(function, "is_batched", False))


def asked(
    signature: inspect.Signature, names: Iterable[str], bound: Container[str] = ()
) -> list[str]:
    """Return those of `names` that a function takes by keyword or by **, without those that are
    bound."""
    parameters = signature.parameters.values()
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    own = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    return [n for n in names if (takes_all or n in own) and n not in bound]


def taken(function: RewardFunction) -> list[str]:
    """Return those of `NAMES` that a function takes."""
    # A bound option of the same name takes precedence.
    return asked(inspect.signature(function), NAMES, getattr(function, "keywords", ()))


def arguments(request: Request, names: Iterable[str]) -> dict[str, Any]:
    """Return the keyword arguments for a function.

    `extra_info` also has verl's num_turns, which counts the prompt as one, and the run's name as
    its experiment_name, unless the row has one.

    Args:
        request: the response to score.
        names: those of `NAMES` that it takes.

    Raises:
        DataError: it takes the row, which cannot be read.
    """
    of_verl = {
        "data_source": request.data_source,
        "solution_str": request.response,
        "ground_truth": request.ground_truth,
        "extra_info": {
            "experiment_name": request.experiment_name,
            **request.extra,
            "num_turns": 1 + len(request.turns),
        },
    }
    # Each call gets copies of the others, which it may change.
    return {n: of_verl[n] if n in of_verl else deepcopy(getattr(request, n)) for n in names}
