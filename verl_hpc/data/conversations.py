"""How the columns of a row belong together: a prompt, and the answers behind it.

Data sets write the same thing in many ways: answers alone or with the whole conversation before
them, prompts in a column of their own, in every answer, or both. Here all of them become a prompt
and what follows it, and columns that contradict each other are refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile

from verl_hpc.config.data import TrainOn
from verl_hpc.data.messages import Message, kind_of
from verl_hpc.data.problem import PAIR_COLUMNS, Answer, Prompt
from verl_hpc.errors import DataError

_READ = (
    "role",
    "content",
    "tool_calls",
    "reasoning_content",
    "reasoning",
    "thinking",
    "name",
    "tool_call_id",
)
"""Fields that say what a message is; others are notes of the data set."""
_ASSISTANT = re.compile(
    r"\n\nAssistant:|<\|im_start\|>assistant\n|<start_of_turn>model\n|<\|assistant\|>\n?|\[/INST\]"
    r"|<\|start_header_id\|>assistant<\|end_header_id\|>\n\n"
)
"""What stands before an answer in texts of the form of Anthropic's hh-rlhf, and in those that chat
templates have made."""
_REPEATED_WORDS = 3
"""Words of a prompt that two answers do not both begin with by chance."""


def answered(
    prompt: Prompt | None, answer: Answer, train_on: TrainOn = "all", column: str = "the answer"
) -> tuple[Prompt, Answer]:
    """A prompt and the one answer to it.

    Args:
        prompt: the row's; None where the answer is a whole conversation.
        answer: a text; the messages behind the prompt; or a whole conversation, which the prompt
            begins.
        train_on: which turns of the model the answer has: `all` of a conversation, or the `last`,
            with what was said before it as the prompt.
        column: what errors call the answer.

    Returns:
        Two texts, or two lists of messages, of which the second begins and ends with the model.

    Raises:
        DataError: the two contradict each other, or one of them is missing.
    """
    if isinstance(answer, str):
        if prompt is None:
            raise DataError(f"{column} is a text, and there is no prompt; name its prompt_key")
        if isinstance(prompt, str):
            return prompt, answer
        answer = _as_message(answer)
    whole, start = _whole(prompt, answer, column)
    turns = [i for i in range(start, len(whole)) if whole[i]["role"] == "assistant"]
    if train_on == "last" and turns:
        start = turns[-1]
    return _parted(whole, start, column)


def compared(
    prompt: Prompt | None, chosen: Answer, rejected: Answer
) -> tuple[Prompt, Answer, Answer]:
    """A prompt and two answers to it, of which one is better.

    What both answers begin with belongs to the prompt, as in TRL (`extract_prompt`).

    Args:
        prompt: the row's; None where both answers begin with it.
        chosen: the better answer, as `answered` takes it.
        rejected: the worse one, of the same kind.

    Raises:
        DataError: the answers are equal or of different kinds, nothing comes before them, or the
            prompt contradicts them.
    """
    names = " and ".join(PAIR_COLUMNS)
    if isinstance(chosen, str) and isinstance(rejected, str):
        if chosen == rejected:
            raise DataError(
                f"{names} are the same text, {chosen!r:.60}, which prefers nothing; remove the row"
            )
        if not isinstance(prompt, list):
            return _texts(prompt, chosen, rejected)
        chosen, rejected = _as_message(chosen), _as_message(rejected)
    if isinstance(chosen, str) or isinstance(rejected, str):
        raise DataError(
            f"{names} are {kind_of(chosen)} and {kind_of(rejected)}; both must be texts, or both "
            "chat lists"
        )
    one, _ = _whole(prompt, chosen, PAIR_COLUMNS[0])
    other, _ = _whole(prompt, rejected, PAIR_COLUMNS[1])
    shared = _num_shared(one, other)
    if shared == len(one) == len(other):
        raise DataError(f"{names} are the same messages, which prefers nothing; remove the row")
    before, better = _parted(one, shared, PAIR_COLUMNS[0])
    _, worse = _parted(other, shared, PAIR_COLUMNS[1])
    return before, better, worse


def asked(conversation: Sequence[Message]) -> list[Message]:
    """What a conversation asks: all of it, or where it ends with an answer what is before that.

    Raises:
        DataError: nothing is said before the answer.
    """
    if conversation[-1]["role"] != "assistant":
        return list(conversation)
    prompt, _ = answered(None, list(conversation), "last", "the conversation")
    assert isinstance(prompt, list)
    return prompt


def _as_message(answer: str) -> list[Message]:
    return [{"role": "assistant", "content": answer}]


def _whole(prompt: Prompt | None, answer: list[Message], column: str) -> tuple[list[Message], int]:
    """A conversation with its prompt, and how many of its messages the prompt is."""
    begins = answer[0]["role"] == "assistant"
    if isinstance(prompt, list):
        if _num_shared(prompt, answer) == len(prompt):
            return answer, len(prompt)
        if begins:
            return [*prompt, *answer], len(prompt)
        raise DataError(
            f"{column} begins with a message of the {answer[0]['role']} that is not the prompt's; "
            "it must be the answer alone, or begin with the whole prompt"
        )
    if prompt is not None and begins:
        return [{"role": "user", "content": prompt}, *answer], 1
    said = [str(m.get("content", "")).strip() for m in answer if m["role"] == "user"]
    if prompt is not None and prompt.strip() not in said:
        raise DataError(
            f"the prompt, {prompt!r:.60}, is said by no user in {column}; the columns are of "
            "different conversations; mend the row, or name another prompt_key"
        )
    # An opening of the assistant is part of the prompt: nothing asks for it.
    turns = (i for i, m in enumerate(answer) if i and m["role"] == "assistant")
    return answer, next(turns, len(answer))


def _num_shared(one: Sequence[Message], other: Sequence[Message]) -> int:
    """How many messages both begin with."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: _said(pair[0]) == _said(pair[1]), pairs))


