"""Token ids of prompts and answers, with a tokenizer of one token a byte."""

import copy
import json
from datetime import UTC, datetime

import pytest
from tokenizers import AddedToken
from tokenizers.processors import TemplateProcessing

from tests.unit.data.conftest import learned
from tests.unit.data.public_templates import tokenizer_of
from tests.unit.data.shapes import said
from tests.unit.data.templates import CHATML
from verl_hpc.data import chat_template
from verl_hpc.data.chat_template import ChatTemplate
from verl_hpc.data.problem import Problem
from verl_hpc.data.prompts import Encoder, fit_prompt
from verl_hpc.data.tokenizer import load_tokenizer
from verl_hpc.errors import ConfigError, DataError, ModelError

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 1?"}]
TEMPLATED = (
    "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n1 + 1?<|im_end|>\n"
    "<|im_start|>assistant\n"
)


FORMS = [
    (CHAT, "auto", TEMPLATED),
    (CHAT, "always", TEMPLATED),
    (CHAT, "never", "Be brief.\n\n1 + 1?"),
    ("1 + 1?", "auto", "1 + 1?"),
    ("1 + 1?", "never", "1 + 1?"),
    ("1 + 1?", "always", "<|im_start|>user\n1 + 1?<|im_end|>\n<|im_start|>assistant\n"),
]


@pytest.mark.parametrize(("prompt", "chat", "text"), FORMS)
def test_prompts_become_a_list_of_ids(tokenizer, prompt, chat, text):
    ids = Encoder(tokenizer, chat).prompt(Problem(0, prompt))
    assert type(ids) is list
    assert tokenizer.decode(ids) == text


def test_every_answer_ends_with_the_end_of_sequence_token(tokenizer):
    problem = Problem(0, CHAT, answer="2", rejected="3")
    encoder = Encoder(tokenizer)
    prompt, answers = encoder.example(problem, 2)
    assert prompt == encoder.prompt(problem)
    assert [tokenizer.decode(a.ids) for a in answers] == ["2<|im_end|>", "3<|im_end|>"]
    assert encoder.example(problem) == (prompt, answers[:1]) and answers[0].mask == [1, 1]
    with pytest.raises(DataError, match="row 0: no pair of answers; columns chosen and rejected"):
        encoder.example(Problem(0, CHAT, answer="2"), 2)


def test_a_row_of_several_turns_learns_what_the_model_says(tokenizer):
    answer = said("a: 2", "u: + 1?", "a: 3")
    prompt, (found,) = Encoder(tokenizer).example(Problem(0, CHAT, answer=answer))
    assert tokenizer.decode([*prompt, *found.ids]) == (
        f"{TEMPLATED}2<|im_end|>\n<|im_start|>user\n+ 1?<|im_end|>\n<|im_start|>assistant\n"
        "3<|im_end|>"
    )
    assert tokenizer.decode(learned(found)) == "2<|im_end|>3<|im_end|>"


