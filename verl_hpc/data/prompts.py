"""Encode problems as token ids."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Literal, Protocol

from verl_hpc.config.data import DataConfig
from verl_hpc.data.chat_template import ChatTemplate
from verl_hpc.data.messages import Message, text_of
from verl_hpc.data.problem import PAIR_COLUMNS, Answer, Problem, Prompt
from verl_hpc.data.turns import Conversations, check_written, special_tokens
from verl_hpc.errors import DataError
from verl_hpc.hf.pictures import ImagePrompt, Picture

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Chat = Literal["auto", "always", "never"]
Overlong = Literal["error", "drop", "truncate_left"]


@dataclass(frozen=True)
class EncodedAnswer:
    """An answer to a prompt, as token ids."""

    ids: list[int]
    mask: list[int]
    """1 for each token that the model is to write, 0 for what others say between its turns."""


class ImageTokens(Protocol):
    """What a model's processor makes of images, as tokens."""

    def expanded(self, ids: list[int], pictures: Sequence[Picture], where: str) -> list[int]:
        """Return a prompt with as many tokens for each image as the model has features of it.

        Args:
            ids: a prompt in which the model's own placeholder stands for each image.
            pictures: the images.
            where: name of the row in errors.

        Raises:
            DataError: an image cannot be read, or there are other placeholders than images.
            ModelError: the model's directory has no processor.
        """

    def num_tokens(self, ids: Sequence[int]) -> int:
        """Count the tokens of images in a prompt with some."""


