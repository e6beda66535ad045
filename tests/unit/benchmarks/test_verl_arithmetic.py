"""The reward, the tokenizer and the bar of verl's end-to-end test."""

import pytest

from benchmarks.verl_arithmetic.reward import right_answer, score
from benchmarks.verl_arithmetic.run import outcome
from benchmarks.verl_arithmetic.set_up import CHARACTERS, write_tokenizer
from verl_hpc.data.tokenizer import load_tokenizer


def test_the_right_answer_goes_on_as_the_sequence_begins():
    for question, answer in {
        "8,3:9,4": "7,2,6,1",
        "3,3:9,2": "3,3",
        "5,8:9,0": "",
        "7,8:20,3": "9,10,11",
        "9,1:20,2": "13,5",
    }.items():
        assert right_answer(question) == answer


def rewards(question, response):
    ids = [CHARACTERS.index(character) for character in response]
    return score(ids, [{"role": "user", "content": question}])


def test_each_character_before_the_first_wrong_one_earns_a_share():
    fourth = pytest.approx(1 / 4)
    for response, expected in {
        "3,3E": [fourth] * 4,
        "3,3": [fourth] * 3,
        "3,": [fourth] * 2,
        "3,E": [fourth] * 3,
        "3,4E": [fourth, fourth, 0, 0],
        "4,3E": [0] * 4,
        "3,3,E": [fourth] * 3 + [0, 0],
        "E": [0],
        "SE": [0, 0],
        "": [],
    }.items():
        assert rewards("3,3:9,2", response) == expected, response
    assert rewards("3,3:9,0", "E") == [1.0]
    assert rewards("3,3:9,0", "3E") == [0, 0]


def test_tokens_are_characters(tmp_path):
    write_tokenizer(tmp_path)
    tokenizer = load_tokenizer(tmp_path, vocab_size=16)
    chat = [{"role": "user", "content": "8,3:9,4"}]
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    assert "".join(CHARACTERS[token] for token in ids) == "8,3:9,4S"
    assert tokenizer.encode("0:,9E") == [4, 15, 14, 13, 1]
    assert tokenizer.encode("x") == [3]
    assert tokenizer.decode([11, 14, 7]) == "7,3"
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2)


def test_the_last_ten_steps_are_those_of_the_end():
    rows = [{"step": 0, "val/score/mean": 0.01}]
    for step in range(1, 31):
        reward = 0.01 * step if step != 25 else 0.9
        test = 1.0 if step > 20 else 0.0
        rows.append({"step": step, "critic/rewards/mean": reward, "val/score/mean": test})
    expected = {"start": 0.01, "first": 0.01, "last_ten": 1.0}
    expected |= {"best": 0.9, "best_step": 25, "passed": 21}
    assert {name: outcome(rows)[name] for name in expected} == expected