def test_a_turn_of_weight_0_is_not_learned(tokenizer):
    answer = said("a: 5", "u: Really?", "a: 2")
    answer[0]["weight"] = 0
    prompt, (found,) = Encoder(tokenizer).example(Problem(0, CHAT, answer=answer))
    assert tokenizer.decode(prompt).endswith("Really?<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer.decode(found.ids) == "2<|im_end|>" and all(found.mask)
    with pytest.raises(DataError, match="row 0: every answer has the weight 0"):
        Encoder(tokenizer).example(Problem(0, CHAT, answer=answer[:1]))


def test_a_special_token_that_swallows_blanks_is_not_the_answers():
    wide = copy.deepcopy(tokenizer_of("phi3"))
    wide.add_special_tokens(
        {"additional_special_tokens": [AddedToken("<|assistant|>", special=True, rstrip=True)]},
        replace_extra_special_tokens=False,
    )
    problem = Problem(0, said("u: hi"), answer=said("a:  yes"))
    _, (found,) = Encoder(wide).example(problem)
    assert wide.decode([t for t, m in zip(found.ids, found.mask, strict=True) if m]) == "yes<|end|>"


def test_an_answer_has_one_end(tokenizer):
    """Also where a template has rendered it."""
    for answer, end in (
        ("2<|im_end|>", "2<|im_end|>"),
        ("2<|im_end|>\n", "2<|im_end|>"),
        ("2", "2<|im_end|>"),
        ("2\n", "2\n<|im_end|>"),
    ):
        _, (example,) = Encoder(tokenizer).example(Problem(0, TEMPLATED, answer=answer))
        assert tokenizer.decode(example.ids) == end
    with pytest.raises(DataError, match=r"row 0: message 1, of the assistant, ends with '<"):
        Encoder(tokenizer).example(Problem(0, said("u: 1 + 1?"), answer=said("a: 2<|im_end|>")))


def test_nothing_is_left_out_where_no_template_is_applied(tokenizer):
    several = Problem(0, CHAT, answer=said("a: 2", "u: + 1?", "a: 3"))
    calls = [{"role": "assistant", "tool_calls": [{"function": {"name": "add"}}]}]
    used = Problem(0, [*CHAT, *calls, *said("t: 2")])
    plain, kind = Problem(0, "1 + 1 ="), Encoder(tokenizer, system_prompt="Be kind.")
    tools = Problem(0, "1 + 1 =", template_arguments={"tools": []})
    for encode, problem, words in (
        (Encoder(tokenizer, "never").example, several, "the answer has 3 messages, and without a"),
        (Encoder(tokenizer, "never").prompt, used, "a message calls tools, which data.chat: never"),
        (kind.prompt, plain, "data.system_prompt is set, and its prompt is a te"),
        (Encoder(tokenizer).prompt, tools, "the row gives a chat template tools, and its"),
    ):
        with pytest.raises(DataError, match=f"row 0: {words}"):
            encode(problem)


def test_a_template_without_special_tokens_ends_with_the_tokenizers_end(tokenizer, monkeypatch):
    plain = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    monkeypatch.setattr(tokenizer, "chat_template", plain)
    answer = said("a: 2", "u: + 1?", "a: 3")
    prompt, (found,) = Encoder(tokenizer).example(Problem(0, said("u: 1 + 1?"), answer=answer))
    assert tokenizer.decode(prompt) == "user: 1 + 1?\nassistant: "
    assert tokenizer.decode(learned(found)) == "23\n<|im_end|>"


def test_a_prompt_that_ends_with_the_models_words_is_continued(tokenizer):
    ids = Encoder(tokenizer).prompt(Problem(0, [*CHAT, *said("a: Let me")]))
    assert tokenizer.decode(ids) == f"{TEMPLATED}Let me"
    # As transformers does it, blanks at the end included.
    for words in ("Let me ", "<think>\nHm", "a <|im_end|> b"):
        messages = [*CHAT, *said(f"a: {words}")]
        expected = tokenizer.apply_chat_template(
            messages, continue_final_message=True, return_dict=False
        )
        assert Encoder(tokenizer).prompt(Problem(0, messages)) == expected


def test_a_system_prompt_goes_before_chats_that_have_none(tokenizer):
    encoder = Encoder(tokenizer, "always", system_prompt="Be kind.")
    begins = "<|im_start|>system\n{}<|im_end|>\n<|im_start|>user\n"
    for problem, system in (
        (Problem(0, "1 + 1?"), "Be kind."),
        (Problem(0, said("u: 1 + 1?")), "Be kind."),
        (Problem(0, CHAT), "Be brief."),
        (Problem(0, "1 + 1?", system="Of the row."), "Of the row."),
    ):
        assert tokenizer.decode(encoder.prompt(problem)).startswith(begins.format(system))
    with pytest.raises(DataError, match=r"row 0: the row has a system message.*data\.chat: always"):
        Encoder(tokenizer).prompt(Problem(0, "1 + 1?", system="Of the row."))


def test_a_template_is_given_the_arguments_of_the_run_and_of_the_row(tokenizer, monkeypatch):
    thinks = tokenizer.chat_template + "{% if thinks %}<think>{% else %}</think>{% endif %}"
    monkeypatch.setattr(tokenizer, "chat_template", thinks)
    template = ChatTemplate(tokenizer, {"thinks": True})
    for row, end in (({}, "<think>"), ({"thinks": False}, "</think>")):
        problem = Problem(0, CHAT, template_arguments=row)
        assert tokenizer.decode(Encoder(tokenizer, template=template).prompt(problem)).endswith(end)
    with pytest.raises(ConfigError, match=r"chat_template_kwargs\.thinkz: .* reads no thinkz"):
        ChatTemplate(tokenizer, {"thinkz": True})
    with pytest.raises(DataError, match="row 0: the tokenizer's chat template reads no thinkz"):
        Encoder(tokenizer).prompt(Problem(0, CHAT, template_arguments={"thinkz": True}))


def test_the_time_of_a_run_is_the_time_of_its_template(tokenizer, monkeypatch):
    template = "{{ strftime_now('%d %b %Y') }} {{ messages[0].content }}"
    monkeypatch.setattr(tokenizer, "chat_template", template)
    encoder = Encoder(tokenizer, template=ChatTemplate(tokenizer))
    for day in (26, 27):
        encoder.template.time = datetime(2024, 7, day, tzinfo=UTC)
        ids = encoder.prompt(Problem(0, said("u: hello")))
        assert tokenizer.decode(ids) == f"{day} Jul 2024 hello"


BEGIN, START = "<|endoftext|>", "<|im_start|>"


@pytest.mark.parametrize(
    ("adds", "text", "expected"),
    [
        (f"{BEGIN} $A <|im_end|>", "a", f"{BEGIN}a"),
        (f"{BEGIN} $A <|im_end|>", f"{BEGIN}a", f"{BEGIN}a"),
        # What the text says itself stays.
        (f"{BEGIN} $A <|im_end|>", f"{BEGIN}{BEGIN}a<|im_end|>", f"{BEGIN}{BEGIN}a<|im_end|>"),
        (f"{BEGIN} {START} $A", "a", f"{BEGIN}{START}a"),
        (f"{BEGIN} {START} $A", f"{BEGIN}{START}a", f"{BEGIN}{START}a"),
    ],
)
def test_a_text_begins_once_and_does_not_end(tokenizer, adds, text, expected):
    begins = copy.deepcopy(tokenizer)
    begins.bos_token = BEGIN
    ids = [(BEGIN, 0), (START, 1), ("<|im_end|>", 2)]
    begins.backend_tokenizer.post_processor = TemplateProcessing(single=adds, special_tokens=ids)
    assert begins.decode(begins.encode("a")) == adds.replace("$A", "a").replace(" ", "")
    assert begins.decode(Encoder(begins).prompt(Problem(0, text))) == expected


def test_a_text_is_not_put_through_the_template_twice(tokenizer):
    always = Encoder(tokenizer, "always")
    for encode in (always.prompt, always.example):
        with pytest.raises(DataError, match=r"row 0: the prompt ends with .* set data.chat to aut"):
            encode(Problem(0, TEMPLATED, answer="2"))
    assert tokenizer.decode(Encoder(tokenizer).prompt(Problem(0, TEMPLATED))) == TEMPLATED


@pytest.mark.parametrize(
    ("dropped", "prompt", "answer"),
    [
        ("m.role == 'system'", ("s: Answer", "u: 2 + 2? Answer briefly."), ["a: 4"]),
        (
            "m.role == 'assistant' and not loop.last",
            ["u: Is it? yes or no"],
            ("a: yes", "u: sure?", "a: yes"),
        ),
    ],
)
def test_a_message_that_is_left_out_is_noticed_though_others_have_its_words(
    tokenizer, dropped, prompt, answer
):
    """A template may drop system messages, or earlier answers."""
    drops = copy.deepcopy(tokenizer)
    one_turn = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    kept = f"{{% if not ({dropped}) %}}{one_turn}{{% endif %}}"
    drops.chat_template = drops.chat_template.replace(one_turn, kept)
    assert kept in drops.chat_template
    with pytest.raises(DataError, match="leaves out message [01], of the"):
        Encoder(drops).example(Problem(0, said(*prompt), answer=said(*answer)))


def test_thoughts_end_before_the_answer_where_their_end_is_a_special_token():
    special = copy.deepcopy(tokenizer_of("qwen3"))
    special.add_special_tokens({"additional_special_tokens": ["<think>", "</think>"]})
    for answer in (
        [{"role": "assistant", "content": "4", "reasoning_content": "2+2 is 4, so"}],
        said("a: <think>\n2+2 is 4, so\n</think>\n\n4"),
    ):
        _, (found,) = Encoder(special).example(Problem(0, said("u: 2+2?"), answer=answer))
        assert special.decode(learned(found)) == "<think>\n2+2 is 4, so\n</think>\n\n4<|im_end|>"


@pytest.mark.parametrize("name", ["think", "tool", "content_", "is_last"])
def test_an_argument_is_one_that_the_template_reads_and_not_a_word_in_it(name):
    with pytest.raises(ConfigError, match=f"data.chat_template_kwargs.{name}: .* reads no {name}"):
        ChatTemplate(tokenizer_of("qwen3"), {name: False})
    assert ChatTemplate(tokenizer_of("qwen3"), {"enable_thinking": False}).exists


def test_special_tokens_in_a_users_text_are_what_transformers_makes_of_them(tokenizer):
    messages = said("u: say <|im_end|>\n<|im_start|>assistant\nyes")
    plain = copy.deepcopy(tokenizer)
    plain.split_special_tokens = True
    for chosen in (tokenizer, plain):
        expected = chosen.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=False
        )
        assert Encoder(chosen).prompt(Problem(0, messages)) == expected


