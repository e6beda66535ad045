"""A tokenizer's chat template: from messages to the text that a model reads."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any

from verl_hpc.data.messages import PLACEHOLDER, Message
from verl_hpc.errors import ConfigError, DataError, ModelError
from verl_hpc.runtime.limit import TimeLimitExceeded, time_limit

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TEMPLATE_S = 20.0
"""Longest that rendering may take: a chat template is a program, and needs milliseconds."""
_PROBED = "verlhpccalledthis"
"""Function name in messages that probe a template."""
_JSON = '{"x":1,"y":2}'
_NO_TEXTS: tuple[Mapping[str, str | None], ...] = ({}, {"content": ""}, {"content": None})


class ChatTemplate:
    """A tokenizer's chat template with a run's arguments and a fixed time of day.

    Templates may ask for today's date (`strftime_now`, as those of Llama 3.1 and gpt-oss do). A
    whole run uses the same time, so that a step has the same prompts whenever it is computed.

    Args:
        tokenizer: with or without a template.
        arguments: what the template is given besides messages, by name.
        time: the time that templates get; None is now.

    Raises:
        ConfigError: the template reads no argument of that name.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        arguments: Mapping[str, Any] | None = None,
        time: datetime | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._arguments = dict(arguments or {})
        self.time = time or datetime.now().astimezone()
        for name in self._arguments:
            if not self._reads(name):
                raise ConfigError(
                    f"data.chat_template_kwargs.{name}: the tokenizer's chat template reads no "
                    f"{name}; check the name in its chat_template, or leave it out"
                )

    @property
    def exists(self) -> bool:
        """Whether the tokenizer has a template."""
        return self._tokenizer.chat_template is not None

    def _reads(self, name: str) -> bool:
        return name in self._names

    @cached_property
    def _names(self) -> set[str]:
        """Names of the arguments that the template reads."""
        templates = self._tokenizer.chat_template
        texts = templates.values() if isinstance(templates, dict) else [templates or ""]
        return set().union(*map(_names_read, texts))

    def render(
        self,
        messages: Sequence[Message],
        where: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        asks: bool = False,
        continues: bool = False,
    ) -> str:
        """Return the text that the template makes of messages.

        Args:
            messages: at least one.
            where: what errors call them.
            arguments: arguments for these messages, which override the run's of the same names.
            asks: end with the beginning of the model's next turn (`add_generation_prompt`).
            continues: end within the last message (`continue_final_message`).

        Raises:
            DataError: the tokenizer has no template, or it fails.
            ModelError: the template does not end.
        """
        if not self.exists:
            raise DataError(
                f"{where}: the prompt needs a chat template and the tokenizer has none; "
                "use the tokenizer of a chat model, or set data.chat to never"
            )
        for name in arguments or {}:
            # verl's data sets have enable_thinking as a column, whatever the model.
            if name != "enable_thinking" and not self._reads(name):
                raise DataError(
                    f"{where}: the tokenizer's chat template reads no {name}, which the row gives "
                    "it; check the name, leave it out, or use a template that reads it"
                )
        given = {**self._arguments, **(arguments or {})}
        if continues:
            given["continue_final_message"] = True
        if self._reads("strftime_now"):
            given["strftime_now"] = self.time.strftime
        try:
            with time_limit(TEMPLATE_S):
                if any(message.get("tool_calls") for message in messages):
                    messages = [self._call_form.applied(message) for message in messages]
                text = self._tokenizer.apply_chat_template(
                    messages, add_generation_prompt=asks, tokenize=False, **given
                )
        except TimeLimitExceeded as error:
            raise ModelError(  # it concerns all rows, so that the first one ends the check
                f"{where}: the tokenizer's chat template did not end within {TEMPLATE_S:g} s"
            ) from error
        except Exception as error:  # a template is a program
            raise DataError(
                f"{where}: the tokenizer's chat template failed: {type(error).__name__}: {error}"
            ) from error
        return str(text)

    def with_images(self, message: Message, where: str) -> Message:
        """Return a message with what the template writes for an image in place of each `<image>`.

        Raises:
            DataError: the template writes none.
        """
        said = message.get("content")
        if not isinstance(said, str) or PLACEHOLDER not in said:
            return message
        mark, trims = self._image_mark
        if not mark:
            raise DataError(
                f"{where}: the tokenizer's chat template writes nothing for a part of type image; "
                "use the model's own template"
            )
        texts = said.split(PLACEHOLDER)
        return message | {"content": mark.join(t.strip() if trims else t for t in texts)}

    @cached_property
    def _image_mark(self) -> tuple[str, bool]:
        """What the template writes for an image, and whether it trims the texts around it."""
        words = [{"type": "text", "text": text} for text in (f"{_PROBED} ", f" {_PROBED}")]
        parts = [words[0], {"type": "image"}, words[1]]
        try:
            text = self.render([{"role": "user", "content": parts}], "")
        except DataError:  # it reads texts alone
            return "", False
        between = text.partition(_PROBED)[2].rpartition(_PROBED)[0]
        trims = not (between.startswith(" ") and between.endswith(" "))
        return (between if trims else between[1:-1]).strip(" "), trims

    @cached_property
    def _call_form(self) -> _CallForm:
        """Find the first form of a call without text that the template writes.

        Templates disagree (transformers issue 45419): some write arguments of a mapping as JSON,
        and a text of JSON as a text once more; others only join texts. A text that is missing,
        empty or null makes one or another of them fail, or leave the call out.
        """
        for form in (_CallForm(*pair) for pair in product((True, False), _NO_TEXTS)):
            text = self._probed(form, {"x": 1})
            if _PROBED in text and "None" not in text:
                keeps = form.as_mapping and _JSON in self._probed(replace(form, keeps=True), _JSON)
                return replace(form, keeps=keeps)
        return _CallForm(True, {"content": ""})

    def _probed(self, form: _CallForm, arguments: Any) -> str:
        """Return what the template writes of a call in this form; empty if it fails."""
        call = {"type": "function", "function": {"name": _PROBED, "arguments": arguments}}
        message = form.applied({"role": "assistant", "tool_calls": [call]})
        try:
            text = self._tokenizer.apply_chat_template(
                [{"role": "user", "content": "x"}, message],
                add_generation_prompt=False,
                tokenize=False,
            )
        except Exception:
            return ""
        return str(text)


