"""Rows in the shapes that public data sets have, with words of our own, and what they say.

Each shape is a name (of the data set or library whose columns these are), what is needed of the
row, settings of the data set, the row, and what has to come of it: the prompt, the answer, the
rejected answer or the label, or the words of the error.
"""

import json
from typing import Any, NamedTuple


class Shape(NamedTuple):
    needs: str
    settings: dict[str, Any]
    row: dict[str, Any]
    expected: dict[str, Any] | str


def _makes_shapes(needs):
    def make(expected, settings=None, /, **row):
        return Shape(needs, settings or {}, row, expected)

    return make


asked, sft, pair, labelled = map(_makes_shapes, ("prompt", "answer", "pair", "label"))


def says(prompt, answer=None, **fields):
    """Expected fields of a problem."""
    return {"prompt": prompt, "answer": answer, **fields}


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
SHAREGPT = sharegpt("u: Name a river.", "a: The Nile.")
KM, M = said("a: 6,650 km"), said("a: 6,650 m")

SFT = {
    "a completion and what a reward function compares with": sft(
        says("2 + 2?", "Two and two make 4.", ground_truth="4"),
        prompt="2 + 2?", completion="Two and two make 4.", answer="4",
    ),
    "two columns that could be the answer": sft(
        "answer and response could both be what is learned",
        prompt="2 + 2?", response="Two and two make 4.", answer="4",
    ),
    "messages as text": sft(
        "messages is str .*; expected a conversation as a chat list", {"prompt_key": "question"},
        question="2 + 2?", messages='[{"role": "user", "content": "2 + 2?"}]',
    ),
    "a call of a function in ShareGPT's form": sft(
        says(
            said("u: 2 + 2?"), [{"role": "assistant", "tool_calls": [CALL]}, *said("t: 4", "a: 4")]
        ),
        conversations=[
            {"from": "human", "value": "2 + 2?"},
            {"from": "function_call", "value": '{"name": "add", "arguments": {"x": 1}}'},
            {"from": "observation", "value": "4"},
            {"from": "gpt", "value": "4"},
        ],
    ),
    "a call of a function in other words": sft(
        r"conversations\[1\] has the function_call str 'add.2, 2.'; expected {name, arguments}",
        conversations=[
            {"from": "human", "value": "2 + 2?"},
            {"from": "function_call", "value": "add(2, 2)"},
        ],
    ),
    "a weight that is no weight": sft(
        "has the weight 0.5; expected 0 or 1", messages=[*U, {**A[0], "weight": 0.5}]
    ),
    "Alpaca with a history (LlamaFactory)": sft(
        "history is list .*, which belongs to the instruction",
        {"prompt_key": "instruction", "answer_key": "output"},
        instruction="And 2 + 3?", history=[["2 + 2?", "4"]], output="5",
    ),
    "prompt and completion as texts": sft(says("1 + 1 =", " 2"), prompt="1 + 1 =", completion=" 2"),
    "prompt and completion as chats (TRL)": sft(says(U, A), prompt=U, completion=A),
    "text prompt, chat completion": sft(says(U, A), prompt="Name a river.", completion=A),
    "chat prompt, text answer (verl)": sft(
        says(U, A), {"answer_key": "extra_info.answer"},
        prompt=U, extra_info={"answer": "The Nile."},
    ),
    "messages, one turn": sft(says(U, A), messages=U + A),
    "messages, two turns": sft(says(U, A + said("u: How long?") + KM), messages=LONG + KM),
    "messages, the last turn": sft(says(LONG, KM), {"train_on": "last"}, messages=LONG + KM),
    "messages with a system message": sft(
        says(said("s: Be brief.") + U, A), messages=said("s: Be brief.") + U + A
    ),
    "messages in parts, with Arrow's nulls": sft(
        says(U, A), messages=parts("u: Name a river.", "a: The Nile.")
    ),
    "messages with null tool_calls": sft(
        says(U, A), messages=[{**m, "tool_calls": None, "name": None} for m in U + A]
    ),
    "calls of tools, with null arguments of other tools": sft(
        says(U, [{"role": "assistant", "tool_calls": [CALL]}, *said("t: 2"), *A]),
        messages=[
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
        ],
    ),
    "a prompt column beside messages (ultrachat_200k)": sft(
        says(U, A), prompt="Name a river.", prompt_id="1", messages=U + A
    ),
    "a prompt column that messages do not have": sft(
        "the prompt, 'Name a hill.', is said by no user in messages",
        prompt="Name a hill.", messages=U + A,
    ),
    "conversations (ShareGPT)": sft(says(U, A), conversations=SHAREGPT),
    "ShareGPT with an opening of the assistant": sft(
        says(said("a: Hello!") + U, A),
        conversations=sharegpt("a: Hello!", "u: Name a river.", "a: The Nile."),
    ),
    "ShareGPT with a system column (LlamaFactory)": sft(
        says(U, A, system="Be brief."), system="Be brief.", conversations=SHAREGPT
    ),
    "ShareGPT of somebody else": sft(
        "conversations\\[0\\] is from 'narrator'",
        conversations=[{"from": "narrator", "value": "Once"}],
    ),
    "a conversation that ends with the user": sft(
        "messages ends with a message of the user", messages=LONG
    ),
    "a conversation without an answer": sft("messages has no answer behind the prompt", messages=U),
    "a conversation under a name of its own": sft(
        says(U, A), {"prompt_key": "dialogue"}, dialogue=U + A
    ),
    "problem, answer and messages (OpenR1-Math)": sft(
        says(said("u: 1 + 1?"), said("a: So 2.")),
        problem="1 + 1?", answer="2", messages=said("u: 1 + 1?", "a: So 2."),
    ),
    "prompt, answer and messages": sft(
        "answer and messages could both be what is learned; set answer_key",
        prompt="1 + 1?", answer="2", messages=said("u: 1 + 1?", "a: So 2."),
    ),
    "the same, with the column named": sft(
        says(said("u: 1 + 1?"), said("a: So 2.")), {"answer_key": "messages"},
        prompt="1 + 1?", answer="2", messages=said("u: 1 + 1?", "a: So 2."),
    ),
    "instruction and output (Alpaca)": sft(
        says("Add one.", "2"), {"prompt_key": "instruction", "answer_key": "output"},
        instruction="Add one.", input="", output="2",
    ),
    "Alpaca with an input": sft(
        "input is str '1', which belongs to the instruction",
        {"prompt_key": "instruction", "answer_key": "output"},
        instruction="Add one.", input="1", output="2",
    ),
    "system_prompt, question, response (OpenOrca)": sft(
        says("1 + 1?", "2", system="Think."), {"prompt_key": "question"},
        system_prompt="Think.", question="1 + 1?", response="2",
    ),
    "tools as JSON, and arguments of the template": sft(
        says(U, A, template_arguments={"tools": [{"type": "function"}], "enable_thinking": False}),
        messages=U + A, tools='[{"type": "function"}]',
        chat_template_kwargs={"enable_thinking": False, "other": None},
    ),
    "enable_thinking as a column (verl)": sft(
        says(U, A, template_arguments={"enable_thinking": True, "tools": [TOOL]}),
        messages=U + A, enable_thinking=True, tools=[TOOL],
    ),
    "tools that are names": sft(
        r"tools is list \['add'\]; expected a list of JSON schemas", messages=U + A, tools=["add"]
    ),
    "an image": sft(
        "the prompt has 1 places for images .* the row has 0 images",
        messages=[{"role": "user", "content": [{"type": "image"}]}, *parts("a: It is.")],
    ),
}  # fmt: skip

