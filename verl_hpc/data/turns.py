"""Find the tokens of a conversation's answers in what a chat template writes.

An answer is what the model has to write: from after the beginning of its turn, with which a prompt
for generation ends, up to and with the token that ends the turn. What follows that token (a line
break, say) is the template's, and no model samples it:

    <|im_start|>assistant\\n  It is 4.<|im_end|>  \\n<|im_start|>user\\n ...
    the prompt's              the answer          the template's
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from verl_hpc.data.chat_template import ChatTemplate
from verl_hpc.data.messages import Message
from verl_hpc.errors import DataError, ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_THOUGHTS = ("reasoning_content", "reasoning", "thinking")
_THINK = re.compile(r"</?think>")
_BEGUN_THOUGHTS = re.compile(r"<think>\s*(?:</think>\s*)?\Z")
_ASKED: Message = {"role": "user", "content": "x"}
_FEW = 40
"""Fewest characters of a message that do not occur elsewhere by chance."""
_NEXT = _ASKED
"""A message after a conversation, to see what the template writes between the two."""
SAID = "verlhpcsaidthis"
"""Content of a turn in messages that probe a template; only letters, so that no template changes or
splits it."""


@dataclass(frozen=True)
class Encoded:
    """A conversation as the tokens that a template makes of it."""

    ids: list[int]
    """All token ids, with the end that a template may leave out."""
    spans: list[tuple[int, int]]
    """Ranges of the answers, from the first token to one after the last."""


class Conversations:
    """Encodes conversations, and finds the model's answers in them.

    Args:
        tokenizer: a fast one, which gives the characters of each token.
        template: its chat template.

    Raises:
        ModelError: the tokenizer does not tell the characters of its tokens.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, template: ChatTemplate) -> None:
        if not tokenizer.is_fast:
            raise ModelError(
                f"tokenizer: {type(tokenizer).__name__} does not tell which characters a token is "
                "of, so that answers of a chat cannot be told from its prompts; a tokenizer.json "
                "beside the model makes a fast one"
            )
        self._tokenizer, self._template = tokenizer, template
        self.special = special_tokens(tokenizer)

    def encode(
        self,
        messages: Sequence[Message],
        first: int,
        where: str,
        arguments: Mapping[str, Any] | None = None,
    ) -> Encoded:
        """Return the token ids of a conversation, those of `apply_chat_template`, and its answers.

        Args:
            messages: the conversation, ending with the assistant's message.
            first: index of the first message that may be an answer.
            where: name of the conversation in errors.
            arguments: the template's arguments for this conversation.

        Raises:
            DataError: the template fails, or leaves out a part of a message; no turn is learned.
            ModelError: for the reasons of `ChatTemplate.render`.
        """
        conversation = _Conversation(self, self._template, messages, where, arguments)
        turns = [i for i in range(first, len(messages)) if is_learned(messages[i])]
        if not turns:
            raise DataError(f"{where}: every answer has the weight 0, so that none is learned")
        spans = [conversation.span(i) for i in turns]
        return Encoded(conversation.ids, spans)

    def split(self, text: str) -> tuple[list[int], list[int]]:
        """Return the tokens of a text without added special tokens, and the character where each
        ends."""
        encoding = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        return list(encoding["input_ids"]), [end for _, end in encoding["offset_mapping"]]

    @cached_property
    def turn_end(self) -> int:
        """Token that ends a turn of the model: the template's, or else the tokenizer's
        end-of-sequence token."""
        end = turn_ending(self._template, self.special).token
        return self.split(end)[0][0] if end else int(self._tokenizer.eos_token_id)

    @cached_property
    def turn_end_text(self) -> str:
        """Text of that token."""
        return str(self._tokenizer.decode([self.turn_end]))


