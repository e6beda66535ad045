"""The endpoint as the public clients of OpenAI and Anthropic see it, with a model that repeats."""

import json
import re
import socket
import threading
from contextlib import contextmanager

import anthropic
import httpx
import httpx2
import openai
import pytest

from tests.unit.data.public_templates import tokenizer_of
from tests.unit.waiting import wait_for
from verl_hpc.agents.endpoint import LARGEST_REQUEST, Endpoint
from verl_hpc.agents.protocol import Replies
from verl_hpc.agents.session import Session, Writer
from verl_hpc.data.prompts import Encoder
from verl_hpc.errors import ConfigError
from verl_hpc.rollout.protocol import Response

TOKENIZER = tokenizer_of("qwen2_5")
ENCODER = Encoder(TOKENIZER)
END = ENCODER.turn_end
CALL = '<tool_call>\n{"name": "add", "arguments": {"x": 1}}\n</tool_call>'
ADD = {"name": "add", "description": "adds", "parameters": {"type": "object", "properties": {}}}


def tokens_of(text):
    return TOKENIZER.encode(text, add_special_tokens=False)


class Model:
    """Says the same to every ask, in a thread as the engine's."""

    def __init__(self, endpoint, says):
        self.endpoint, self.says, self.asks = endpoint, says, []
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        while not self._ends.wait(0.001):
            for ask in self.endpoint.asks():
                self.asks.append(ask)
                tokens = [*tokens_of(self.says), END]
                if self.says == "too long":
                    tokens = tokens[: ask.most]
                reason = "stop" if tokens[-1] == END else "length"
                log_probs = (-1.0,) * len(tokens)
                self.endpoint.answer(ask.number, Response(tuple(tokens), log_probs, reason))

    def end(self):
        self._ends.set()
        self._thread.join()


@contextmanager
def serving(says, most_turns=8, longest=3000, **options):
    replies = Replies(TOKENIZER, {END}, **options)
    endpoint = Endpoint(replies, longest, most_turns, ["!"])
    endpoint.start()
    model = Model(endpoint, says)
    try:
        yield endpoint, model
    finally:
        model.end()
        endpoint.stop()


def session():
    return Session(Writer(ENCODER))


def http(endpoint):
    return httpx.Client(transport=httpx.HTTPTransport(uds=endpoint.address), timeout=20)


def of_openai(endpoint, key):
    return openai.OpenAI(
        api_key=key, base_url="http://model/v1", http_client=http(endpoint), max_retries=0
    )


def of_anthropic(endpoint, key):
    client = httpx2.Client(transport=httpx2.HTTPTransport(uds=endpoint.address), timeout=20)
    return anthropic.Anthropic(
        api_key=key, base_url="http://model", http_client=client, max_retries=0
    )


def test_a_chat_with_tools_whole_and_streamed_is_one_row():
    with serving(f"yes {CALL}", tool_parser="hermes") as (endpoint, model):
        recorded = session()
        client = of_openai(endpoint, endpoint.open(0, recorded))
        assert [card.id for card in client.models.list()] == ["policy"]
        messages = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
        given = {"model": "policy", "tools": [{"type": "function", "function": ADD}]}
        reply = client.chat.completions.create(messages=messages, temperature=0.3, **given)
        (choice,) = reply.choices
        assert choice.finish_reason == "tool_calls"
        (call,) = choice.message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("add", {"x": 1})
        assert reply.usage.completion_tokens == len(tokens_of(model.says)) + 1
        assert reply.usage.prompt_tokens == len(model.asks[0].tokens)
        messages += [choice.message.model_dump(exclude_none=True)]
        messages += [{"role": "tool", "content": "7", "tool_call_id": call.id}]
        options = {"include_usage": True}
        with client.chat.completions.create(
            messages=messages, stream=True, stream_options=options, **given
        ) as stream:
            chunks = [*stream]
        assert chunks[-1].usage.completion_tokens == reply.usage.completion_tokens
        calls = [c.choices[0].delta.tool_calls for c in chunks if c.choices]
        ((streamed,),) = filter(None, calls)
        assert streamed.function.name == "add"
        (row,) = recorded.branches({})
        assert sum(row.response.mask) == 2 * reply.usage.completion_tokens
        first = model.asks[0].tokens
        assert model.asks[1].tokens[: len(first)] == first == row.prompt