PROMPTS = {
    "a conversation that ends with a question": asked(says(LONG), messages=LONG),
    "a named conversation asks what is before its last answer": asked(
        says(U), {"prompt_key": "conversations"}, conversations=SHAREGPT
    ),
    "a pair as a prompt": asked(says(U), chosen=U + A, rejected=U + B),
    "a pair whose column is named as the prompt": asked(
        says("\n\nHuman: A river?\n\nAssistant:"), {"prompt_key": "chosen"},
        chosen="\n\nHuman: A river?\n\nAssistant: The Nile.",
        rejected="\n\nHuman: A river?\n\nAssistant: The Moon.",
    ),
    "question and context": asked(
        "context is str 'The Nile', which belongs to the question", {"prompt_key": "question"},
        question="How long?", context="The Nile", answer="6,650 km",
    ),
    "a message in many parts of which one is an image without words": asked(
        "the prompt has 1 places for images .* the row has 0 images",
        prompt=[{"role": "user", "content": [{"type": "image", "text": ""}]}],
    ),
    "tools as JSON keep their nulls": asked(
        says(U, template_arguments={"tools": [{"name": "add", "default": None}]}),
        prompt=U, tools='[{"name": "add", "default": null}]',
    ),
    "a row's argument that is a word": asked(
        "enable_thinking is str 'false'; expected true or false", prompt=U, enable_thinking="false"
    ),
    "a chat prompt (verl)": asked(says(U), prompt=U, data_source="x"),
    "a text prompt": asked(says("1 + 1 =", "2", ground_truth="2"), prompt="1 + 1 =", answer="2"),
    "a prompt with parts and nulls": asked(
        says(U), prompt=[{**m, "tool_calls": None} for m in parts("u: Name a river.")]
    ),
    "a prompt that begins the answer": asked(
        says(U + said("a: Let me see:")), prompt=U + said("a: Let me see:")
    ),
    "messages of SFT as prompts": asked(says(LONG), messages=LONG + KM),
    "a message without content": asked(
        r"the prompt\[0\] \(user\) has no content", prompt=[{"role": "user"}]
    ),
}  # fmt: skip