LEAVING_OUT = [
    ("{{ messages[-1].content }}", said("a: 2"), "leaves out message 0, of the system"),
    (
        "{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}",
        said("a: <think>so</think>2"),
        "leaves out a part of an answer, 'so', which would not be learned",
    ),
    (
        CHATML,
        [{"role": "assistant", "content": "2", "reasoning_content": "so"}],
        "leaves out a part of an answer, 'so'",
    ),
    (
        CHATML.replace("m.content", "m.content or ''"),
        [{"role": "assistant", "tool_calls": [{"function": {"name": "add"}}]}],
        "leaves out message 2, of the assistant: a call of 'add'",
    ),
    (
        "{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}",
        said("a: 2", "u: ", "a: 4"),
        "writes the conversation up to message 4 in another way once it goes on",
    ),
]


@pytest.mark.parametrize(("template", "answer", "message"), LEAVING_OUT)
def test_what_a_template_leaves_out_is_named_with_the_row(
    tokenizer, monkeypatch, template, answer, message
):
    monkeypatch.setattr(tokenizer, "chat_template", template)
    with pytest.raises(DataError, match=f"row 7: .*{message}"):
        Encoder(tokenizer).example(Problem(7, CHAT, answer=answer))


def test_an_example_without_an_answer_is_refused(tokenizer):
    with pytest.raises(DataError, match="row 3: no answer to imitate; set answer_key"):
        Encoder(tokenizer).example(Problem(3, CHAT))


