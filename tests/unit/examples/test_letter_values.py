"""The models of the letters' values score what they are said to."""

import json

import pytest
import torch

from examples.letter_values import LETTERS, NUM_LETTERS, ROWS, VALUES, main, make_scorer


def mean_value(values, answer):
    return sum(values.get(letter, 0.0) for letter in answer) / len(answer)


@pytest.mark.parametrize("name", VALUES)
def test_a_scorer_gives_the_mean_value_of_an_answers_letters(tmp_path, name):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    directory = make_scorer(tmp_path / name, VALUES[name])
    model = AutoModelForSequenceClassification.from_pretrained(directory)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    for answer in ("abcdabcd", "bbbbbbbb", "cccccccc", "bcccccca", "?!bb  a?"):
        ids = tokenizer.encode("1234567=" + answer)
        assert len(ids) == 2 * NUM_LETTERS
        score = model(torch.tensor([ids])).logits.item()
        assert score == pytest.approx(mean_value(VALUES[name], answer), abs=1e-4)


def test_rows_are_different_prompts_with_random_answers(tmp_path):
    assert main(["--out", str(tmp_path), "--seed", "3"]) == 0
    prompts = set()
    for name, count in ROWS.items():
        rows = [json.loads(line) for line in (tmp_path / f"{name}.jsonl").open()]
        prompts |= {row["prompt"] for row in rows}
        assert len(rows) == count
        assert all(len(row[key]) == NUM_LETTERS for row in rows for key in row)
        assert set("".join(row["answer"] for row in rows)) == set(LETTERS)
    assert len(prompts) == sum(ROWS.values())