def _said(message: Message) -> list[object]:
    return [message.get(name) for name in _READ]


def _parted(whole: list[Message], start: int, column: str) -> tuple[list[Message], list[Message]]:
    """A conversation as its prompt and its answer.

    Raises:
        DataError: the answer is not the model's, or nothing is said before it.
    """
    prompt, answer = whole[:start], whole[start:]
    if not answer:
        raise DataError(f"{column} has no answer behind the prompt; remove the row")
    for place, message in (("begins", answer[0]), ("ends", answer[-1])):
        if message["role"] != "assistant":
            raise DataError(
                f"{column} {place} with a message of the {message['role']}; behind the prompt it "
                "must begin and end with one of the assistant"
            )
    if not prompt:
        raise DataError(
            f"{column} begins with a message of the assistant, and nothing is said before it; name "
            "the column of the prompt in prompt_key"
        )
    if prompt[-1]["role"] == "assistant":
        raise DataError(
            f"the prompt ends with a message of the assistant, and so begins {column}; put the two "
            "together, or what was asked between them"
        )
    return prompt, answer


def _texts(prompt: str | None, chosen: str, rejected: str) -> tuple[str, str, str]:
    if prompt is not None:
        both = chosen.startswith(prompt) and rejected.startswith(prompt)
        if both and len(prompt.split()) >= _REPEATED_WORDS:
            raise DataError(
                f"both answers begin with the prompt, {prompt!r:.60}, so that it would be said "
                "twice; leave it out of them, or leave the column of the prompt out"
            )
        return prompt, chosen, rejected
    pairs = zip(chosen, rejected, strict=False)
    shared = "".join(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    marks = [m.end() for m in _ASSISTANT.finditer(shared)]
    # Without a mark: up to a word that is whole in both.
    ends = [m.end() for m in re.finditer(r"\S(?=\s)", shared)]
    cut = next((found[-1] for found in (marks, ends) if found), 0)
    if not shared[:cut].strip():
        raise DataError(
            "there is no prompt: no column has one, and chosen and rejected begin differently; "
            "name its column in prompt_key"
        )
    return shared[:cut], chosen[cut:], rejected[cut:]