_CALLED = [{"role": "assistant", "tool_calls": [CALL]}]
_FUNCTION = CALL["function"]


def _calling(**fields):
    """A row of a message that calls a function and says nothing."""
    return {"messages": [*U, {"role": "assistant", "content": "", **fields}]}


def _in_parts(messages, *content):
    return {**messages[0], "content": list(content)}


_READ_CALL = {"prompt": U, "answer": [{**_CALLED[0], "content": ""}]}

MESSAGES = {
    "a call in OpenAI's older form": sft(
        says(U, [*_CALLED, {"role": "tool", "name": "add", "content": "4"}, *A]),
        messages=[
            *U,
            {"role": "assistant", "content": None, "function_call": _FUNCTION},
            {"role": "function", "name": "add", "content": "4"},
            *A,
        ],
    ),
    "a call in OpenAI's older form beside an empty text": sft(
        _READ_CALL, **_calling(function_call=_FUNCTION)
    ),
    "a call in the singular": sft(_READ_CALL, **_calling(tool_call=_FUNCTION)),
    "one call without a list": sft(_READ_CALL, **_calling(tool_calls=CALL)),
    "calls as the JSON text of a list": sft(_READ_CALL, **_calling(tool_calls=json.dumps([CALL]))),
    "calls as a list of JSON texts": sft(_READ_CALL, **_calling(tool_calls=[json.dumps(CALL)])),
    "calls as an empty text": sft(says(U, A), messages=[*U, {**A[0], "tool_calls": ""}]),
    "a call under a role of its own (LlamaFactory)": sft(
        says(U, _CALLED), messages=[*U, {"role": "function_call", "content": json.dumps(_FUNCTION)}]
    ),
    "calls in two fields": sft(
        "has tool_calls and function_call, of which templates read one",
        **_calling(tool_calls=[CALL], function_call=_FUNCTION),
    ),
    "a call without a name": sft(
        r"messages\[1\] has the tool_calls list .*; expected {name, arguments}",
        **_calling(tool_calls=[{"type": "function", "function": {"arguments": {"x": 1}}}]),
    ),
    "arguments under another name (LangChain)": sft(
        r"messages\[1\] has the tool_calls list .*; expected {name, arguments}",
        **_calling(tool_calls=[{"name": "add", "args": {"x": 1}}]),
    ),
    "an answer in a field that templates do not read (OpenAI)": sft(
        r"messages\[1\] has the field refusal, str 'I will not.', which chat templates do not read",
        **_calling(refusal="I will not."),
    ),
    "images beside the content": sft(
        r"messages\[0\] has the field images, list \['river.png'\]",
        messages=[{**U[0], "images": ["river.png"]}, *A],
    ),
    "content as a list of texts": sft(
        says(U, A), messages=[_in_parts(U, "Name a river."), _in_parts(A, "The ", "Nile.")]
    ),
    "a part that is null": sft(
        r"messages\[1\] has a part of content that is null; expected a text",
        messages=[_in_parts(U, "Name a river."), _in_parts(A, None)],
    ),
    "a part of text that is null": sft(
        r"messages\[1\] has a part of type text whose text is null; expected a text",
        messages=[*parts("u: A river?"), _in_parts(A, {"type": "text", "text": None})],
    ),
    "thoughts as a part": sft(
        "has a part of type thinking; only parts of text are read: put what it says in "
        "reasoning_content",
        messages=[*parts("u: A river?"), _in_parts(A, {"type": "thinking", "thinking": "?"})],
    ),
    "roles in the words of others": sft(
        says(U, A),
        messages=[
            {"role": "Human", "content": "Name a river."},
            {"role": "bot", "content": "The Nile."},
        ],
    ),
    "a role that a template may have": asked(
        says([{"role": "developer", "content": "Be brief."}, *U]),
        prompt=[{"role": "developer", "content": "Be brief."}, *U],
    ),
}

