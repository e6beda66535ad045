"""Encodings equal those of transformers' apply_chat_template, for public templates.

What transformers makes of a conversation is the oracle for its tokens, and its assistant mask for
what is learned, where a template marks that. From the mask the tokens are taken away that a prompt
for generation has already, and those behind the token that ends a turn: no model samples them.
"""

import re
from contextlib import suppress
from functools import cache
from itertools import groupby, product, takewhile

from tests.unit.data.public_templates import ANSWERS, MARKED, end_of, tokenizer_of
from tests.unit.data.shapes import CALL, TOOL, said
from verl_hpc.data.observations import Observations
from verl_hpc.data.problem import Problem
from verl_hpc.data.prompts import Encoder
from verl_hpc.errors import DataError

TEMPLATES = sorted({*ANSWERS, *MARKED})
SYSTEM = said("s: Be brief.")
THOUGHT = [{"role": "assistant", "content": "yes", "reasoning_content": "Let me see"}]
# The thoughts have the words of the answer, and of the call.
SO = "hi yes, so yes add"
REPEATED = [{"role": "assistant", "content": "yes", "reasoning_content": SO, "thinking": SO}]
USED = [{"role": "assistant", "content": "", "tool_calls": [CALL]}]
CALL_AS_TEXT = {**CALL, "function": {"name": "add", "arguments": '{"x": 1}'}}
RESULT = [{"role": "tool", "content": "7", "name": "add"}]
HI, YES, TOOLS = said("u: hi"), said("a: yes"), {"tools": [TOOL]}
CALLING = {**REPEATED[0], "tool_calls": [CALL]}
CONVERSATIONS = {
    "one turn": (HI, YES, {}),
    "system": (SYSTEM + HI, YES, {}),
    "two turns": (HI, said("a: yes", "u: more", "a: no"), {}),
    "system and two turns": (SYSTEM + HI, said("a: yes", "u: more", "a: no"), {}),
    "a later turn": (said("u: hi", "a: yes", "u: more"), said("a: no"), {}),
    "thoughts": (HI, THOUGHT, {}),
    "thoughts in the text": (HI, said("a: <think>\nLet me see\n</think>\n\nyes"), {}),
    "thoughts with the words of the answer": (HI, REPEATED, {}),
    "such thoughts in the text": (HI, said("a: <think>\nhi yes, so\n</think>\n\nyes"), {}),
    "such thoughts before another turn": (HI, REPEATED + said("u: more") + REPEATED, {}),
    "thoughts and a call": (HI, [CALLING | {"content": ""}], TOOLS),
    "thoughts, words and a call": (HI, [CALLING], TOOLS),
    "no thoughts": (HI, YES, {"enable_thinking": False}),
    "tools": (HI, YES, TOOLS),
    "tools and system": (SYSTEM + HI, YES, TOOLS),
    "a call": (HI, USED + RESULT + said("a: seven"), TOOLS),
    "letters that special tokens have": (said("u: e"), said("a: D", "u: d", "a: e"), {}),
    "letters of many bytes": (said("u: Größe?"), said("a: 10 µm 🙂"), {}),
}


def common(one, other):
    return sum(1 for _ in takewhile(lambda p: p[0] == p[1], zip(one, other, strict=False)))


def transformers_form(tokenizer, messages, arguments, **more):
    """Messages in the first of several forms of a call that the template writes: with arguments as
    a mapping or as text, and with or without a text of its own. Their token ids, too; two times
    None where the template fails or leaves out a call."""
    for call, text in product((CALL, CALL_AS_TEXT), ({}, {"content": None})):
        form = {"tool_calls": [call], **text}
        given = [{**m, **form} if "tool_calls" in m else m for m in messages]
        try:
            ids = tokenizer.apply_chat_template(given, return_dict=False, **arguments, **more)
        except Exception:
            continue
        behind = tokenizer.decode(ids).rpartition("hi<")[2]
        is_written = "add" in behind and "None" not in behind
        if is_written or not any("tool_calls" in m for m in messages):
            return given, ids
    return None, None


def transformers_ids(tokenizer, messages, arguments, **more):
    return transformers_form(tokenizer, messages, arguments, **more)[1]


def problem_of(prompt, answer, arguments):
    return Problem(0, prompt, answer=answer, template_arguments=arguments)


