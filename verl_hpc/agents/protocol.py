"""Requests of programs as what the model continues, and its turns as replies to them.

Requests and replies are those of OpenAI's chat completions and completions and of Anthropic's
messages, in vLLM's classes, with vLLM's parsers of tool calls and reasoning.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from transformers import PreTrainedTokenizerBase
from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.generate.base.protocol import DeltaMessage, DeltaToolCall
from vllm.entrypoints.openai.chat_completion.protocol import (
    ChatCompletionRequest,
    ChatCompletionResponse,
    ChatCompletionResponseChoice,
    ChatCompletionResponseStreamChoice,
    ChatCompletionStreamResponse,
    ChatMessage,
)
from vllm.entrypoints.openai.completion.protocol import (
    CompletionRequest,
    CompletionResponse,
    CompletionResponseChoice,
    CompletionResponseStreamChoice,
    CompletionStreamResponse,
)
from vllm.entrypoints.serve.engine.protocol import UsageInfo
from vllm.reasoning import ReasoningParserManager
from vllm.tool_parsers import ToolParserManager

from verl_hpc.agents.session import Said
from verl_hpc.config.explain import near_or_all
from verl_hpc.data.messages import Message
from verl_hpc.errors import ConfigError
from verl_hpc.rollout.protocol import Response

MODEL = "policy"
"""Name of the model that is trained."""

_READ = {
    *("messages", "prompt", "model", "tools", "tool_choice", "stream", "stream_options", "stop"),
    *("max_tokens", "max_completion_tokens", "chat_template_kwargs", "system", "stop_sequences"),
}
_OF_THE_RUN = {"temperature", "top_p", "top_k", "min_p", "seed"}
"""Parameters whose values are those of the run's rollout, whatever a program asks for."""
_WITHOUT_EFFECT = {
    *("user", "metadata", "store", "service_tier", "parallel_tool_calls", "safety_identifier"),
    *("prompt_cache_key", "cache_salt", "session_id", "request_id"),
}