class _Conversation:
    """One conversation as its template writes it."""

    def __init__(
        self,
        encoder: Conversations,
        template: ChatTemplate,
        messages: Sequence[Message],
        where: str,
        arguments: Mapping[str, Any] | None,
    ) -> None:
        self._encoder, self._template = encoder, template
        self._messages, self._where, self._arguments = messages, where, arguments
        self._text = self._render(messages)
        self.ids, self._ends = encoder.split(self._text)
        self._at = 0
        """End of the last answer found, in characters."""
        check_written(messages, self._text, where, self._render)

    def _render(self, messages: Sequence[Message], asks: bool = False) -> str:
        return self._template.render(messages, self._where, self._arguments, asks=asks)

    def span(self, i: int) -> tuple[int, int]:
        """Return the token range of the answer in message `i`; called in the order of messages."""
        start = self._start(i)
        first = self._first_token(start)
        end = self._end(i, start)
        check_answer(self._messages[i], self._text[start:end], self._where)
        self._check_one_end(i)
        self._at = end
        if end > len(self._text):
            return first, len(self.ids)
        return first, self._token_at(end - 1) + 1

    def _token_at(self, character: int) -> int:
        """Return the index of the token that holds a character."""
        return bisect_right(self._ends, character)

    def _first_token(self, start: int) -> int:
        """Return the first token of an answer; some special tokens before it swallow its white
        space."""
        first = self._token_at(start)
        begin = self._ends[first - 1] if first else 0
        return first + bool(begin < start and self._encoder.special.match(self._text, begin))

    def _check_one_end(self, i: int) -> None:
        """Raises: DataError: a message ends with what the template writes after it."""
        end = self._encoder.turn_end_text
        if _said(self._messages[i]).endswith(end):
            raise DataError(
                f"{self._where}: message {i}, of the assistant, ends with {end!r}, which the chat "
                "template writes behind it once more; remove it from the message"
            )

    def _start(self, i: int) -> int:
        """Return the character where the model's turn begins, after the end of a prompt for it."""
        asked = self._render(self._messages[:i], asks=True)
        if self._text.startswith(asked):
            return len(asked)
        # Some templates end a prompt with the beginning of thoughts, which an answer need not have.
        plain = _BEGUN_THOUGHTS.sub("", asked)
        if self._text.startswith(plain) and not self._text.startswith("<think>", len(plain)):
            return len(plain)
        ids, _ = self._encoder.split(asked)
        shared = num_shared(ids, self.ids)
        start = self._ends[shared - 1] if shared else 0
        previous = self._render(self._messages[:i])
        written = num_shared(asked, previous)
        if start > written or (start == written and asked == previous):
            return start
        return self._start_behind(i, _BEGUN_THOUGHTS.sub("", asked[written:]))

    def _start_behind(self, i: int, header: str) -> int:
        """Return where the model's turn begins if the template rewrites earlier messages once more
        follow: after the content of the message before, and after the turn's header."""
        before = _said(self._messages[i - 1])
        marked = _marked(self._messages, i - 1)
        at = self._render(marked).find(SAID)
        if at < 0 or not before:
            raise DataError(
                f"{self._where}: the tokenizer's chat template writes the conversation up to "
                f"message {i} in another way once it goes on, so that its answers cannot be found; "
                "set data.train_on: last, or use another template"
            )
        behind = at + len(before)
        tail = self._render(marked[:i], asks=True).rpartition(SAID)[2]
        same = num_shared(tail, self._text[behind:])
        if header in tail[:same]:
            return behind + same
        # The header may follow other text, such as a line break between two turns.
        begins = self._text.find(header, behind, self._next_said(i - 1, behind))
        return begins + len(header) if begins >= 0 else behind + same

    def _end(self, i: int, start: int) -> int:
        """Return the character after the token that ends the turn; a last turn without one gets
        one."""
        special = self._encoder.special
        behind, last, followed = self._behind_said(i, start)
        # Text that is written even if nothing follows belongs to the turn, the rest to the next.
        same = behind + num_shared(last, followed)
        ends = [m.end() for m in special.finditer(self._text, behind, same)]
        if ends:
            return ends[-1]
        if end_mark := special.search(self._text, behind, self._next_said(i, behind)):
            return end_mark.end()
        if i + 1 < len(self._messages):
            return behind + len(self._text[behind:same].rstrip())
        begins_next = special.search(followed)
        end = self._encoder.split(begins_next[0])[0] if begins_next else [self._encoder.turn_end]
        self.ids.append(end[0])
        return len(self._text) + 1

    def _next_said(self, i: int, behind: int) -> int:
        """Return where the next message's content begins; this turn's end comes before that."""
        if i + 1 == len(self._messages):
            return len(self._text)
        at = self._render(_marked(self._messages, i + 1)).find(SAID, behind)
        return at if at >= 0 and _said(self._messages[i + 1]) else len(self._text)

    def _behind_said(self, i: int, start: int) -> tuple[int, str, str]:
        """Return where a message's content, or else the name of its first call, ends, and the text
        after that if the message is the last one, and if another follows.

        The place is found with a mark instead of the content, whose words may occur elsewhere.

        Args:
            i: index of the message.
            start: character where its turn begins.
        """
        said, marked = _said(self._messages[i]), _marked(self._messages, i)
        if not said and (called := _called(self._messages[i])):
            said, marked = called[0], _marked_call(self._messages, i, 0)
        elif not said:
            content = str(self._messages[i].get("content", ""))
            marked = _with(self._messages, i, content=content + SAID)
        last, followed = self._last_and_followed(marked, i)
        whole = last if i + 1 == len(marked) else followed
        at = whole.find(SAID, start)
        if not said and (at < 0 or self._text[start:at] != whole[start:at]):
            # The template writes nothing for an empty message, or something else.
            last, followed = self._last_and_followed(self._messages, i)
            return start, last[start:], followed[start:]
        if at < 0 or not self._text.startswith(said, at):
            raise DataError(
                f"{self._where}: the tokenizer's chat template writes message {i} otherwise than "
                f"its content, {said!r:.60}, so that its end cannot be found; use another template"
            )
        return at + len(said), last.partition(SAID)[2], followed.partition(SAID)[2]

    def _last_and_followed(self, messages: Sequence[Message], i: int) -> tuple[str, str]:
        """Render a conversation that ends with message `i`, and one in which another message
        follows."""
        through = self._render(messages[: i + 1])
        if i + 1 < len(messages):
            return through, self._render(messages)
        called = [c for c in messages[i].get("tool_calls") or [] if isinstance(c, dict)]
        answers = [
            {"role": "tool", "content": "x", "name": name, "tool_call_id": call.get("id", "x")}
            for call, name in zip(called, _called(messages[i]), strict=True)
        ]
        for more in filter(None, (answers, [_NEXT])):
            with suppress(DataError):  # the template takes no such message here
                return through, self._render([*messages, *more])
        return through, through