@cache
def encoder_of(name):
    return Encoder(tokenizer_of(name))


def cases():
    for name in TEMPLATES:
        for kind, conversation in CONVERSATIONS.items():
            yield f"{name}, {kind}", name, *conversation


def test_there_are_many_templates():
    assert len(ANSWERS) >= 25 and len(MARKED) >= 24


def test_what_a_model_has_to_write_behind_which_prompt():
    wrong = []
    for name, (before, answer) in ANSWERS.items():
        tokenizer = tokenizer_of(name)
        encoder = Encoder(tokenizer)
        problem = problem_of(said("u: hi"), said("a: yes"), {})
        asked, (prompt, (spans,)) = encoder.prompt(problem), encoder.example(problem)
        text = tokenizer.decode(spans.ids)
        if not tokenizer.decode(asked).endswith(before):
            wrong.append(f"{name}: {tokenizer.decode(asked)!r} does not end with {before!r}")
        if text != answer or not all(spans.mask):
            wrong.append(f"{name}: {text!r}; expected {answer!r}")
        if common(prompt, asked) != len(prompt):
            wrong.append(f"{name}: the prompt is not how one for generation begins")
        if encoder.turn_end != tokenizer.convert_tokens_to_ids(end_of(name)):
            wrong.append(f"{name}: a turn ends with token {encoder.turn_end}")
    assert not wrong, "\n".join(wrong)


def is_to_be_read(expected, error):
    """Whether transformers has tokens of a conversation, and ours does not name why it has none."""
    return expected is not None and not re.search("leaves out|reads no tools", str(error))


def test_prompts_are_those_of_transformers():
    """RL, and the prompts of turns in the middle of a conversation."""
    wrong, count = [], 0
    for case, name, prompt, answer, arguments in cases():
        tokenizer = tokenizer_of(name)
        for messages in (prompt, [*prompt, *answer[:2]] if len(answer) > 2 else prompt):
            expected = transformers_ids(tokenizer, messages, arguments, add_generation_prompt=True)
            try:
                ids = encoder_of(name).prompt(problem_of(messages, None, arguments))
            except DataError as error:
                wrong += [f"{case}: {error}"] if is_to_be_read(expected, error) else []
                continue
            count += 1
            wrong += [f"{case}: {tokenizer.decode(ids)!r}"] if ids != expected else []
    assert not wrong, "\n".join(wrong)
    assert count > 300


def test_answers_are_those_of_transformers():
    """SFT and KTO have one answer, DPO and reward models two, of which the first is that one."""
    wrong, count = [], 0
    for case, name, prompt, answer, arguments in cases():
        tokenizer, encoder = tokenizer_of(name), encoder_of(name)
        other = said("a: never")
        problem = Problem(0, prompt, "", None, {}, answer, other, template_arguments=arguments)
        expected = transformers_ids(tokenizer, [*prompt, *answer], arguments)
        try:
            begin, answers = encoder.example(problem, 2)
        except DataError as error:
            wrong += [f"{case}: {error}"] if is_to_be_read(expected, error) else []
            continue
        count += 1
        first, (alone,) = encoder.example(problem, 1)
        if [*first, *alone.ids] != [*begin, *answers[0].ids]:
            wrong.append(f"{case}: an answer alone is another one")
        for messages, encoded in zip((answer, other), answers, strict=True):
            whole = transformers_ids(tokenizer, [*prompt, *messages], arguments)
            ids = [*begin, *encoded.ids]
            added = ids[len(whole) :]  # an end that the template does not write
            behind = tokenizer.decode(whole[len(ids) :]).replace("<eos>", "").strip()
            if ids[: len(whole)] != whole[: len(ids)] or behind or len(added) > 1:
                wrong.append(f"{case}: {tokenizer.decode(ids)!r} and {behind!r}")
            # GLM's end after a call begins what a tool answers.
            calls = messages[-1].get("tool_calls") and name.startswith("glm4moe")
            if tokenizer.decode(ids[-1]) != ("<|observation|>" if calls else end_of(name)):
                wrong.append(f"{case}: ends with {tokenizer.decode(ids[-1])!r}")
    assert not wrong, "\n".join(wrong)
    assert count > 350