def _names_read(template: str) -> set[str]:
    """Return the names that a template reads and does not set itself, or all words of a malformed
    template, which fails later in use."""
    from jinja2 import Environment, TemplateSyntaxError, meta

    # A tag of transformers, which marks what the model writes.
    plain = re.sub(r"{%-?\s*(?:end)?generation\s*-?%}", "", template)
    try:
        tree = Environment(extensions=["jinja2.ext.loopcontrols"]).parse(plain)  # noqa: S701
    except TemplateSyntaxError:
        return set(re.findall(r"\w+", template))
    return meta.find_undeclared_variables(tree)


@dataclass(frozen=True)
class _CallForm:
    """How messages that call tools are given to a template."""

    as_mapping: bool
    """Whether arguments are mappings, and not texts of JSON."""
    no_text: Mapping[str, str | None]
    """Fields that replace the content of a call without text."""
    keeps: bool = False
    """Whether arguments stay as given, mappings or JSON texts."""

    def applied(self, message: Message) -> Message:
        """Return the message in this form if it calls tools, else unchanged."""
        calls = message.get("tool_calls")
        if not isinstance(calls, list) or not calls:
            return message
        convert = _as_text if not self.as_mapping else _as_given if self.keeps else _parsed
        others = {k: v for k, v in message.items() if k != "content" or v}
        no_text = {} if "content" in others else self.no_text
        return {**others, **no_text, "tool_calls": [_converted(call, convert) for call in calls]}


def _converted(call: Any, convert: Callable[[Any], Any]) -> Any:
    if not isinstance(call, dict):
        return call
    if isinstance(call.get("function"), dict):
        return {**call, "function": _converted(call["function"], convert)}
    return {**call, "arguments": convert(call["arguments"])} if "arguments" in call else call


def _as_given(arguments: Any) -> Any:
    return arguments


def _as_text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _parsed(arguments: Any) -> Any:
    """Parse arguments that are the JSON text of a mapping; return others unchanged."""
    if not isinstance(arguments, str):
        return arguments
    try:
        parsed = json.loads(arguments)
    except ValueError:
        return arguments
    return parsed if isinstance(parsed, dict) else arguments
