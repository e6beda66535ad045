"""Combine the columns of a row into a prompt and the answers that follow it.

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
_MARKS = (
    (r"\n\nHuman:", r"\n\nAssistant:"),
    (r"<\|im_start\|>(?!assistant)\w+", r"<\|im_start\|>assistant\n"),
    (r"<start_of_turn>(?!model)\w+", r"<start_of_turn>model\n"),
    (r"<\|(?:system|user|tool|observation)\|>", r"<\|assistant\|>\n?"),
    (r"\[INST\]", r"\[/INST\]"),
    (
        r"<\|start_header_id\|>(?!assistant)\w+",
        r"<\|start_header_id\|>assistant<\|end_header_id\|>\n\n",
    ),
    (r"<\uff5cUser\uff5c>", r"<\uff5cAssistant\uff5c>"),
)
"""Marks before the turns of others and before answers, in texts like Anthropic's hh-rlhf and in
texts that chat templates have written."""
_FORMS = tuple(re.compile(f"{other}(?P<other>)|{model}(?P<model>)") for other, model in _MARKS)
"""Groups stand after marks, since Python searches ten times more slowly for a group."""
_ANY_MARK = re.compile("|".join(f"(?:{other}|{model})()" for other, model in _MARKS))
"""Group i + 1 matches for a mark of form i."""
_REPEATED_WORDS = 3
"""Least number of words of a prompt with which answers do not begin by chance."""


def answered(
    prompt: Prompt | None, answer: Answer, train_on: TrainOn = "all", column: str = "the answer"
) -> tuple[Prompt, Answer]:
    """Return a prompt and the one answer to it.

    Args:
        prompt: the row's prompt; None if the answer is a whole conversation.
        answer: a text, the messages after the prompt, or a whole conversation that begins with it.
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
            _check_not_repeated(prompt, [answer], f"{column} begins")
            _check_speaker(prompt, answer, column)
            return prompt, answer
        _check_speaker("", answer, column)
        answer = _as_messages(answer)
    whole, start = _whole(prompt, answer, column)
    turns = [i for i in range(start, len(whole)) if whole[i]["role"] == "assistant"]
    if train_on == "last" and turns:
        start = turns[-1]
    return _parted(whole, start, column)


def compared(
    prompt: Prompt | None, chosen: Answer, rejected: Answer
) -> tuple[Prompt, Answer, Answer]:
    """Return a prompt, the better answer to it and the worse one.

    Messages or words with which both answers begin belong to the prompt, as in TRL's
    `extract_prompt`.

    Args:
        prompt: the row's prompt; None if both answers begin with it.
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
        for column, answer in zip(PAIR_COLUMNS, (chosen, rejected), strict=True):
            _check_speaker("", answer, column)
        chosen, rejected = _as_messages(chosen), _as_messages(rejected)
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
    """Return the question of a conversation: all of it, or what comes before a final answer.

    Raises:
        DataError: nothing is said before the answer.
    """
    if conversation[-1]["role"] != "assistant":
        return list(conversation)
    prompt, _ = answered(None, list(conversation), "last", "the conversation")
    assert isinstance(prompt, list)
    return prompt


def says_the_end(answer: Answer, conversation: Answer) -> bool:
    """Whether a conversation is an answer, or ends with it."""
    end, whole = (_stripped(_as_messages(said)) for said in (answer, conversation))
    return _num_shared(end, whole[-len(end) :]) == len(end)


def _as_messages(answer: Answer) -> list[Message]:
    return [{"role": "assistant", "content": answer}] if isinstance(answer, str) else answer


def _whole(prompt: Prompt | None, answer: list[Message], column: str) -> tuple[list[Message], int]:
    """Return a conversation that begins with its prompt, and the prompt's number of messages."""
    begins = answer[0]["role"] == "assistant"
    if isinstance(prompt, list):
        # An answer that begins with an opening of the assistant may have the prompt after that.
        for i in range(len(answer) if begins else 1):
            if _num_shared(_stripped(prompt), _stripped(answer[i:])) == len(prompt):
                return answer, i + len(prompt)
        if begins:
            return [*prompt, *answer], len(prompt)
        raise DataError(
            f"{column} begins with a message of the {answer[0]['role']} that is not the prompt's; "
            "it must be the answer alone, or begin with the whole prompt"
        )
    said = [str(m.get("content", "")).strip() for m in answer if m["role"] == "user"]
    if prompt is not None and prompt.strip() not in said:
        if begins:
            return [{"role": "user", "content": prompt}, *answer], 1
        raise DataError(
            f"the prompt, {prompt!r:.60}, is said by no user in {column}; the columns are of "
            "different conversations; mend the row, or name another prompt_key"
        )
    # An opening of the assistant is part of the prompt: nothing asks for it.
    turns = (i for i, m in enumerate(answer) if i and m["role"] == "assistant")
    return answer, next(turns, len(answer))


