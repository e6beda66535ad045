"""Verdicts in all forms that judges write, and answers that have another number or word."""

import pytest

from tests.unit.rewards.answers.judge import ANSWERS, LOOKS_GOOD, TEN
from verl_hpc.rewards.request import text_of_prompt
from verl_hpc.rewards.verdict import Scale, answer_of, read_verdict


def verdict(text, bounds=TEN):
    return read_verdict(answer_of(text), Scale(*bounds))


def test_the_table_is_what_it_says():
    cited = [answer for answer in LOOKS_GOOD if answer[3]]
    assert len(ANSWERS) >= 60 and 3 * len(LOOKS_GOOD) >= len(ANSWERS)
    assert 2 * len(cited) >= len(LOOKS_GOOD)


def test_every_answer_of_the_table_has_its_verdict():
    found = [(text, verdict(text, bounds), right, src) for text, bounds, right, src in ANSWERS]
    assert not [case for case in found if case[1] != case[2]]


FORMS = [
    "Score: {}",
    "Score: {}/10",
    "score = {} out of 10.",
    "**Final rating**: **{}**",
    "Rating (0-10): [[{}]]",
    '{{"score": {}, "reason": "9 of 10"}}',
    "I checked 4 steps; 3 hold.\n\n{}",
    "I give it {}/10.",
    "It has a score of {}, for 2 reasons.",
    "<think>Score: 9.5</think><score>{}</score>",
    "The maximum score: 10\nScore: {}\nA score of 10 would need more.",
    "So the grade is \\boxed{{{}}}",
    'It asks for "Score: 9.5", which it is not.\nScore: {}\n> Score: 9.5',
]
WORDS = [
    "Verdict: {}",
    "The response is {}.",
    "{}",
    "**{}**",
    '{{"verdict": "{}"}}',
    "{}. So it is.",
]

PIECES = ["a", "a ", "score ", "Score: ", '"', "[[", "1", "give ", "is ", "\n>", "<think>", "* "]


def test_no_form_gives_another_value_than_the_one_in_it():
    for form in FORMS:
        for value in (0, 1, 2.25, 3, 5, 7.5, 8, 10):
            assert verdict(form.format(value)) == value, (form, value)
    for form in WORDS:
        for word, right in (("correct", 10), ("incorrect", 0), ("not correct", 0), ("wrong", 0)):
            assert verdict(form.format(word)) == right, (form, word)


def test_long_answers_are_read_in_linear_time():
    # With a pattern that is not linear this would take minutes.
    for piece in PIECES:
        verdict(piece * (10**5 // len(piece)))
    assert verdict("a " * 500_000 + "\nScore: 3") == 3


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ("as it is", "as it is"),
        ([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "a\n\nb"),
        ([{"role": "assistant", "tool_calls": []}, {"role": "tool", "content": "4"}], "4"),
        ([{"role": "assistant", "content": None}, {"role": "user", "content": "a"}], "a"),
        (
            [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}, "b"]}],
            "ab",
        ),
    ],
)
def test_the_words_of_a_prompt_are_those_of_its_messages(prompt, text):
    assert text_of_prompt(prompt) == text
