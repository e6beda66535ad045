"""Tokenizers of tiny models."""

import pytest

from tests.unit.config.test_run import parse
from verl_hpc.config.load import dump_config
from verl_hpc.testing.tiny import _heads, common_phrases, main

QUESTIONS = ["Reverse: ab ->", "Reverse: abc ->", "Reverse: x ->"]


@pytest.mark.parametrize(
    ("texts", "phrases"),
    [
        (QUESTIONS, ["Reverse: ", " ->"]),
        (["1?", "2?"], []),  # a byte is a token anyway
        (["same", "same"], ["same"]),
        (["aaaa", "aaa"], ["aaa"]),  # what it begins with, it does not end with, too
        ([], []),
    ],
)
def test_what_all_texts_begin_and_end_with(texts, phrases):
    assert common_phrases(texts) == phrases


def test_heads_are_of_a_size_that_vllm_takes_on_cpus():
    for given, heads, groups in (
        ({}, 4, 2),
        ({"hidden_size": 64}, 2, 1),
        ({"hidden_size": 16}, 1, 1),
        ({"num_attention_heads": 3}, 3, 3),
    ):
        sizes = given | _heads(given)
        assert (sizes["num_attention_heads"], sizes["num_key_value_heads"]) == (heads, groups)
        assert sizes["hidden_size"] // heads in (32, given.get("hidden_size"))


def test_a_tokenizer_for_a_run_has_one_token_a_letter(tmp_path):
    from transformers import AutoConfig, AutoTokenizer

    task = {"kind": "reasoning_gym", "task": "spell_backward", "size": 20}
    config = tmp_path / "run.yaml"
    config.write_text(dump_config(parse(data__train=task | {"template": "{question} ->"})))
    model, phrases = tmp_path / "model", tmp_path / "phrases.json"
    phrases.write_text('["sed -i"]')
    words = ["--prompts-of", str(config), "--phrases", str(phrases)]
    assert main(["--out", str(model), *words]) == 0

    tokenizer = AutoTokenizer.from_pretrained(model)
    prompt = "Spell this word backward (example: sun -> nus): zyx ->"
    ids = tokenizer(prompt)["input_ids"]
    assert len(ids) == 5
    assert tokenizer.convert_ids_to_tokens(ids[1:4]) == ["z", "y", "x"]
    assert tokenizer.decode(ids) == prompt
    assert AutoConfig.from_pretrained(model).vocab_size == len(tokenizer) == 3 + 256 + 3
    assert len(tokenizer("sed -i x")["input_ids"]) == 3
