"""Rows in the shapes that public data sets have, with words of our own, and what they say.

Each shape is a name (of the data set or library whose columns these are), what is needed of the
row, settings of the data set, the row, and what has to come of it: the prompt, the answer, the
rejected answer or the label, or the words of the error.
"""

import json
from typing import Any, NamedTuple


class Shape(NamedTuple):
    name: str
    needs: str
    settings: dict[str, Any]
    row: dict[str, Any]
    found: dict[str, Any] | str


def said(*turns):
    """Messages of 's'ystem, 'u'ser, 'a'ssistant and 't'ool, such as said('u: Hi', 'a: Yes')."""
    roles = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    return [{"role": roles[t[0]], "content": t[3:]} for t in turns]


def sharegpt(*turns):
    roles = {"s": "system", "u": "human", "a": "gpt", "t": "observation"}
    return [{"from": roles[t[0]], "value": t[3:]} for t in turns]


def parts(*turns):
    return [
        {**m, "content": [{"type": "text", "text": m["content"], "image": None}]}
        for m in said(*turns)
    ]


CALL = {"type": "function", "function": {"name": "add", "arguments": {"x": 1}}}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
U, A, B = said("u: Name a river."), said("a: The Nile."), said("a: The Moon.")
LONG = said("u: Name a river.", "a: The Nile.", "u: How long?")
KM, M = said("a: 6,650 km"), said("a: 6,650 m")