class RefusedError(Exception):
    """A request that is not answered.

    Args:
        status: HTTP status.
        parameter: parameter that is to blame, if one is.
        code: OpenAI's name of the reason, which clients act upon.
    """

    def __init__(
        self, status: int, message: str, parameter: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.parameter, self.code = status, parameter, code


@dataclass(frozen=True)
class Wanted:
    """A request, whichever protocol it came by."""

    request: Any
    """vLLM's own object, a chat request for Anthropic's messages."""
    said: Said
    arguments: Mapping[str, Any]
    """Arguments of the chat template."""
    most: int | None
    """Most tokens of the turn."""


def chat_of(body: Mapping[str, Any], stop: Sequence[str]) -> Wanted:
    """Read a request for a chat completion.

    Args:
        stop: the run's rollout.stop.

    Raises:
        RefusedError: a parameter is unknown, or would change what the model says.
    """
    _check(body, ChatCompletionRequest, stop)
    request = ChatCompletionRequest.model_validate(body)
    return _wanted(request, body["messages"])


def chat_of_anthropic(body: Mapping[str, Any], stop: Sequence[str]) -> Wanted:
    """Read a request of Anthropic's; like `chat_of`."""
    _check(body, AnthropicMessagesRequest, stop)
    given = AnthropicMessagesRequest.model_validate(body)
    request = AnthropicServingMessages.to_chat_completion_request(given, merge_inline_system=True)
    dumped = request.model_dump(mode="json", include={"messages"})
    return _wanted(request, dumped["messages"])


def text_of(body: Mapping[str, Any], stop: Sequence[str]) -> Wanted:
    """Read a request for a completion of a text; like `chat_of`."""
    _check(body, CompletionRequest, stop)
    request = CompletionRequest.model_validate(body)
    if not isinstance(request.prompt, str):
        raise RefusedError(400, "prompt: expected one text", "prompt")
    return Wanted(request, request.prompt, {}, request.max_tokens)


def _wanted(request: Any, messages: Sequence[Message]) -> Wanted:
    messages = [*map(_with_text, messages)]
    if messages[-1].get("role") == "assistant":
        raise RefusedError(
            400, "messages: the last one is the model's own, which it does not continue", "messages"
        )
    arguments = dict(request.chat_template_kwargs or {})
    if request.tools and request.tool_choice != "none":
        arguments["tools"] = [tool.model_dump(exclude_none=True) for tool in request.tools]
    most = request.max_completion_tokens or request.max_tokens
    if most is not None and most < 1:
        raise RefusedError(400, f"max_tokens = {most}; expected at least 1", "max_tokens")
    return Wanted(request, messages, arguments, most)


def _with_text(message: Message) -> Message:
    """Return a message whose content is a text, not a list of parts.

    Raises:
        RefusedError: a part is none of text.
    """
    message = {name: said for name, said in message.items() if said is not None and said != []}
    if "tool_calls" not in message:
        message.setdefault("content", "")
    content = message.get("content")
    if not isinstance(content, list):
        return message
    for part in content:
        if part.get("type") not in ("text", "input_text"):
            raise RefusedError(
                400, f"messages: a part of type {part.get('type')!r}; expected text", "messages"
            )
    return message | {"content": "".join(part["text"] for part in content)}


def _check(body: Mapping[str, Any], kind: Any, stop: Sequence[str]) -> None:
    fields = kind.model_fields
    if body.get("model", MODEL) != MODEL:
        raise RefusedError(404, f"model = {body['model']!r:.100}; there is {MODEL!r}", "model")
    for name, value in body.items():
        if name in _READ | _OF_THE_RUN | _WITHOUT_EFFECT:
            continue
        if name not in fields:
            raise RefusedError(
                400, f"{name}: no such parameter; {near_or_all(name, sorted(_READ))}", name
            )
        if value is not None and value != fields[name].get_default(call_default_factory=True):
            raise RefusedError(
                400, f"{name} = {value!r:.100} would change what the model says; leave it out", name
            )
    choice = body.get("tool_choice")
    if not (choice is None or choice in ("auto", "none") or choice == {"type": "auto"}):
        raise RefusedError(
            400, f"tool_choice = {choice!r:.100}; the model chooses: auto or none", "tool_choice"
        )
    name = "stop_sequences" if "stop_sequences" in body else "stop"
    asked = body.get(name) or []
    if set([asked] if isinstance(asked, str) else asked) - set(stop):
        raise RefusedError(
            400, f"{name} = {asked!r:.100}; turns end at rollout.stop = {list(stop)}", name
        )


class Replies:
    """Writes turns of the model as replies.

    Args:
        tokenizer: the model's tokenizer.
        ends: tokens that end a turn, which replies leave out.
        tool_parser, reasoning_parser: names of vLLM's parsers; None leaves calls and thoughts in
            the text.

    Raises:
        ConfigError: vLLM has no such parser, or it is not for this tokenizer.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        ends: Collection[int],
        tool_parser: str | None = None,
        reasoning_parser: str | None = None,
    ) -> None:
        self._tokenizer, self._ends = tokenizer, {*ends}
        self._tools = _parser(ToolParserManager, "tool", tool_parser, tokenizer)
        self._reasoning = _parser(ReasoningParserManager, "reasoning", reasoning_parser, tokenizer)

    def text(self, response: Response) -> str:
        """Return a turn as text, without the token that ended it."""
        tokens = list(response.tokens)
        if tokens and tokens[-1] in self._ends:
            tokens.pop()
        return str(self._tokenizer.decode(tokens, skip_special_tokens=False))

    def message(self, response: Response, request: Any) -> Message:
        """Return a turn as a message of the assistant."""
        content: str | None = self.text(response)
        message: Message = {"role": "assistant"}
        if self._reasoning is not None:
            parser = self._reasoning(self._tokenizer)
            message["reasoning"], content = parser.extract_reasoning(content, request)
        if self._tools is not None and request.tools and request.tool_choice != "none":
            _hide_failures()
            parser = self._tools(self._tokenizer, request.tools)
            called = parser.extract_tool_calls(content or "", request)
            if called.tools_called:
                content = called.content
                message["tool_calls"] = [call.model_dump() for call in called.tool_calls]
        return message | {"content": content}


@cache
def _hide_failures() -> None:
    """Have vLLM print no traceback of each call that does not parse, which stays in its text. An
    engine that starts would undo this."""
    logging.getLogger("vllm.tool_parsers").setLevel(logging.CRITICAL)


def _parser(manager: Any, kind: str, name: str | None, tokenizer: PreTrainedTokenizerBase) -> Any:
    """Return the class of a parser, of which each turn gets an object of its own."""
    if name is None:
        return None
    setting = f"rollout.program.{kind}_parser = {name}"
    known = manager.list_registered()
    if name not in known:
        raise ConfigError(f"{setting}: vLLM has no such parser; {near_or_all(name, known)}")
    parser = getattr(manager, f"get_{kind}_parser")(name)
    try:
        parser(tokenizer)
    except Exception as error:  # each one looks for its own tokens
        raise ConfigError(f"{setting}: it is not for this model's tokenizer: {error}") from error
    return parser


def usage_of(num_prompt: int, response: Response) -> UsageInfo:
    """Return the numbers of tokens that a reply states."""
    num_new = len(response.tokens)
    return UsageInfo(
        prompt_tokens=num_prompt, completion_tokens=num_new, total_tokens=num_prompt + num_new
    )


def chat_reply(message: Message, response: Response, num_prompt: int) -> ChatCompletionResponse:
    """Return a turn as a chat completion.

    Args:
        message: the turn as a message.
        num_prompt: number of tokens before it.
    """
    reason = "tool_calls" if message.get("tool_calls") else response.finish_reason
    choice = ChatCompletionResponseChoice(
        index=0, message=ChatMessage(**message), finish_reason=reason
    )
    usage = usage_of(num_prompt, response)
    return ChatCompletionResponse(model=MODEL, choices=[choice], usage=usage)


def text_reply(text: str, response: Response, num_prompt: int) -> CompletionResponse:
    """Return a turn as a completion of a text."""
    choice = CompletionResponseChoice(index=0, text=text, finish_reason=response.finish_reason)
    usage = usage_of(num_prompt, response)
    return CompletionResponse(model=MODEL, choices=[choice], usage=usage)


def anthropic_reply(reply: ChatCompletionResponse) -> Any:
    """Return a chat completion as a message of Anthropic's."""
    return AnthropicServingMessages.messages_full_converter(None, reply)


def chat_events(reply: ChatCompletionResponse, with_usage: bool) -> Iterator[str]:
    """Yield a chat completion as the events of a stream, which come when the turn has ended: its
    role, thoughts, text and calls are one each."""
    (choice,) = reply.choices
    said, of_reply = choice.message, {"id": reply.id, "created": reply.created, "model": MODEL}
    calls = [
        DeltaToolCall(index=i, **call.model_dump()) for i, call in enumerate(said.tool_calls or ())
    ]
    deltas = [DeltaMessage(role="assistant")]
    deltas += [DeltaMessage(reasoning=said.reasoning)] if said.reasoning else []
    deltas += [DeltaMessage(content=said.content)] if said.content else []
    deltas += [DeltaMessage(tool_calls=calls)] if calls else []
    for delta in (*deltas, DeltaMessage()):
        reason = None if delta.model_fields_set else choice.finish_reason
        part = ChatCompletionResponseStreamChoice(index=0, delta=delta, finish_reason=reason)
        yield _event(ChatCompletionStreamResponse(choices=[part], **of_reply))
    if with_usage:
        yield _event(ChatCompletionStreamResponse(choices=[], usage=reply.usage, **of_reply))
    yield _LAST_EVENT


def text_events(reply: CompletionResponse) -> Iterator[str]:
    """Yield a completion of a text as the events of a stream."""
    (choice,) = reply.choices
    streamed = CompletionResponseStreamChoice(
        index=0, text=choice.text, finish_reason=choice.finish_reason
    )
    yield _event(CompletionStreamResponse(id=reply.id, model=MODEL, choices=[streamed]))
    yield _LAST_EVENT


def anthropic_events(reply: ChatCompletionResponse) -> AsyncIterator[str]:
    """Yield a chat completion as the events of a stream of Anthropic's."""

    async def events() -> AsyncIterator[str]:
        for event in chat_events(reply, with_usage=True):
            yield event

    converted: AsyncIterator[str] = AnthropicServingMessages.message_stream_converter(
        None, events()
    )
    return converted


_LAST_EVENT = "data: [DONE]\n\n"


def _event(chunk: Any) -> str:
    return f"data: {chunk.model_dump_json(exclude_none=True)}\n\n"