@dataclass(frozen=True)
class TurnEnding:
    """How a chat template ends a turn of the model."""

    written: str
    """Text after a turn that another message follows, up to and with the end."""
    token: str | None
    """The special token that ends the last turn, or None."""


def turn_ending(template: ChatTemplate, special: re.Pattern[str]) -> TurnEnding:
    """Find out how a template ends turns, from what it writes after one.

    Most templates end every turn alike. Some have another token for the last turn (gpt-oss), and
    some write none after it, while the token of the next message's role ends the others (GLM-4):
    then that token ends a turn.

    Args:
        special: pattern of the tokenizer's special tokens.
    """
    told = [_ASKED, {"role": "assistant", "content": SAID}]
    last, followed = (_behind_turn(template, m) for m in (told, [*told, _NEXT]))
    shared = num_shared(last, followed)
    if ends := list(special.finditer(last, 0, shared)):
        return TurnEnding(last[: ends[-1].end()], ends[-1][0])
    of_last, of_others = special.search(last), special.search(followed)
    if of_last and of_others:
        return TurnEnding(followed[: of_others.end()], of_last[0])
    only = of_last or of_others
    return TurnEnding("", only[0] if only else None)


def _behind_turn(template: ChatTemplate, messages: Sequence[Message]) -> str:
    """Return what a template writes after a turn of the model; empty if it fails."""
    try:
        text = template.render(messages, "a conversation")
    except DataError:
        return ""
    return text.rpartition(SAID)[2] if SAID in text else ""


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> re.Pattern[str]:
    """Return a pattern that matches the text of any special token of a tokenizer."""
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    names = {token.content for token in added if token.special}
    names |= set(getattr(tokenizer, "all_special_tokens", ()))
    longest_first = sorted(names, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


def is_learned(message: Message) -> bool:
    """Whether a message is one of the model, and not marked with the weight 0 (OpenAI's format)."""
    return message["role"] == "assistant" and message.get("weight", 1) != 0


def check_written(
    messages: Sequence[Message], text: str, where: str, render: Callable[[Sequence[Message]], str]
) -> None:
    """Check that a template has written all messages.

    Args:
        text: the rendered messages.
        render: function that renders messages in the same way.

    Raises:
        DataError: it has left out a message's content, or a call of a tool.
    """
    seen = _seen(messages, text, render)
    at = 0
    for i, message in enumerate(messages):
        said = _said(message)
        # Some templates write what tools say as JSON.
        as_json = (json.dumps(said, ensure_ascii=is_ascii)[1:-1] for is_ascii in (True, False))
        left_out = said not in text and not any(form in text for form in as_json)
        if _may_be_others(message, text) and i not in seen:
            left_out = left_out or not _writes(render, _marked(messages, i))
        # Tools are described before; a call is written behind what was said before it.
        missing = [
            name
            for number, name in enumerate(_called(message))
            if text.find(name, at) < 0 or not _writes(render, _marked_call(messages, i, number))
        ]
        if left_out or missing:
            what = f"{said!r:.60}" if left_out else f"a call of {missing[0]!r:.60}"
            raise DataError(
                f"{where}: the tokenizer's chat template leaves out message {i}, of the "
                f"{message['role']}: {what}; remove it, or use another template"
            )
        if message["role"] != "system":  # which some templates write further behind
            at = max(at, text.find(said, at))


def _may_be_others(message: Message, text: str) -> bool:
    """Whether the words of a message may occur in a text for another reason."""
    said = _said(message)
    is_common = message["role"] == "tool" or len(said) < _FEW or text.count(said) > 1
    return bool(said) and is_common


def _seen(
    messages: Sequence[Message], text: str, render: Callable[[Sequence[Message]], str]
) -> set[int]:
    """Return the messages that a template writes, among those whose words may occur elsewhere. All
    get marks of their own in one rendering, since rendering a long conversation takes long."""
    marked, marks = list(messages), {}
    for i, message in enumerate(messages):
        if _may_be_others(message, text):
            marks[i] = SAID + "".join(chr(ord("a") + int(digit)) for digit in str(i)) + "z"
            marked = _marked(marked, i, marks[i])
    if len(marks) < 2:
        return set()
    try:
        written = render(marked)
    except DataError:  # such as of a template that reads JSON there
        return set()
    return {i for i, mark in marks.items() if mark in written}


def check_answer(message: Message, text: str, where: str) -> None:
    """Raises: DataError: a template has left out a part of an answer that is learned."""
    content = str(message.get("content", ""))
    thoughts = [str(message[name]) for name in _THOUGHTS if message.get(name)]
    for part in [*thoughts, *_THINK.split(content), *_called(message)]:
        if part.strip() not in text:
            raise DataError(
                f"{where}: the tokenizer's chat template leaves out a part of an answer, "
                f"{part.strip()!r:.60}, which would not be learned; use a template that writes it, "
                "or, if it is of an answer before the last one, set data.train_on: last"
            )


def _marked(messages: Sequence[Message], i: int, mark: str = SAID) -> list[Message]:
    """Return the messages with the content of one replaced by a mark, after its thoughts."""
    before, end, said = str(messages[i].get("content", "")).rpartition("</think>")
    return _with(messages, i, content=before + end + said.replace(said.strip(), mark))


def _marked_call(messages: Sequence[Message], i: int, number: int) -> list[Message]:
    """Return the messages with one function name of a call replaced by `SAID`."""
    calls = list(messages[i]["tool_calls"])
    call = calls[number]
    if isinstance(call, dict) and isinstance(call.get("function"), dict):
        calls[number] = {**call, "function": {**call["function"], "name": SAID}}
    elif isinstance(call, dict):
        calls[number] = {**call, "name": SAID}
    return _with(messages, i, tool_calls=calls)


def _with(messages: Sequence[Message], i: int, **fields: Any) -> list[Message]:
    return [*messages[:i], {**messages[i], **fields}, *messages[i + 1 :]]


def _writes(render: Callable[[Sequence[Message]], str], messages: Sequence[Message]) -> bool:
    """Whether a template writes `SAID`, which occurs once in messages; True also if it fails, as a
    template that expects JSON there may."""
    try:
        return SAID in render(messages)
    except DataError:
        return True


def _called(message: Message) -> list[str]:
    """Return the names of the functions that a message calls."""
    calls = message.get("tool_calls") or []
    functions = (call.get("function", call) for call in calls if isinstance(call, dict))
    return [str(function.get("name", "")) for function in functions]


def _said(message: Message) -> str:
    """Return what all templates write of a message: its content without the thoughts before it."""
    return str(message.get("content", "")).rpartition("</think>")[2].strip()


def num_shared(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Count the elements that both begin with."""
    low, high = 0, min(len(one), len(other))
    while low < high:  # slices compare in C
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low