SFT = [
    Shape(
        "a completion and what a reward function compares with",
        "answer",
        {},
        {"prompt": "2 + 2?", "completion": "Two and two make 4.", "answer": "4"},
        {"prompt": "2 + 2?", "answer": "Two and two make 4.", "ground_truth": "4"},
    ),
    Shape(
        "two columns that could be the answer",
        "answer",
        {},
        {"prompt": "2 + 2?", "response": "Two and two make 4.", "answer": "4"},
        "answer and response could both be what is learned",
    ),
    Shape(
        "messages as text",
        "answer",
        {"prompt_key": "question"},
        {"question": "2 + 2?", "messages": '[{"role": "user", "content": "2 + 2?"}]'},
        "messages is str .*; expected a conversation as a chat list",
    ),
    Shape(
        "a call of a function in ShareGPT's form",
        "answer",
        {},
        {
            "conversations": [
                {"from": "human", "value": "2 + 2?"},
                {"from": "function_call", "value": '{"name": "add", "arguments": {"x": 1}}'},
                {"from": "observation", "value": "4"},
                {"from": "gpt", "value": "4"},
            ]
        },
        {
            "prompt": said("u: 2 + 2?"),
            "answer": [{"role": "assistant", "tool_calls": [CALL]}, *said("t: 4", "a: 4")],
        },
    ),
    Shape(
        "a call of a function in other words",
        "answer",
        {},
        {
            "conversations": [
                {"from": "human", "value": "2 + 2?"},
                {"from": "function_call", "value": "add(2, 2)"},
            ]
        },
        r"conversations\[1\] has the function_call str 'add.2, 2.'; expected {name, arguments}",
    ),
    Shape(
        "a weight that is no weight",
        "answer",
        {},
        {"messages": [*U, {**A[0], "weight": 0.5}]},
        "has the weight 0.5; expected 0 or 1",
    ),
    Shape(
        "Alpaca with a history (LlamaFactory)",
        "answer",
        {"prompt_key": "instruction", "answer_key": "output"},
        {"instruction": "And 2 + 3?", "history": [["2 + 2?", "4"]], "output": "5"},
        "history is list .*, which belongs to the instruction",
    ),
    Shape(
        "prompt and completion as texts",
        "answer",
        {},
        {"prompt": "1 + 1 =", "completion": " 2"},
        {"prompt": "1 + 1 =", "answer": " 2"},
    ),
    Shape(
        "prompt and completion as chats (TRL)",
        "answer",
        {},
        {"prompt": U, "completion": A},
        {"prompt": U, "answer": A},
    ),
    Shape(
        "text prompt, chat completion",
        "answer",
        {},
        {"prompt": "Name a river.", "completion": A},
        {"prompt": U, "answer": A},
    ),
    Shape(
        "chat prompt, text answer (verl)",
        "answer",
        {"answer_key": "extra_info.answer"},
        {"prompt": U, "extra_info": {"answer": "The Nile."}},
        {"prompt": U, "answer": A},
    ),
    Shape("messages, one turn", "answer", {}, {"messages": U + A}, {"prompt": U, "answer": A}),
    Shape(
        "messages, two turns",
        "answer",
        {},
        {"messages": LONG + KM},
        {"prompt": U, "answer": A + said("u: How long?") + KM},
    ),
    Shape(
        "messages, the last turn",
        "answer",
        {"train_on": "last"},
        {"messages": LONG + KM},
        {"prompt": LONG, "answer": KM},
    ),
    Shape(
        "messages with a system message",
        "answer",
        {},
        {"messages": said("s: Be brief.") + U + A},
        {"prompt": said("s: Be brief.") + U, "answer": A},
    ),
    Shape(
        "messages in parts, with Arrow's nulls",
        "answer",
        {},
        {"messages": parts("u: Name a river.", "a: The Nile.")},
        {"prompt": U, "answer": A},
    ),
    Shape(
        "messages with null tool_calls",
        "answer",
        {},
        {"messages": [{**m, "tool_calls": None, "name": None} for m in U + A]},
        {"prompt": U, "answer": A},
    ),
    Shape(
        "calls of tools, with null arguments of other tools",
        "answer",
        {},
        {
            "messages": [
                *U,
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {**CALL, "function": {"name": "add", "arguments": {"x": 1, "y": None}}}
                    ],
                },
                {"role": "tool", "content": "2", "tool_calls": None},
                *A,
            ]
        },
        {"prompt": U, "answer": [{"role": "assistant", "tool_calls": [CALL]}, *said("t: 2"), *A]},
    ),
    Shape(
        "a prompt column beside messages (ultrachat_200k)",
        "answer",
        {},
        {"prompt": "Name a river.", "prompt_id": "1", "messages": U + A},
        {"prompt": U, "answer": A},
    ),
    Shape(
        "a prompt column that messages do not have",
        "answer",
        {},
        {"prompt": "Name a hill.", "messages": U + A},
        "the prompt, 'Name a hill.', is said by no user in messages",
    ),
    Shape(
        "conversations (ShareGPT)",
        "answer",
        {},
        {"conversations": sharegpt("u: Name a river.", "a: The Nile.")},
        {"prompt": U, "answer": A},
    ),
    Shape(
        "ShareGPT with an opening of the assistant",
        "answer",
        {},
        {"conversations": sharegpt("a: Hello!", "u: Name a river.", "a: The Nile.")},
        {"prompt": said("a: Hello!") + U, "answer": A},
    ),
    Shape(
        "ShareGPT with a system column (LlamaFactory)",
        "answer",
        {},
        {"system": "Be brief.", "conversations": sharegpt("u: Name a river.", "a: The Nile.")},
        {"prompt": U, "answer": A, "system": "Be brief."},
    ),
    Shape(
        "ShareGPT of somebody else",
        "answer",
        {},
        {"conversations": [{"from": "narrator", "value": "Once"}]},
        "conversations\\[0\\] is from 'narrator'",
    ),
    Shape(
        "a conversation that ends with the user",
        "answer",
        {},
        {"messages": LONG},
        "messages ends with a message of the user",
    ),
    Shape(
        "a conversation without an answer",
        "answer",
        {},
        {"messages": U},
        "messages has no answer behind the prompt",
    ),
    Shape(
        "a conversation under a name of its own",
        "answer",
        {"prompt_key": "dialogue"},
        {"dialogue": U + A},
        {"prompt": U, "answer": A},
    ),
    Shape(
        "problem, answer and messages (OpenR1-Math)",
        "answer",
        {},
        {"problem": "1 + 1?", "answer": "2", "messages": said("u: 1 + 1?", "a: So 2.")},
        {"prompt": said("u: 1 + 1?"), "answer": said("a: So 2.")},
    ),
    Shape(
        "prompt, answer and messages",
        "answer",
        {},
        {"prompt": "1 + 1?", "answer": "2", "messages": said("u: 1 + 1?", "a: So 2.")},
        "answer and messages could both be what is learned; set answer_key",
    ),
    Shape(
        "the same, with the column named",
        "answer",
        {"answer_key": "messages"},
        {"prompt": "1 + 1?", "answer": "2", "messages": said("u: 1 + 1?", "a: So 2.")},
        {"prompt": said("u: 1 + 1?"), "answer": said("a: So 2.")},
    ),
    Shape(
        "instruction and output (Alpaca)",
        "answer",
        {"prompt_key": "instruction", "answer_key": "output"},
        {"instruction": "Add one.", "input": "", "output": "2"},
        {"prompt": "Add one.", "answer": "2"},
    ),
    Shape(
        "Alpaca with an input",
        "answer",
        {"prompt_key": "instruction", "answer_key": "output"},
        {"instruction": "Add one.", "input": "1", "output": "2"},
        "input is str '1', which belongs to the instruction",
    ),
    Shape(
        "system_prompt, question, response (OpenOrca)",
        "answer",
        {"prompt_key": "question"},
        {"system_prompt": "Think.", "question": "1 + 1?", "response": "2"},
        {"prompt": "1 + 1?", "answer": "2", "system": "Think."},
    ),
    Shape(
        "tools as JSON, and arguments of the template",
        "answer",
        {},
        {
            "messages": U + A,
            "tools": '[{"type": "function"}]',
            "chat_template_kwargs": {"enable_thinking": False, "other": None},
        },
        {
            "prompt": U,
            "answer": A,
            "template_arguments": {"tools": [{"type": "function"}], "enable_thinking": False},
        },
    ),
    Shape(
        "enable_thinking as a column (verl)",
        "answer",
        {},
        {"messages": U + A, "enable_thinking": True, "tools": [TOOL]},
        {
            "prompt": U,
            "answer": A,
            "template_arguments": {"enable_thinking": True, "tools": [TOOL]},
        },
    ),
    Shape(
        "tools that are names",
        "answer",
        {},
        {"messages": U + A, "tools": ["add"]},
        r"tools is list \['add'\]; expected a list of JSON schemas",
    ),
    Shape(
        "an image",
        "answer",
        {},
        {"messages": [{"role": "user", "content": [{"type": "image"}]}, *parts("a: It is.")]},
        r"messages\[0\] has a part of type image; only parts of text",
    ),
]