_HH = "\n\nHuman: A river?\n\nAssistant:"

COLUMNS = {
    "a completion that begins with its prompt": sft(
        "completion begins with the prompt, 'Name a long river.', so that it would be said twice",
        prompt="Name a long river.", completion="Name a long river. The Nile.",
    ),
    "a completion that begins with the one word of its prompt": sft(
        says("The", "The Nile."), prompt="The", completion="The Nile."
    ),
    "a text with the user's next words": sft(
        "completion has .*Human:.*, behind which it is not the model that speaks",
        prompt=_HH, completion=" The Nile.\n\nHuman: How long?\n\nAssistant: Long.",
    ),
    "an answer that explains marks of turns": sft(
        says("What is ChatML?", "<|im_start|>user begins a question."),
        prompt="What is ChatML?", completion="<|im_start|>user begins a question.",
    ),
    "an opening of the assistant beside a prompt": sft(
        says(said("a: Hello!") + U, A),
        prompt="Name a river.",
        conversations=sharegpt("a: Hello!", "u: Name a river.", "a: The Nile."),
    ),
    "an opening of the assistant beside a chat prompt": sft(
        says(said("a: Hello!") + U, A), prompt=U, completion=said("a: Hello!") + U + A
    ),
    "several turns behind a prompt": sft(
        says(U, A + said("u: How long?") + KM),
        prompt="Name a river.", completion=A + said("u: How long?") + KM,
    ),
    "a completion and a response that differ": sft(
        "completion and response could both be what is learned; set answer_key",
        prompt="2 + 2?", completion="4", response="5",
    ),
    "a completion and a response that are the same": sft(
        says("2 + 2?", "4", ground_truth="4"), prompt="2 + 2?", completion="4", response="4"
    ),
    "a completion that is empty beside a response": sft(
        says("2 + 2?", "4", ground_truth="4"), prompt="2 + 2?", completion="", response="4"
    ),
    "a completion that is empty beside what a reward function compares with": sft(
        says("2 + 2?", "", ground_truth="4"), prompt="2 + 2?", completion="", answer="4"
    ),
    "messages beside a completion that is empty": sft(says(U, A), messages=U + A, completion=""),
    "a named conversation and other messages": sft(
        "dialogue and messages could both be what is learned", {"prompt_key": "dialogue"},
        dialogue=U + A, messages=U + B,
    ),
    "messages and another response": sft(
        "messages and response could both be what is learned", messages=U + A, response="The Moon."
    ),
    "messages and another completion": sft(
        "completion and messages could both be what is learned", messages=U + A, completion=B
    ),
    "messages and a response that they end with": sft(
        says(U, A, ground_truth="The Nile."), messages=U + A, response="The Nile."
    ),
    "messages and other conversations": sft(
        "conversations and messages could both be what is learned",
        messages=U + A, conversations=sharegpt("u: A hill?", "a: Etna."),
    ),
    "the same conversation in two forms": sft(says(U, A), messages=U + A, conversations=SHAREGPT),
    "a named conversation and another completion": sft(
        "completion and dialogue could both be what is learned", {"prompt_key": "dialogue"},
        dialogue=U + A, completion="The Moon.",
    ),
    "a system message that is empty beside one that is not": sft(
        says(U, A, system="Be brief."), messages=U + A, system="", system_prompt="Be brief."
    ),
    "two system messages": sft(
        "system and system_prompt are 'Be long.' and 'Be brief.', and a conversation has one",
        messages=U + A, system="Be long.", system_prompt="Be brief.",
    ),
}  # fmt: skip

SHAPES = [*SFT.items(), *PROMPTS.items(), *MESSAGES.items(), *COLUMNS.items()]