def _num_shared(one: Sequence[Message], other: Sequence[Message]) -> int:
    """Count the messages that both begin with."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: _said(pair[0]) == _said(pair[1]), pairs))


def _said(message: Message) -> list[object]:
    return [message.get(name) for name in _READ]


def _stripped(messages: Sequence[Message]) -> list[Message]:
    return [{**m, "content": str(m.get("content") or "").strip()} for m in messages]


def _parted(whole: list[Message], start: int, column: str) -> tuple[list[Message], list[Message]]:
    """Split a conversation into its prompt and its answer.

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
    if prompt is None:
        prompt = _shared_text(chosen, rejected)
        chosen, rejected = chosen[len(prompt) :], rejected[len(prompt) :]
    else:
        _check_not_repeated(prompt, [chosen, rejected], "both answers begin")
    for column, answer in zip(PAIR_COLUMNS, (chosen, rejected), strict=True):
        _check_speaker(prompt, answer, column)
    return prompt, chosen, rejected


def _shared_text(chosen: str, rejected: str) -> str:
    """Return the prompt that two texts begin with.

    Raises:
        DataError: they begin differently, or part where it is not the model that speaks.
    """
    pairs = zip(chosen, rejected, strict=False)
    shared = "".join(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    form = _form_of(shared)
    marks = list(form.finditer(shared)) if form else []
    if marks and marks[-1].lastgroup == "other":
        raise DataError(
            f"chosen and rejected part behind {marks[-1][0]!r}, where it is not the model that "
            "speaks; they must be answers to the same words; remove the row"
        )
    # Without a mark, the prompt ends after the last word that is whole in both.
    ends = marks or list(re.finditer(r"\S(?=\s)", shared))
    prompt = shared[: ends[-1].end()] if ends else ""
    if not prompt.strip():
        raise DataError(
            "there is no prompt: no column has one, and chosen and rejected begin differently; "
            "name its column in prompt_key"
        )
    return prompt


def _check_not_repeated(prompt: str, answers: Sequence[str], who: str) -> None:
    """Raises: DataError: all answers begin with the prompt, which is not short."""
    start = prompt.strip()
    repeated = all(answer.lstrip().startswith(start) for answer in answers)
    if repeated and len(start.split()) >= _REPEATED_WORDS:
        raise DataError(
            f"{who} with the prompt, {prompt!r:.60}, so that it would be said twice; let "
            "each answer begin behind it"
        )


def _check_speaker(prompt: str, answer: str, column: str) -> None:
    """Raises: DataError: an answer has words of others, between marks of turns.

    Only marks of one form count: that in which the prompt asks the model, or that of the mark with
    which the answer begins. Elsewhere they are words like others.
    """
    # In a text that begins with hh-rlhf's mark, the line breaks before it may be missing.
    said = "\n\n" + answer.lstrip()
    form = _form_of(prompt)
    asked = [mark.lastgroup for mark in form.finditer(prompt)] if form else []
    if asked[-1:] != ["model"]:
        form, asked = _form_at_start(said), []
    marks = list(form.finditer(said)) if form else []
    other = next((mark[0] for mark in marks if mark.lastgroup == "other"), None)
    if other and "model" in (*asked, *(mark.lastgroup for mark in marks)):
        raise DataError(
            f"{column} has {other!r}, behind which it is not the model that speaks, and whose "
            "words would be learned; give the answer alone, or the conversation as a chat list"
        )


def _form_of(text: str) -> re.Pattern[str] | None:
    """Return the form of the first mark in a text."""
    return _form_with(_ANY_MARK.search(text))


def _form_at_start(text: str) -> re.Pattern[str] | None:
    """Return the form of the mark at the start of a text, after two line breaks or including
    them."""
    return _form_with(_ANY_MARK.match(text) or _ANY_MARK.match(text, 2))


def _form_with(mark: re.Match[str] | None) -> re.Pattern[str] | None:
    return _FORMS[mark.lastindex - 1] if mark and mark.lastindex else None