PROMPTS = [
    Shape(
        "a conversation that ends with a question",
        "prompt",
        {},
        {"messages": LONG},
        {"prompt": LONG},
    ),
    Shape(
        "a named conversation asks what is before its last answer",
        "prompt",
        {"prompt_key": "conversations"},
        {"conversations": sharegpt("u: Name a river.", "a: The Nile.")},
        {"prompt": U},
    ),
    Shape("a pair as a prompt", "prompt", {}, {"chosen": U + A, "rejected": U + B}, {"prompt": U}),
    Shape(
        "a pair whose column is named as the prompt",
        "prompt",
        {"prompt_key": "chosen"},
        {
            "chosen": "\n\nHuman: A river?\n\nAssistant: The Nile.",
            "rejected": "\n\nHuman: A river?\n\nAssistant: The Moon.",
        },
        {"prompt": "\n\nHuman: A river?\n\nAssistant:"},
    ),
    Shape(
        "question and context",
        "prompt",
        {"prompt_key": "question"},
        {"question": "How long?", "context": "The Nile", "answer": "6,650 km"},
        "context is str 'The Nile', which belongs to the question",
    ),
    Shape(
        "a message in many parts of which one is an image without words",
        "prompt",
        {},
        {"prompt": [{"role": "user", "content": [{"type": "image", "text": ""}]}]},
        "has a part of type image",
    ),
    Shape(
        "tools as JSON keep their nulls",
        "prompt",
        {},
        {"prompt": U, "tools": '[{"name": "add", "default": null}]'},
        {"prompt": U, "template_arguments": {"tools": [{"name": "add", "default": None}]}},
    ),
    Shape(
        "a row's argument that is a word",
        "prompt",
        {},
        {"prompt": U, "enable_thinking": "false"},
        "enable_thinking is str 'false'; expected true or false",
    ),
    Shape("a chat prompt (verl)", "prompt", {}, {"prompt": U, "data_source": "x"}, {"prompt": U}),
    Shape(
        "a text prompt",
        "prompt",
        {},
        {"prompt": "1 + 1 =", "answer": "2"},
        {"prompt": "1 + 1 =", "answer": "2", "ground_truth": "2"},
    ),
    Shape(
        "a prompt with parts and nulls",
        "prompt",
        {},
        {"prompt": [{**m, "tool_calls": None} for m in parts("u: Name a river.")]},
        {"prompt": U},
    ),
    Shape(
        "a prompt that begins the answer",
        "prompt",
        {},
        {"prompt": U + said("a: Let me see:")},
        {"prompt": U + said("a: Let me see:")},
    ),
    Shape("messages of SFT as prompts", "prompt", {}, {"messages": LONG + KM}, {"prompt": LONG}),
    Shape(
        "a message without content",
        "prompt",
        {},
        {"prompt": [{"role": "user"}]},
        r"the prompt\[0\] \(user\) has no content",
    ),
]

