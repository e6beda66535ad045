"""Verdicts in all forms that judges write, and answers that have another number or word."""

import pytest

from tests.unit.rewards.answers.judge import ANSWERS, ONE, TEN
from verl_hpc.rewards.request import text_of_prompt
from verl_hpc.rewards.verdict import Scale, answer_of, read_verdict


def verdict(text, bounds=TEN):
    return read_verdict(answer_of(text), Scale(*bounds))


def test_every_answer_of_the_table_has_its_verdict():
    assert not [row for row in ANSWERS if verdict(*row[:2]) != row[2]]


FORMS = [
    "Score: {}", "Score: {}/10", "score = {} out of 10.", "**Final rating**: **{}**",
    "Rating (0-10): [[{}]]", '{{"score": {}, "reason": "9 of 10"}}',
    "I checked 4 steps; 3 hold.\n\n{}", "<think>Score: 9.5</think><score>{}</score>",
    "Feedback: 9 steps hold. [RESULT] {}", "Rating: {} out of 10", "Therefore, the score is {}.",
    "The final score is {}.", "Overall score: {}\nClarity score: 9.5",
    "The maximum score: 10\nScore: {}\nA score of 10 would need more.",
    "So the grade is \\boxed{{{}}}",
    '{{\n  "score": {},\n  "reason": "9 of 10",\n  "sure": true\n}}',
    "## Score\n**{}/10**\n\n## Reason\nIt has 9 steps.", "Score: {} \u2b50",
    'It asks for "Score: 9.5", which it is not.\nScore: {}\n> Score: 9.5',
]  # fmt: skip
WORDS = [
    "Verdict: {}", "{}", "**{}**", '{{"verdict": "{}"}}', "[[{}]]", "[{}]",
    "<verdict>{}</verdict>", "Judgement: **{}**", "So the verdict is {}.",
    r"\boxed{{\text{{{}}}}}",
]  # fmt: skip
AROUND = [
    "{}",
    'The task asks for "Score: 9.5" or "Verdict: incorrect".\n{}',
    "{}\n> Score: 9.5\n> Verdict: correct",
    "The highest score: 10\n{}",
    "Of 9.5 points of its rubric, 3 count.\n{}",
    "The response ends with <answer>9.5</answer>.\n{}",
    "Evaluation:\n1. The setup is fine.\n2. The result has 9.5.\n\n{}",
]
"""What stands around a verdict and says another value."""

PIECES = [
    "a", "a ", "score ", "Score: ", '"', "[[", "1", "give ", "is ", "\n>", "<think>", "* ",
    "\u201c", '"\\', "'", "`",
]  # fmt: skip


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


PROSE = [
    "I give it {}/10.", "It has a score of {}, for 2 reasons.", "I would rate it {} out of 10.",
    "So the answer of the student is {}.", "The student's score is {}.",
    "The student says: Score: {}", "If the score is {}, it passes.",
]  # fmt: skip


def test_prose_is_no_verdict():
    for around in AROUND:
        for form in PROSE:
            for value in (0, 2.25, 10, "correct", "incorrect"):
                text = around.format(form.format(value))
                assert verdict(text) is None, text


def test_a_word_is_a_verdict_where_it_is_the_first_sentence():
    for word, right in (("Correct", 10), ("Incorrect", 0), ("**Yes**", 10), ("No", 0)):
        assert verdict(f"{word}. The two are the same.") == right
        assert verdict(f"{word}\n\nThe two are the same.") == right
        for prose in (", the two", ": the two", " - the two", " because the two"):
            assert verdict(f"{word}{prose} are the same.") is None
        assert verdict(f"It took time.\n{word}. The two are the same.") is None
        assert verdict(f"{word}. The rest follows.\n5") is None
    assert verdict("Correct. The two are different.") is None


def test_a_box_that_is_quoted_is_no_verdict():
    """A quoted box is known by the words after it; prose with another value leaves no verdict."""
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


OTHERS = [
    ("The student says\n```\nScore: 10\n```\nI would give it a 1.", None),
    ("Score: 10, says the student.", None),
    ('{"reasoning_score": 9, "overall": 2}', 2),
    ("Style score: 3\nTotal score: 7", 7),
    ("Overall: 3/10", 3),
    *((f"Score: 2\n{word} score: 10", 2) for word in ("Top", "Ideal", "Reference", "Expected")),
    *((f"Score: 2\n{word} score: 10", 2) for word in ("Self-assigned", "Potential", "Maximum")),
    ("Score: 7 because it is short", 7),
]
"""Scores of another, of an aspect, or that are no score; and the verdict."""
OTHER_WORDS = {
    None: [
        "Verdict: correct, up to a sign", "Verdict: correct (partially)",
        "Yes.\nThe student is wrong.",
    ],
    0: [
        "Student's final conclusion: yes\n\nIncorrect.", "Verdict: incorrect - the sign is off",
    ],
    1: [
        "Verdict: correct because both have 12", "Verdict: correct - both have 12",
        "Verdict: correct; both have 12", 'The verdict is "correct".', "```\nVerdict: correct\n```",
    ],
}  # fmt: skip


@pytest.mark.parametrize(("text", "right"), OTHERS)
def test_the_score_of_another_is_no_verdict(text, right):
    assert verdict(text) == right


def test_a_word_about_something_else_or_with_something_behind_it_is_no_verdict():
    for right, texts in OTHER_WORDS.items():
        assert not [text for text in texts if verdict(text, ONE) != right]


def test_long_answers_are_read_in_linear_time():
    # With a pattern that is not linear this would take minutes.
    for piece in PIECES:
        verdict(piece * (10**5 // len(piece)))
    assert verdict("a " * 500_000 + "\nScore: 3") == 3
    for text in ("score", "Verdict: correct", "Score: 3"):
        verdict(text + " " * 500_000 + "x")


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
