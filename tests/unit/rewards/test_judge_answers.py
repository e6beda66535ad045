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
    "Feedback: 9 steps hold. [RESULT] {}",
    "Rating: {} out of 10",
    "Correctness: {}/10",
    "The final score is {}.",
    "Overall score: {}\nClarity score: 9.5",
    "I would rate it {} out of 10.",
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
    "[[{}]]",
    "<verdict>{}</verdict>",
    "Judgement: **{}**",
    "The final answer of the student is {}.",
    "So the verdict is {}.",
    "\\boxed{{\\text{{{}}}}}",
]
AROUND = [
    "{}",
    'The task asks for "Score: 9.5" or "Verdict: incorrect".\n{}',
    "{}\n> Score: 9.5\n> Verdict: correct",
    "The highest score: 10\n{}",
    "Of 9.5 points of its rubric, 3 count.\n{}",
]
"""What stands around a verdict and says another value."""

PIECES = ["a", "a ", "score ", "Score: ", '"', "[[", "1", "give ", "is ", "\n>", "<think>", "* "]


def test_no_form_gives_another_value_than_the_one_in_it():
    words = (("correct", 10), ("incorrect", 0), ("not correct", 0), ("wrong", 0))
    for around in AROUND:
        for form in FORMS:
            for value in (0, 1, 2.25, 3, 5, 7.5, 8, 10):
                text = around.format(form.format(value))
                assert verdict(text) == value, text
        for form in WORDS:
            for word, right in words:
                text = around.format(form.format(word))
                assert verdict(text) == right, text


def test_a_box_that_is_quoted_is_no_verdict():
    """It is known by what stands behind it; where prose says another value, there is none."""
    quoted = "The student wrote \\boxed{{9.5}}, and the reference is 7.\n{}"
    for form, values in ((FORMS, (0, 2.25, 10)), (WORDS, ("correct", "not correct", "wrong"))):
        for value in values:
            right = {"correct": 10, "not correct": 0, "wrong": 0}.get(value, value)
            for one in form:
                text = quoted.format(one.format(value))
                assert verdict(text) in (None, right), text
                assert verdict(quoted.format(f"\n\nScore: {value}")) == right


def test_a_share_of_a_hundred_is_that_of_the_scale():
    for form in ("Score: {}%", "score = {} %", "Rating: [[{}%]]", "Final grade: **{}%**"):
        for value in (0, 12.5, 40, 100):
            assert verdict(form.format(value)) == pytest.approx(value / 10), form


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
