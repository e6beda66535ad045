"""Where answers end and what is left out, with templates and tokenizers of other kinds."""

import copy
from itertools import groupby

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.unit.data.public_templates import tokenizer_of
from tests.unit.data.shapes import said
from tests.unit.data.templates import CHATML
from verl_hpc.data.observations import Observations
from verl_hpc.data.problem import Problem
from verl_hpc.data.prompts import Encoder
from verl_hpc.errors import DataError

ALPACA = (
    "{% for m in messages %}{% if m.role == 'user' %}### Instruction:\n{{ m.content }}\n\n"
    "{% else %}### Response:\n{{ m.content }}{% if loop.last %}{{ eos_token }}{% else %}\n\n"
    "{% endif %}{% endif %}{% endfor %}{% if add_generation_prompt %}### Response:\n{% endif %}"
)
VICUNA = (
    "{% for m in messages %}{{ m.role.upper() }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT: {% else %}{{ eos_token }}{% endif %}"
)
TULU = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% if m.role == 'assistant' %}"
    "{{ eos_token }}{% endif %}{% if not loop.last %}\n{% elif m.role != 'assistant' %}\n"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
TWO_TURNS = said("u: hi", "a: yes", "u: more please", "a: no")


def templated(template, name="phi3"):
    tokenizer = copy.deepcopy(tokenizer_of(name))
    tokenizer.chat_template = template
    return tokenizer


def learned(tokenizer, messages, first=1, **fields):
    """The texts that are learned of a conversation, of which the first messages are the prompt."""
    problem = Problem(0, messages[:first], answer=messages[first:], **fields)
    _, (answer,) = Encoder(tokenizer).example(problem)
    marked = groupby(zip(answer.ids, answer.mask, strict=True), lambda pair: pair[1])
    return [tokenizer.decode([i for i, _ in run]) for on, run in marked if on]


LEARNED = [
    # A template may write its end behind the last turn alone.
    (ALPACA, TWO_TURNS, ["yes", "no<eos>"]),
    (VICUNA, TWO_TURNS, ["yes", "no\n<eos>"]),
    # Tokens that are not special: both turns have the text that the template ends them with.
    (CHATML, TWO_TURNS, ["yes<|im_end|>", "no<|im_end|>\n<eos>"]),
    # An end that a user writes ends no answer.
    (ALPACA, said("u: hi", "a: yes", "u: what is <eos>", "a: no"), ["yes", "no<eos>"]),
    # Two answers in a row have a header between them, which is not learned.
    (TULU, said("u: hi", "a: one", "a: two"), ["one<eos>", "two<eos>"]),
    # A template that leaves thoughts out of all turns but the last one.
    (
        "qwen3",
        said("u: hi", "a: one", "a: two"),
        ["one<|im_end|>", "<think>\n\n</think>\n\ntwo<|im_end|>"],
    ),
    ("gptoss", said("u: hi", "a: "), ["<|channel|>final<|message|><|return|>"]),
]


def test_what_is_learned_ends_before_the_next_turn():
    for template, messages, texts in LEARNED:
        tokenizer = templated(template) if "{" in template else tokenizer_of(template)
        assert learned(tokenizer, messages) == texts, template


GET = {"type": "function", "function": {"name": "get", "parameters": {}}}
GERMAN = [*said("s: Answer in German."), *said("u: hi", "a: ja")]
REFUSED = [
    # Words beside thoughts that are left out
    *(
        ("qwen3", [*said("u: hi"), {"role": "assistant", "content": text}], {}, "a part of an answ")
        for text in (
            "Let me see.\n<think>\nfirst\n</think>\nThe words.",
            "<think>\na1\n</think>\nSome words.\n<think>\na2\n</think>\nThe words.",
            "<think>\na1\n</think>\nClose it with </think> and go on.",
        )
    ),
    ("gemma3", TWO_TURNS, {"template_arguments": {"tools": [GET]}}, "reads no tools"),
    ("phi3", TWO_TURNS, {"template_arguments": {"tools": [GET]}}, "reads no tools"),
    ("qwen2_5", GERMAN, {"system": "Answer in French."}, "is not that of its conversation"),
]


def test_what_cannot_be_learned_is_refused():
    for name, messages, fields, words in REFUSED:
        with pytest.raises(DataError, match=words):
            learned(tokenizer_of(name), messages, len(messages) - 1, **fields)
    assert learned(tokenizer_of("qwen2_5"), GERMAN, 2, system="Answer in German.")