def test_fields_that_say_nothing_are_as_if_left_out():
    """Clients send a reply back with all of its fields, of which the template writes a null."""
    with serving(f"yes {CALL}", tool_parser="hermes") as (endpoint, model):
        recorded = Session(Writer(Encoder(tokenizer_of("llama3_1"))))
        client = of_openai(endpoint, endpoint.open(0, recorded))
        given = {"model": "policy", "tools": [{"type": "function", "function": ADD}]}
        asked = {"role": "user", "content": "hi"}
        calls = [{"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}}]
        result = {"role": "tool", "tool_call_id": "1", "content": "7"}
        for message in (
            {"content": "", "tool_calls": calls},
            {"content": None, "tool_calls": calls, "function_call": None, "refusal": None},
            {"content": "so"},
            {"content": "so", "tool_calls": None},
            {"content": "so", "tool_calls": []},
        ):
            said = [asked, {"role": "assistant", **message}, result]
            client.chat.completions.create(messages=said, **given)
        with_calls, *texts = [[ask.tokens for ask in model.asks][i : i + 2] for i in (0, 2, 3)]
        assert all(first == second for first, second in (with_calls, *texts))


def test_messages_of_anthropic_whole_and_streamed():
    with serving(CALL, tool_parser="hermes") as (endpoint, _):
        recorded = session()
        client = of_anthropic(endpoint, endpoint.open(0, recorded))
        tool = {"name": "add", "input_schema": {"type": "object", "properties": {}}}
        given = {"model": "policy", "max_tokens": 300, "tools": [tool], "system": "Be brief."}
        messages = [{"role": "user", "content": "hi"}]
        reply = client.messages.create(messages=messages, **given)
        assert reply.stop_reason == "tool_use"
        (call,) = reply.content
        assert (call.name, call.input) == ("add", {"x": 1})
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "7"}
        messages += [
            {"role": "assistant", "content": [call.model_dump(include={"type", "id", "name",
                                                                        "input"})]},
            {"role": "user", "content": [result]},
        ]  # fmt: skip
        with client.messages.stream(messages=messages, **given) as stream:
            final = stream.get_final_message()
        assert final.content[0].input == {"x": 1}
        assert len(recorded.branches({})) == 1


def test_texts():
    with serving("yes") as (endpoint, _):
        recorded = session()
        client = of_openai(endpoint, endpoint.open(0, recorded))
        text = "hi "
        for stream in (False, True):
            reply = client.completions.create(model="policy", prompt=text, stream=stream)
            text += (next(iter(reply)) if stream else reply).choices[0].text + " more "
        assert len(recorded.branches({})) == 1


def test_thoughts_are_apart():
    says = "<think>\nso\n</think>\n\nyes"
    with serving(says, reasoning_parser="qwen3") as (endpoint, _):
        client = of_openai(endpoint, endpoint.open(0, session()))
        messages = [{"role": "user", "content": "hi"}]
        message = client.chat.completions.create(model="policy", messages=messages).choices[0]
        assert message.message.content.strip() == "yes"
        assert message.message.reasoning.strip() == "so"


REFUSED = [
    ({"model": "gpt-4"}, 404, "there is 'policy'"),
    ({"top_logprobs": 3}, 400, "top_logprobs = 3 would change"),
    ({"n": 2}, 400, "n = 2 would change"),
    ({"frequency_penalty": 0.5}, 400, "frequency_penalty = 0.5 would change"),
    ({"response_format": {"type": "json_object"}}, 400, "response_format"),
    ({"tool_choice": "required"}, 400, "auto or none"),
    ({"stop": ["\n"]}, 400, "rollout.stop = \\['!'\\]"),
    ({"temprature": 1}, 400, "temprature: no such parameter"),
    ({"messages": []}, 400, "malformed"),
    ({"messages": [{"role": "assistant", "content": "so"}]}, 400, "does not continue"),
    ({"messages": [{"role": "user", "content": "x" * 4000}]}, 400, "tokens, and at most 3000"),
    ({"max_tokens": -3}, 400, "max_tokens = -3; expected at least 1"),
]


def test_what_is_refused_is_named_and_is_no_turn():
    with serving("yes") as (endpoint, model):
        recorded = session()
        key = endpoint.open(0, recorded)
        body = {"model": "policy", "messages": [{"role": "user", "content": "hi"}]}
        with http(endpoint) as client:
            for change, status, words in REFUSED:
                url, headers = (
                    "http://model/v1/chat/completions",
                    {"Authorization": f"Bearer {key}"},
                )
                reply = client.post(url, headers=headers, json=body | change)
                assert reply.status_code == status, (change, reply.text)

                assert re.search(words, reply.json()["error"]["message"]), reply.text
            assert client.post(url, headers=headers, content=b"{").status_code == 400
            assert client.post(url, headers=headers, content=b"[" * 10**5).status_code == 400
            other = {"Authorization": f"Bearer {key[:-1]}"}
            assert client.post(url, headers=other, json=body).status_code == 401
            assert client.get("http://model/v1/models").status_code == 401
            large = (b" " * 2**20 for _ in range(LARGEST_REQUEST // 2**20 + 1))
            assert client.post(url, headers=headers, content=large).status_code == 413
        assert not recorded.turns and not model.asks


def test_turns_are_counted_and_cut():
    with serving("too long", most_turns=2) as (endpoint, model):
        recorded = session()
        client = of_openai(endpoint, endpoint.open(0, recorded))
        given = {"model": "policy", "messages": [{"role": "user", "content": "hi"}]}
        reply = client.chat.completions.create(max_tokens=2, **given)
        assert reply.choices[0].finish_reason == "length"
        assert client.chat.completions.create(**given).choices[0].finish_reason == "stop"
        # The same tokens once more need other random numbers.
        assert [ask.repetition for ask in model.asks] == [0, 1]
        with pytest.raises(openai.BadRequestError, match="max_turns = 2"):
            client.chat.completions.create(**given)


def test_an_episode_that_ends_refuses_what_waits():
    replies = Replies(TOKENIZER, {END})
    endpoint = Endpoint(replies, 400, 8)
    endpoint.start()
    recorded = session()
    key = endpoint.open(0, recorded)
    said = []

    def ask():
        try:
            messages = [{"role": "user", "content": "hi"}]
            of_openai(endpoint, key).chat.completions.create(model="policy", messages=messages)
        except openai.ConflictError as error:
            said.append(str(error))

    thread = threading.Thread(target=ask)
    thread.start()
    while not (asks := endpoint.asks()):
        pass
    endpoint.close(key)
    thread.join(20)
    assert "the episode has ended" in said[0]
    endpoint.answer(asks[0].number, Response((1,), (0.0,), "stop"))  # too late
    assert not recorded.turns
    endpoint.stop()


def test_a_client_that_goes_away_leaves_its_turn():
    endpoint = Endpoint(Replies(TOKENIZER, {END}), 400, 8)
    endpoint.start()
    recorded = session()
    headers = {"x-api-key": endpoint.open(0, recorded)}
    body = {"model": "policy", "messages": [{"role": "user", "content": "hi"}]}
    with http(endpoint) as client, pytest.raises(httpx.ReadTimeout):
        client.post("http://model/v1/chat/completions", headers=headers, json=body, timeout=0.2)
    (ask,) = endpoint.asks()
    endpoint.answer(ask.number, Response((*tokens_of("yes"), END), (0.0,) * 4, "stop"))
    wait_for(lambda: recorded.turns)
    with http(endpoint) as client:
        assert client.get("http://model/v1/models", headers=headers).status_code == 200
    endpoint.stop()


@pytest.mark.slow(reason="uvicorn would close an idle connection after five seconds")
def test_a_connection_stays_while_a_program_thinks():
    with serving("yes") as (endpoint, _), socket.socket(socket.AF_UNIX) as connection:
        key = endpoint.open(0, session())
        request = f"GET /v1/models HTTP/1.1\r\nHost: m\r\nAuthorization: Bearer {key}\r\n\r\n"
        connection.connect(endpoint.address)
        connection.sendall(request.encode())
        assert connection.recv(10_000).startswith(b"HTTP/1.1 200")
        connection.settimeout(6)
        with pytest.raises(TimeoutError):
            connection.recv(1)


def test_parsers_that_are_not_there_or_not_for_the_tokenizer():
    with pytest.raises(ConfigError, match="tool_parser = hermess: .*hermes"):
        Replies(TOKENIZER, {END}, tool_parser="hermess")
    with pytest.raises(ConfigError, match="reasoning_parser = deepseek_r1: it is not for this"):
        Replies(TOKENIZER, {END}, reasoning_parser="deepseek_r1")