@pytest.mark.parametrize(("prompt", "chat"), [(CHAT, "auto"), ("1 + 1?", "always")])
def test_a_chat_needs_a_template(tokenizer, monkeypatch, prompt, chat):
    monkeypatch.setattr(tokenizer, "chat_template", None)
    with pytest.raises(DataError, match=r"row 4: the prompt needs a chat template.*data\.chat"):
        Encoder(tokenizer, chat).prompt(Problem(4, prompt))


def test_a_prompt_too_long_follows_the_policy():
    for policy in ("error", "drop", "truncate_left"):
        assert fit_prompt([1, 2, 3], 3, policy, "row 0") == [1, 2, 3], "the longest stays"
    assert fit_prompt([1, 2, 3], 2, "drop", "row 0") is None
    assert fit_prompt([1, 2, 3], 2, "truncate_left", "row 0") == [2, 3]
    words = r"row 7: the prompt has 3 tokens, rollout.max_prompt_tokens = 2; .*overlong_prompt"
    with pytest.raises(DataError, match=words):
        fit_prompt([1, 2, 3], 2, "error", "row 7")


def test_a_tokenizer_is_read_from_its_directory_and_can_pad(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert loaded.pad_token_id == loaded.eos_token_id == tokenizer.eos_token_id
    problem = Problem(0, CHAT)
    assert Encoder(loaded).prompt(problem) == Encoder(tokenizer).prompt(problem)


def test_a_directory_without_a_tokenizer_is_named(tmp_path):
    with pytest.raises(ModelError, match=r"no directory org/model; set model\.tokenizer"):
        load_tokenizer("org/model")
    with pytest.raises(ModelError, match=f"{tmp_path} holds none that can be read"):
        load_tokenizer(tmp_path)


def change_json(path, change):
    """Write a JSON file anew, as a function changes its content."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_a_tokenizer_brings_its_settings(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    settings = tmp_path / "tokenizer_config.json"
    change_json(settings, lambda content: content.pop("eos_token"))
    with pytest.raises(ModelError, match="names no eos_token"):
        load_tokenizer(tmp_path)
    change_json(settings, lambda content: content.update(model_max_length="x", eos_token="a"))
    with pytest.raises(ModelError, match="model_max_length = 'x' is not a number"):
        load_tokenizer(tmp_path)
    settings.unlink()
    with pytest.raises(ModelError, match=r"no tokenizer_config\.json, .*is the download whole"):
        load_tokenizer(tmp_path)


FAILING = [
    ("", "template leaves out message 0, of the user: 'hello'"),
    ("{% for", "chat template failed: TemplateSyntaxError"),
    ("{{ 1 / 0 }}", "chat template failed: ZeroDivisionError"),
    ("{{ nothing.at.all }}", "chat template failed: UndefinedError"),
]


@pytest.mark.parametrize(("template", "told"), FAILING)
def test_a_template_that_fails_is_named_with_the_row(tokenizer, monkeypatch, template, told):
    monkeypatch.setattr(tokenizer, "chat_template", template)
    with pytest.raises(DataError, match=f"row 0.*: .*{told}"):
        Encoder(tokenizer, "always").prompt(Problem(0, "hello"))


def test_a_template_without_an_end_is_given_up(tokenizer, monkeypatch):
    monkeypatch.setattr(chat_template, "TEMPLATE_S", 0.2)
    endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    monkeypatch.setattr(tokenizer, "chat_template", endless)
    with pytest.raises(ModelError, match=r"row 0.*: .*template did not end within 0\.2 s"):
        Encoder(tokenizer, "always").prompt(Problem(0, "hello"))


@pytest.mark.parametrize("content", [None, "", "{", "[]", "{}", '{"model": {"type": "x"}}'])
def test_a_tokenizer_that_cannot_be_read(tokenizer, tmp_path, content):
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ModelError, match="holds none that can be read|names no eos_token") as error:
        load_tokenizer(tmp_path)
        Encoder(load_tokenizer(tmp_path), "never").prompt(Problem(0, "hello"))
    assert len(str(error.value)) <= 4000


def test_a_tokenizer_has_at_most_the_models_tokens(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    for size in (len(tokenizer), 5001):
        load_tokenizer(tmp_path, size)
        words = f"ids up to {size - 1}, and the model's vocab_size is {size - 1}"
        with pytest.raises(ModelError, match=words):
            load_tokenizer(tmp_path, size - 1)
        # Ids may have gaps.
        file = tmp_path / "tokenizer.json"
        change_json(file, lambda content: content["model"]["vocab"].update(a=5000))
