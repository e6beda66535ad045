"""Token ids of prompts and answers, with a tokenizer of one token a byte."""

import json

import pytest

from verl_hpc.data import prompts
from verl_hpc.data.problem import Problem
from verl_hpc.data.prompts import encode_examples, encode_prompt, fit_prompt, load_tokenizer
from verl_hpc.errors import DataError, ModelError

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 1?"}]
TEMPLATED = (
    "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n1 + 1?<|im_end|>\n"
    "<|im_start|>assistant\n"
)


@pytest.mark.parametrize(
    ("prompt", "chat", "text"),
    [
        (CHAT, "auto", TEMPLATED),
        (CHAT, "always", TEMPLATED),
        (CHAT, "never", "Be brief.\n\n1 + 1?"),
        ("1 + 1?", "auto", "1 + 1?"),
        ("1 + 1?", "never", "1 + 1?"),
        ("1 + 1?", "always", "<|im_start|>user\n1 + 1?<|im_end|>\n<|im_start|>assistant\n"),
    ],
)
def test_prompts_become_a_list_of_ids(tokenizer, prompt, chat, text):
    ids = encode_prompt(Problem(0, prompt), tokenizer, chat)
    assert type(ids) is list
    assert tokenizer.decode(ids) == text


def test_an_example_ends_with_the_end_of_sequence_token(tokenizer):
    problem = Problem(0, CHAT, answer="2")
    prompt, answer = encode_examples(problem, tokenizer, "auto")
    assert prompt == encode_prompt(problem, tokenizer, "auto")
    assert tokenizer.decode(answer) == "2<|im_end|>"
    assert answer[-1] == tokenizer.eos_token_id


def test_both_answers_of_a_pair_end_so(tokenizer):
    problem = Problem(0, CHAT, answer="2", rejected="3")
    prompt, *answers = encode_examples(problem, tokenizer, "auto", 2)
    assert prompt == encode_prompt(problem, tokenizer, "auto")
    assert [tokenizer.decode(ids) for ids in answers] == ["2<|im_end|>", "3<|im_end|>"]
    with pytest.raises(DataError, match="row 0: no pair of answers; columns chosen and rejected"):
        encode_examples(Problem(0, CHAT, answer="2"), tokenizer, "auto", 2)


def test_an_example_without_an_answer_is_refused(tokenizer):
    with pytest.raises(DataError, match="row 3: no answer to imitate; set answer_key"):
        encode_examples(Problem(3, CHAT), tokenizer, "auto")


@pytest.mark.parametrize(("prompt", "chat"), [(CHAT, "auto"), ("1 + 1?", "always")])
def test_a_chat_needs_a_template(tokenizer, monkeypatch, prompt, chat):
    monkeypatch.setattr(tokenizer, "chat_template", None)
    with pytest.raises(DataError, match=r"row 4: the prompt needs a chat template.*data\.chat"):
        encode_prompt(Problem(4, prompt), tokenizer, chat)


@pytest.mark.parametrize("policy", ["error", "drop", "truncate_left"])
def test_a_prompt_of_the_longest_length_stays(policy):
    assert fit_prompt([1, 2, 3], 3, policy, "row 0") == [1, 2, 3]


def test_a_prompt_too_long_follows_the_policy():
    assert fit_prompt([1, 2, 3], 2, "drop", "row 0") is None
    assert fit_prompt([1, 2, 3], 2, "truncate_left", "row 0") == [2, 3]
    with pytest.raises(
        DataError,
        match=r"row 7: the prompt has 3 tokens, rollout.max_prompt_tokens = 2; .*overlong_prompt",
    ):
        fit_prompt([1, 2, 3], 2, "error", "row 7")


def test_a_tokenizer_is_read_from_its_directory_and_can_pad(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert loaded.pad_token_id == loaded.eos_token_id == tokenizer.eos_token_id
    problem = Problem(0, CHAT)
    assert encode_prompt(problem, loaded, "auto") == encode_prompt(problem, tokenizer, "auto")


def test_a_directory_that_does_not_exist_is_never_looked_for_elsewhere():
    with pytest.raises(ModelError, match=r"no directory org/model; set model\.tokenizer"):
        load_tokenizer("org/model")


def test_a_directory_without_a_tokenizer_is_named(tmp_path):
    with pytest.raises(ModelError, match=f"{tmp_path} holds none that can be read"):
        load_tokenizer(tmp_path)


def test_a_tokenizer_must_know_how_to_end(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    settings = tmp_path / "tokenizer_config.json"
    content = json.loads(settings.read_text())
    del content["eos_token"]
    settings.write_text(json.dumps(content))
    with pytest.raises(ModelError, match="names no eos_token"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("template", "told"),
    [
        ("", "the prompt has no tokens"),
        ("{% for", "chat template failed: TemplateSyntaxError"),
        ("{{ 1 / 0 }}", "chat template failed: ZeroDivisionError"),
        ("{{ nothing.at.all }}", "chat template failed: UndefinedError"),
    ],
)
def test_a_template_that_fails_is_named_with_the_row(tokenizer, monkeypatch, template, told):
    monkeypatch.setattr(tokenizer, "chat_template", template)
    with pytest.raises(DataError, match=f"row 0.*: .*{told}"):
        encode_prompt(Problem(0, "hello"), tokenizer, "always")


def test_a_template_without_an_end_is_given_up(tokenizer, monkeypatch):
    monkeypatch.setattr(prompts, "TEMPLATE_S", 0.2)
    endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    monkeypatch.setattr(tokenizer, "chat_template", endless)
    with pytest.raises(ModelError, match=r"row 0.*: .*template did not end within 0\.2 s"):
        encode_prompt(Problem(0, "hello"), tokenizer, "always")


def test_a_tokenizer_brings_its_settings(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    settings = tmp_path / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"model_max_length": "x"}))
    with pytest.raises(ModelError, match="model_max_length = 'x' is not a number"):
        load_tokenizer(tmp_path)
    settings.unlink()
    with pytest.raises(ModelError, match=r"no tokenizer_config\.json, .*is the download whole"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("content", [None, "", "{", "[]", "{}", '{"model": {"type": "x"}}'])
def test_a_tokenizer_that_cannot_be_read(tokenizer, tmp_path, content):
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ModelError, match="holds none that can be read|names no eos_token") as error:
        load_tokenizer(tmp_path)
        encode_prompt(Problem(0, "hello"), load_tokenizer(tmp_path), "never")
    assert len(str(error.value)) <= 4000


def test_a_tokenizer_has_at_most_the_models_tokens(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    load_tokenizer(tmp_path, len(tokenizer))
    with pytest.raises(
        ModelError, match=f"ids up to {len(tokenizer) - 1}, and the model's vocab_size"
    ):
        load_tokenizer(tmp_path, len(tokenizer) - 1)


def test_ids_with_gaps_are_the_models_too(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    file = tmp_path / "tokenizer.json"
    content = json.loads(file.read_text())
    content["model"]["vocab"]["a"] = 5000
    file.write_text(json.dumps(content))
    load_tokenizer(tmp_path, 5001)
    with pytest.raises(ModelError, match="ids up to 5000, and the model's vocab_size is 5000"):
        load_tokenizer(tmp_path, 5000)