def calling(said_before, *said_after, **arguments):
    """A conversation in which the model calls a function, and what is said around that."""
    call = {"type": "function", "function": {"name": "get", "arguments": arguments}}
    return [*said_before, {"role": "assistant", "content": "", "tool_calls": [call]}, *said_after]


def result(text):
    return {"role": "tool", "content": text, "name": "get"}


def test_an_answer_begins_with_its_first_letter_where_thoughts_are_no_token():
    after = [result("4"), *said("a: four", "u: thanks", "a: yes")]
    first, *_ = learned(tokenizer_of("qwen3_5_nothink"), calling(said("u: hi"), *after, x=1))
    assert first.startswith("<tool_call>")


@pytest.mark.parametrize("name", ["llama3_1", "gptoss", "qwen2_5"])
@pytest.mark.parametrize(
    "text", ['{"stadt": "K\u00f6ln"}', "K\u00f6ln\nist kalt", 'so "\u5317\u4eac"']
)
def test_what_a_tool_says_in_other_languages_is_not_left_out(name, text):
    after = [result(text), *said("a: so it is")]
    messages = calling(said("u: hi"), *after, x="\u5317\u4eac")
    assert "so it is" in learned(tokenizer_of(name), messages)[-1]


def test_arguments_of_calls_are_written_as_they_are():
    messages = calling(said("u: hi"), city="\u5317\u4eac")
    assert "\u5317\u4eac" in learned(tokenizer_of("deepseekv3"), messages)[0]


def test_arguments_that_are_a_text_stay_what_they_are_where_the_template_copies_them():
    """Transformers copies them too; other templates would write the text once more as JSON."""
    arguments = '{"x":1e5,"x":2}'
    messages = calling(said("u: hi"))
    messages[-1]["tool_calls"][0]["function"]["arguments"] = arguments
    assert arguments in learned(tokenizer_of("qwen3"), messages)[0]
    assert '{"x": 2}' in learned(tokenizer_of("qwen2_5"), messages)[0]


def test_later_turns_have_the_arguments_of_the_row():
    tokenizer = tokenizer_of("qwen3")
    encoder, arguments = Encoder(tokenizer), {"enable_thinking": False}
    prompt = encoder.prompt(Problem(0, said("u: hi"), template_arguments=arguments))
    turn = tokenizer.encode("yes<|im_end|>", add_special_tokens=False)
    found = [*prompt, *turn, *Observations(encoder, True).tokens("more", turn, arguments)]
    assert tokenizer.decode(found).endswith("assistant\n<think>\n\n</think>\n\n")


def beginning_with_a_blank(kind):
    """A tokenizer of letters that puts a blank before every text, as Llama 2's, or before the first
    one, as newer ones of its kind."""
    special = ["<unk>", "<s>", "</s>"]
    letters = [chr(i) for i in range(33, 127)] + ["\u2581", "\n"]
    vocabulary = {word: i for i, word in enumerate([*special, *letters])}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", fuse_unk=True))
    if kind == "every":
        steps = [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
        made.normalizer = normalizers.Sequence(steps)
    else:
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    made.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.Fuse()])
    made.add_special_tokens([AddedToken(w, special=True, normalized=False) for w in special])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    tokenizer.chat_template = (
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} "
        "[/INST]{% else %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
    )
    return tokenizer


@pytest.mark.parametrize("kind", ["every", "first"])
@pytest.mark.parametrize(
    ("prompt", "answer"), [("1 + 1 =", "2"), ("A:", " The Nile"), ("B:\n", "So")]
)
def test_an_answer_to_a_text_gets_no_blank_of_the_tokenizer(kind, prompt, answer):
    tokenizer = beginning_with_a_blank(kind)
    ids, (found,) = Encoder(tokenizer).example(Problem(0, prompt, answer=answer))
    assert [*ids, *found.ids] == [*tokenizer.encode(prompt + answer), tokenizer.eos_token_id]


@pytest.mark.parametrize("kind", ["every", "first"])
def test_an_observation_gets_no_blank_of_the_tokenizer(kind):
    tokenizer = beginning_with_a_blank(kind)
    encoder, messages = Encoder(tokenizer), said("u: hi", "a: yes", "u: more")
    whole = tokenizer.apply_chat_template(messages, return_dict=False)
    prompt = encoder.prompt(Problem(0, messages[:1]))
    turn = whole[len(prompt) : whole.index(tokenizer.eos_token_id) + 1]
    assert [*prompt, *turn, *Observations(encoder, True).tokens("more", turn)] == whole