_CALLED = [{"role": "assistant", "tool_calls": [CALL]}]
_FUNCTION = CALL["function"]


def _calling(**fields):
    """A row of a message that calls a function and says nothing."""
    return {"messages": [*U, {"role": "assistant", "content": "", **fields}]}


def _in_parts(messages, *content):
    return {**messages[0], "content": list(content)}


_READ_CALL = {"prompt": U, "answer": [{**_CALLED[0], "content": ""}]}

MESSAGES = [
    Shape(
        "a call in OpenAI's older form",
        "answer",
        {},
        {
            "messages": [
                *U,
                {"role": "assistant", "content": None, "function_call": _FUNCTION},
                {"role": "function", "name": "add", "content": "4"},
                *A,
            ]
        },
        {
            "prompt": U,
            "answer": [*_CALLED, {"role": "tool", "name": "add", "content": "4"}, *A],
        },
    ),
    Shape(
        "a call in OpenAI's older form beside an empty text",
        "answer",
        {},
        _calling(function_call=_FUNCTION),
        _READ_CALL,
    ),
    Shape("a call in the singular", "answer", {}, _calling(tool_call=_FUNCTION), _READ_CALL),
    Shape("one call without a list", "answer", {}, _calling(tool_calls=CALL), _READ_CALL),
    Shape(
        "calls as the JSON text of a list",
        "answer",
        {},
        _calling(tool_calls=json.dumps([CALL])),
        _READ_CALL,
    ),
    Shape(
        "calls as a list of JSON texts",
        "answer",
        {},
        _calling(tool_calls=[json.dumps(CALL)]),
        _READ_CALL,
    ),
    Shape(
        "calls as an empty text",
        "answer",
        {},
        {"messages": [*U, {**A[0], "tool_calls": ""}]},
        {"prompt": U, "answer": A},
    ),
    Shape(
        "a call under a role of its own (LlamaFactory)",
        "answer",
        {},
        {"messages": [*U, {"role": "function_call", "content": json.dumps(_FUNCTION)}]},
        {"prompt": U, "answer": _CALLED},
    ),
    Shape(
        "calls in two fields",
        "answer",
        {},
        _calling(tool_calls=[CALL], function_call=_FUNCTION),
        "has tool_calls and function_call, of which templates read one",
    ),
    Shape(
        "a call without a name",
        "answer",
        {},
        _calling(tool_calls=[{"type": "function", "function": {"arguments": {"x": 1}}}]),
        r"messages\[1\] has the tool_calls list .*; expected {name, arguments}",
    ),
    Shape(
        "arguments under another name (LangChain)",
        "answer",
        {},
        _calling(tool_calls=[{"name": "add", "args": {"x": 1}}]),
        r"messages\[1\] has the tool_calls list .*; expected {name, arguments}",
    ),
    Shape(
        "an answer in a field that templates do not read (OpenAI)",
        "answer",
        {},
        _calling(refusal="I will not."),
        r"messages\[1\] has the field refusal, str 'I will not.', which chat templates do not read",
    ),
    Shape(
        "images beside the content",
        "answer",
        {},
        {"messages": [{**U[0], "images": ["river.png"]}, *A]},
        r"messages\[0\] has the field images, list \['river.png'\]",
    ),
    Shape(
        "content as a list of texts",
        "answer",
        {},
        {"messages": [_in_parts(U, "Name a river."), _in_parts(A, "The ", "Nile.")]},
        {"prompt": U, "answer": A},
    ),
    Shape(
        "a part that is null",
        "answer",
        {},
        {"messages": [_in_parts(U, "Name a river."), _in_parts(A, None)]},
        r"messages\[1\] has a part of content that is null; expected a text",
    ),
    Shape(
        "a part of text that is null",
        "answer",
        {},
        {"messages": [*parts("u: A river?"), _in_parts(A, {"type": "text", "text": None})]},
        r"messages\[1\] has a part of type text whose text is null; expected a text",
    ),
    Shape(
        "thoughts as a part",
        "answer",
        {},
        {"messages": [*parts("u: A river?"), _in_parts(A, {"type": "thinking", "thinking": "?"})]},
        "has a part of type thinking; only parts of text are read: put what it says in "
        "reasoning_content",
    ),
    Shape(
        "roles in the words of others",
        "answer",
        {},
        {
            "messages": [
                {"role": "Human", "content": "Name a river."},
                {"role": "bot", "content": "The Nile."},
            ]
        },
        {"prompt": U, "answer": A},
    ),
    Shape(
        "a role that a template may have",
        "prompt",
        {},
        {"prompt": [{"role": "developer", "content": "Be brief."}, *U]},
        {"prompt": [{"role": "developer", "content": "Be brief."}, *U]},
    ),
]