def learned(encoder, prompt, answer, arguments):
    """Token ids of a conversation, and the positions of those that are learned."""
    problem = Problem(0, prompt, answer=answer, template_arguments=arguments)
    begin, (found,) = encoder.example(problem)
    return [*begin, *found.ids], [len(begin) + i for i, m in enumerate(found.mask) if m]


def test_what_is_learned_is_transformers_mask():
    """Without what a prompt has already, and what stands behind the end of a turn. A template that
    writes the same without marks teaches the same."""
    wrong, count = [], 0
    for case, name, prompt, answer, arguments in cases():
        if name not in MARKED:
            continue
        tokenizer, messages = tokenizer_of(name), [*prompt, *answer]
        try:
            ids, ours = learned(encoder_of(name), prompt, answer, arguments)
        except DataError:
            continue
        count += 1
        theirs = sampled(tokenizer, end_of(name), len(prompt), messages, arguments)
        if ours != theirs:
            wrong.append(f"{case}: {tokenizer.decode([ids[i] for i in ours])!r}")
        twin = name.removesuffix("_training")
        if twin != name:
            same = tokenizer_of(twin)
            if transformers_ids(same, messages, arguments)[: len(ids)] == ids:
                spans = learned(encoder_of(twin), prompt, answer, arguments)
                wrong += [f"{twin} {case}: {spans[1]}"] if spans != (ids, ours) else []
    assert not wrong, "\n".join(wrong)
    assert count > 180


def sampled(tokenizer, end, first, messages, arguments):
    """Positions that transformers marks in answers, without what no model samples."""
    given, _ = transformers_form(tokenizer, messages, arguments)
    marked = tokenizer.apply_chat_template(
        given, return_dict=True, return_assistant_tokens_mask=True, **arguments
    )
    ids, mask = marked["input_ids"], marked["assistant_masks"]
    runs = [[i for i, _ in run] for on, run in groupby(enumerate(mask), lambda p: p[1]) if on]
    places = [i for i, m in enumerate(messages) if m["role"] == "assistant"]
    positions = []
    for run, place in zip(runs, places, strict=True):
        asked = transformers_ids(tokenizer, messages[:place], arguments, add_generation_prompt=True)
        start = max(run[0], common(asked, ids))
        last = max((i for i in run if tokenizer.decode(ids[i]) == end), default=run[-1])
        positions += [i for i in run if start <= i <= last] if place >= first else []
    return positions


def test_a_call_that_a_template_drops_is_an_error_whatever_is_said_later():
    said_too = [*said("a: I add."), *RESULT, *said("a: It is 7, I added them.")]
    said_too[0]["tool_calls"] = [CALL]
    refused = []
    for name in ("phi3", "llama3", "deepseek_r1_distill", "qwen2_5"):
        problem = problem_of(said("u: add 3 and 4"), said_too, {})
        with suppress(DataError):
            Encoder(tokenizer_of(name)).example(problem)
            continue
        refused.append(name)
    assert refused == ["phi3", "llama3", "deepseek_r1_distill"]


def test_turns_are_what_the_template_writes():
    """What is sampled stays; behind it stands what the template writes behind such a turn."""
    wrong, count = [], 0
    for name in TEMPLATES:
        tokenizer, prompt = tokenizer_of(name), said("u: hi")
        encoder, end = Encoder(tokenizer), tokenizer.convert_tokens_to_ids(end_of(name))
        observations = Observations(encoder, is_chat=True)
        _, answer = ANSWERS[name.removesuffix("_training")]
        turn = tokenizer.encode(answer, add_special_tokens=False)
        whole = transformers_ids(
            tokenizer, [*prompt, *said("a: yes", "u: more")], {}, add_generation_prompt=True
        )
        written = tokenizer.decode(whole)
        for sampled_turn, is_ended in ((turn, True), (turn[:-1], False)):
            text = tokenizer.decode([*sampled_turn, *observations.tokens("more", sampled_turn)])
            count += 1
            # From the end of the turn on; the template may end one in the middle otherwise.
            behind = written.rpartition("yes")[2]
            middle = (
                behind.replace("<|end|>", "<|return|>", 1) if name.startswith("gpt") else behind
            )
            if not text.endswith(f"yes{middle if is_ended else behind}"):
                wrong.append(f"{name}: {text!r} and {behind!r}")
        assert turn[-1] == end
    assert not wrong, "\n".join(wrong)
    assert count == 2 * len(TEMPLATES)