class Encoder:
    """Encodes problems as a run reads them.

    ========  ==============================  ===================
    chat      a chat list                     a string
    ========  ==============================  ===================
    auto      chat template                   as it stands
    always    chat template                   as one user message
    never     its contents, one a paragraph   as it stands
    ========  ==============================  ===================

    A text that stands as it is gets the special tokens that the tokenizer begins texts with, once,
    and an answer to it ends with the tokenizer's end-of-sequence token. In a chat, prompts and
    answers are what the template writes (`turns`).

    Args:
        tokenizer: of the model.
        chat: setting data.chat.
        template: the tokenizer's, with the arguments of the run; None gives it none.
        system_prompt: a system message for chats that begin with none.
        images: the model's processor; None for a model that reads no images.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        chat: Chat = "auto",
        template: ChatTemplate | None = None,
        system_prompt: str | None = None,
        images: ImageTokens | None = None,
    ) -> None:
        self.tokenizer, self._chat, self._images = tokenizer, chat, images
        self.template = template or ChatTemplate(tokenizer)
        self._system_prompt = system_prompt

    @classmethod
    def from_config(
        cls,
        tokenizer: PreTrainedTokenizerBase,
        config: DataConfig,
        time: datetime | None = None,
        images: ImageTokens | None = None,
    ) -> Encoder:
        """The encoder of a run.

        Args:
            time: the current time for chat templates, the same on all ranks.
            images: the model's processor, if it reads images.

        Raises:
            ConfigError: the chat template does not read an argument that the run gives it.
        """
        template = ChatTemplate(tokenizer, config.chat_template_kwargs, time)
        return cls(tokenizer, config.chat, template, config.system_prompt, images)

    @cached_property
    def _conversations(self) -> Conversations:
        return Conversations(self.tokenizer, self.template)

    @cached_property
    def _special(self) -> re.Pattern[str]:
        return special_tokens(self.tokenizer)

    @property
    def turn_end(self) -> int | None:
        """Token with which the chat template ends a turn; None without a usable template."""
        if self._chat == "never" or not self.template.exists or not self.tokenizer.is_fast:
            return None
        return self._conversations.turn_end

    def is_chat(self, problem: Problem) -> bool:
        """Whether a problem goes through the chat template."""
        is_list = not isinstance(problem.prompt, str)
        return self._chat == "always" or (self._chat == "auto" and is_list)

    def prompt(self, problem: Problem) -> list[int]:
        """Token ids of a prompt, up to where the model's answer begins.

        A chat that ends with a message of the assistant is continued within that message.

        Raises:
            DataError: a chat template is needed and the tokenizer has none, or it fails; a message
                that it leaves out; no tokens; images that cannot be read.
            ModelError: the chat template does not end; the processor is not there.
        """
        return self._expanded(self.unexpanded(problem), problem)

    @property
    def reads_images(self) -> bool:
        return self._images is not None

    def image_prompt(self, problem: Problem, prompt: list[int]) -> ImagePrompt | None:
        """Return the images of a problem.

        Args:
            prompt: its token ids, with those of images.
        """
        if self._images is None or not problem.images:
            return None
        count = self._images.num_tokens(prompt)
        return ImagePrompt(problem.images, count, self.unexpanded(problem))

    def _expanded(self, ids: list[int], problem: Problem) -> list[int]:
        if self._images is not None:
            return self._images.expanded(ids, problem.images, problem.where)
        if problem.images:
            raise DataError(
                f"{problem.where}: the row has images, and the model reads none; choose a model "
                "that does (docs/models.md), or leave the images out"
            )
        return ids

    def unexpanded(self, problem: Problem) -> list[int]:
        """Token ids of a prompt with the model's own placeholder in place of each image's tokens.

        Raises:
            DataError, ModelError: for the reasons of `prompt`.
        """
        ids = self._chat_prompt(problem) if self.is_chat(problem) else self._text_prompt(problem)
        if not ids:
            raise DataError(
                f"{problem.where}: the prompt has no tokens; is the tokenizer whole, and its chat "
                "template not empty?"
            )
        return ids

    def example(
        self, problem: Problem, num_answers: int = 1
    ) -> tuple[list[int], list[EncodedAnswer]]:
        """Token ids of a prompt and of its answers.

        Args:
            num_answers: 1 is the answer to learn from, 2 are the chosen and the rejected one of a
                pair.

        Raises:
            DataError: for the reasons of `prompt`, or if the problem has no answer, or no pair of
                them, or if the chat template leaves out a part of an answer.
        """
        answers = _answers_of(problem, num_answers)
        if self.is_chat(problem):
            return self._chat_example(problem, answers)
        encoded = []
        for answer in answers:
            text = _plain(answer, problem.where)
            if not isinstance(answer, str) and len(answer) > 1:
                raise DataError(
                    f"{problem.where}: the answer has {len(answer)} messages, and without a chat "
                    "template nothing tells what others say between them; set data.chat: auto, "
                    "or data.train_on: last"
                )
            ids = self._with_end(text)
            encoded.append(EncodedAnswer(ids, [1] * len(ids)))
        return self.prompt(problem), encoded

    def _with_end(self, text: str) -> list[int]:
        """Return the tokens of an answer without a template, with an end-of-turn token. A text that
        was rendered by a template already has one, and maybe a line break after it, which no model
        writes."""
        forms = (text, text.rstrip()) if text != text.rstrip() else (text,)
        encoded = [self.continued(t) for t in forms]
        ends = (self.tokenizer.eos_token_id, self.turn_end)
        ended = next((ids for ids in encoded if ids and ids[-1] in ends), None)
        return ended or [*encoded[0], self.tokenizer.eos_token_id]

    def continued(self, text: str, behind: str = "\n") -> list[int]:
        """Return the tokens of a text that follows a text ending with `behind`. Tokenizers such as
        Llama 2's begin every text with a blank, which is left out here."""
        bare = self._bare(text)
        if not self._adds_a_blank:
            return bare
        before, both = self._bare(behind), self._bare(behind + text)
        return both[len(before) :] if both[: len(before)] == before else bare

    @cached_property
    def _adds_a_blank(self) -> bool:
        before, both = self._bare("\n"), self._bare("\nx")
        return both[: len(before)] == before and both[len(before) :] != self._bare("x")

    def _bare(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def _chat_prompt(self, problem: Problem) -> list[int]:
        messages = self._messages(problem)
        continues = messages[-1]["role"] == "assistant"

        def render(messages: Sequence[Message]) -> str:
            return self.template.render(
                messages,
                problem.where,
                problem.template_arguments,
                asks=not continues,
                continues=continues,
            )

        text = render(messages)
        check_written(messages, text, problem.where, render)
        if isinstance(problem.prompt, str):
            self._check_rendered_once(problem.prompt.strip(), text, problem.where)
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def _check_rendered_once(self, prompt: str, text: str, where: str) -> None:
        """Raises: DataError: a text already ends as the template ends it, so that it was rendered
        before."""
        behind = text.rpartition(prompt)[2].strip()
        if self._special.search(behind) and prompt.endswith(behind):
            raise DataError(
                f"{where}: the prompt ends with {behind!r}, as if the chat template had written it "
                "already; set data.chat to auto, or give prompts without it"
            )

    def _text_prompt(self, problem: Problem) -> list[int]:
        if (left_out := self._left_out(problem)) is not None:
            raise DataError(
                f"{problem.where}: {left_out}, and its prompt is a text that no chat template is "
                "applied to; set data.chat: always, or leave it out"
            )
        return self.text_ids(_plain(problem.prompt, problem.where))

    def _left_out(self, problem: Problem) -> str | None:
        """Describe what only a chat template would write and is left out, or None."""
        if problem.images:
            return "the row has images"
        if problem.system is not None:
            return "the row has a system message"
        if self._system_prompt is not None:
            return "data.system_prompt is set"
        if problem.template_arguments:
            return f"the row gives a chat template {', '.join(problem.template_arguments)}"
        return None

    def text_ids(self, text: str) -> list[int]:
        """Return the tokens of a text to continue: with a single beginning-of-text token, even if
        the text brings its own, and without the end that some tokenizers add to every text."""
        ids = list(self.tokenizer.encode(text))
        end = self.tokenizer.eos_token_id
        if not (ids[-1:] == [end] or self._special.match(text)):
            return ids
        bare = list(self.tokenizer.encode(text, add_special_tokens=False))
        if ids[-1:] == [end] and ids[-1 - len(bare) : -1] == bare:
            ids = ids[:-1]
        begins = ids[: len(ids) - len(bare)]
        return bare if begins and bare[: len(begins)] == begins else ids

    def _chat_example(
        self, problem: Problem, answers: Sequence[Answer]
    ) -> tuple[list[int], list[EncodedAnswer]]:
        messages = self._messages(problem)
        if isinstance(problem.prompt, str):
            text = self.template.render(
                messages, problem.where, problem.template_arguments, asks=True
            )
            self._check_rendered_once(problem.prompt.strip(), text, problem.where)
        encoded = []
        for answer in answers:
            said = _as_messages(answer)
            encoded.append(
                self._conversations.encode(
                    [*messages, *said], len(messages), problem.where, problem.template_arguments
                )
            )
        # A template may write the prompt differently if the answer after it begins differently.
        starts = [e.ids[: e.spans[0][0]] for e in encoded]
        length = next(
            (i for i, tokens in enumerate(zip(*starts, strict=False)) if len(set(tokens)) > 1),
            min(map(len, starts)),
        )
        if not length:
            raise DataError(f"{problem.where}: the chat template writes nothing before an answer")
        result = []
        for one in encoded:
            mask = [0] * len(one.ids)
            for first, end in one.spans:
                mask[first:end] = [1] * (end - first)
            last = one.spans[-1][1]
            result.append(EncodedAnswer(one.ids[length:last], mask[length:last]))
        return self._expanded(encoded[0].ids[:length], problem), result

    def _messages(self, problem: Problem) -> list[Message]:
        """Return the prompt as messages, with a system message if there is one."""
        prompt = problem.prompt
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        if problem.images and self._images is not None:
            messages = [self.template.with_images(m, problem.where) for m in messages]
        system = problem.system or self._system_prompt
        if messages[0]["role"] in ("system", "developer"):
            said = str(messages[0].get("content", "")).strip()
            if problem.system is not None and problem.system.strip() != said:
                raise DataError(
                    f"{problem.where}: the row's system message, {problem.system!r:.60}, is not "
                    f"that of its conversation, {said!r:.60}; remove one of them"
                )
            return list(messages)
        if system is None:
            return list(messages)
        return [{"role": "system", "content": system}, *messages]


def fit_prompt(
    ids: list[int], max_tokens: int, policy: Overlong, where: str, has_images: bool = False
) -> list[int] | None:
    """Return a prompt that is short enough, or None if `policy` drops it.

    Args:
        where: name of the row in errors.
        has_images: whether some of its tokens are of images, which are not cut.

    Raises:
        DataError: the prompt is too long and `policy` is error, or would cut images.
    """
    if len(ids) <= max_tokens:
        return ids
    if policy == "drop":
        return None
    if policy == "truncate_left" and not has_images:
        return ids[-max_tokens:]
    others = "drop (images are not cut)" if has_images else "drop or truncate_left"
    raise DataError(
        f"{where}: the prompt has {len(ids)} tokens, rollout.max_prompt_tokens = {max_tokens}; "
        f"raise it, or set rollout.overlong_prompt to {others}"
    )


def _answers_of(problem: Problem, num_answers: int) -> list[Answer]:
    answers = [problem.answer, problem.rejected][:num_answers]
    if num_answers == 2 and None in answers:
        raise DataError(
            f"{problem.where}: no pair of answers; columns {PAIR_COLUMNS[0]} and {PAIR_COLUMNS[1]} "
            "have to be there"
        )
    if None in answers:
        raise DataError(
            f"{problem.where}: no answer to imitate; set answer_key of the data set to the column "
            "of its text, where that is neither answer nor response"
        )
    return [answer for answer in answers if answer is not None]


def _plain(said: Prompt | Answer, where: str) -> str:
    """Return a text, or the contents of messages as paragraphs.

    Raises:
        DataError: a message calls tools, which only a chat template writes.
    """
    if isinstance(said, str):
        return said
    if any(message.get("tool_calls") for message in said):
        raise DataError(
            f"{where}: a message calls tools, which data.chat: never would leave out; set "
            "data.chat: auto"
        )
    return text_of(said)


def _as_messages(answer: Answer) -> list[Message]:
    return [{"role": "assistant", "content": answer}] if isinstance(answer, str) else answer