_HH = "\n\nHuman: A river?\n\nAssistant:"

COLUMNS = [
    Shape(
        "a completion that begins with its prompt",
        "answer",
        {},
        {"prompt": "Name a long river.", "completion": "Name a long river. The Nile."},
        "completion begins with the prompt, 'Name a long river.', so that it would be said twice",
    ),
    Shape(
        "a completion that begins with the one word of its prompt",
        "answer",
        {},
        {"prompt": "The", "completion": "The Nile."},
        {"prompt": "The", "answer": "The Nile."},
    ),
    Shape(
        "a text with the user's next words",
        "answer",
        {},
        {"prompt": _HH, "completion": " The Nile.\n\nHuman: How long?\n\nAssistant: Long."},
        "completion has .*Human:.*, behind which it is not the model that speaks",
    ),
    Shape(
        "an answer that explains marks of turns",
        "answer",
        {},
        {"prompt": "What is ChatML?", "completion": "<|im_start|>user begins a question."},
        {"prompt": "What is ChatML?", "answer": "<|im_start|>user begins a question."},
    ),
    Shape(
        "an opening of the assistant beside a prompt",
        "answer",
        {},
        {
            "prompt": "Name a river.",
            "conversations": sharegpt("a: Hello!", "u: Name a river.", "a: The Nile."),
        },
        {"prompt": said("a: Hello!") + U, "answer": A},
    ),
    Shape(
        "an opening of the assistant beside a chat prompt",
        "answer",
        {},
        {"prompt": U, "completion": said("a: Hello!") + U + A},
        {"prompt": said("a: Hello!") + U, "answer": A},
    ),
    Shape(
        "several turns behind a prompt",
        "answer",
        {},
        {"prompt": "Name a river.", "completion": A + said("u: How long?") + KM},
        {"prompt": U, "answer": A + said("u: How long?") + KM},
    ),
    Shape(
        "a completion and a response that differ",
        "answer",
        {},
        {"prompt": "2 + 2?", "completion": "4", "response": "5"},
        "completion and response could both be what is learned; set answer_key",
    ),
    Shape(
        "a completion and a response that are the same",
        "answer",
        {},
        {"prompt": "2 + 2?", "completion": "4", "response": "4"},
        {"prompt": "2 + 2?", "answer": "4", "ground_truth": "4"},
    ),
    Shape(
        "a completion that is empty beside a response",
        "answer",
        {},
        {"prompt": "2 + 2?", "completion": "", "response": "4"},
        {"prompt": "2 + 2?", "answer": "4", "ground_truth": "4"},
    ),
    Shape(
        "a completion that is empty beside what a reward function compares with",
        "answer",
        {},
        {"prompt": "2 + 2?", "completion": "", "answer": "4"},
        {"prompt": "2 + 2?", "answer": "", "ground_truth": "4"},
    ),
    Shape(
        "messages beside a completion that is empty",
        "answer",
        {},
        {"messages": U + A, "completion": ""},
        {"prompt": U, "answer": A},
    ),
    Shape(
        "a named conversation and other messages",
        "answer",
        {"prompt_key": "dialogue"},
        {"dialogue": U + A, "messages": U + B},
        "dialogue and messages could both be what is learned",
    ),
    Shape(
        "messages and another response",
        "answer",
        {},
        {"messages": U + A, "response": "The Moon."},
        "messages and response could both be what is learned",
    ),
    Shape(
        "messages and another completion",
        "answer",
        {},
        {"messages": U + A, "completion": B},
        "completion and messages could both be what is learned",
    ),
    Shape(
        "messages and a response that they end with",
        "answer",
        {},
        {"messages": U + A, "response": "The Nile."},
        {"prompt": U, "answer": A, "ground_truth": "The Nile."},
    ),
    Shape(
        "messages and other conversations",
        "answer",
        {},
        {"messages": U + A, "conversations": sharegpt("u: A hill?", "a: Etna.")},
        "conversations and messages could both be what is learned",
    ),
    Shape(
        "the same conversation in two forms",
        "answer",
        {},
        {"messages": U + A, "conversations": sharegpt("u: Name a river.", "a: The Nile.")},
        {"prompt": U, "answer": A},
    ),
    Shape(
        "a named conversation and another completion",
        "answer",
        {"prompt_key": "dialogue"},
        {"dialogue": U + A, "completion": "The Moon."},
        "completion and dialogue could both be what is learned",
    ),
    Shape(
        "a system message that is empty beside one that is not",
        "answer",
        {},
        {"messages": U + A, "system": "", "system_prompt": "Be brief."},
        {"prompt": U, "answer": A, "system": "Be brief."},
    ),
    Shape(
        "two system messages",
        "answer",
        {},
        {"messages": U + A, "system": "Be long.", "system_prompt": "Be brief."},
        "system and system_prompt are 'Be long.' and 'Be brief.', and a conversation has one",
    ),
]

SHAPES = [*SFT, *PROMPTS, *MESSAGES, *COLUMNS]
