"""A wrong value scores 0 in every form in which the right one scores 1."""

from decimal import Decimal
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from verl_hpc.rewards.functions.gsm8k import extract_number
from verl_hpc.rewards.functions.math import compute_score
from verl_hpc.rewards.letters import extract_letter

ALONE = ["{}", "{}.", "({})", "**{}**", "{})"]
LETTER_FORMS = [
    *ALONE, "Answer: {}", "answer:{}", "**Answer:** {}", "Answer - {}", "Answer: `{}`",
    "The answer is {}.", "The answer is ({}).", "The correct answer is **{}**", "ANSWER IS {}",
    "The best answer is:\n({}) some words", "Answer: {} because of it", "So ({}).",
    "Therefore, {}.", "I would pick {} as it is safe.", "{} is correct.", "Option {} is right.",
    "We choose {}!", "The correct option is {}.", "<answer>{}</answer>", "<answer> ({}) </answer>",
    r"\boxed{{{}}}", r"\boxed {{{}}}", r"\fbox{{{}}}", r"\boxed {}", r"$\boxed{{\text{{{}}}}}$",
    r"\boxed{{\textbf{{({})}}}}", r"\boxed{{{}: some words}}", r"\boxed{{({}) some words}}",
]  # fmt: skip
BEFORE = [
    "", "Option {} looks fine.\n", "({}) fails. ", "It is not {}.\n\n", "Is {} right? ",
    "If the answer is {}, then it floats. ", "Some would say that the answer is {}.\n",
    "At first I thought the answer was {}.\n", "<think>Maybe \\boxed{{{}}}?</think>\n",
    "A. x\nB. y\nC. z\n", "Let A = 1 and B = 2. ", "Let me check ({}): it fails.\n",
    "Answer choice {}: it is small.\n", "- Answer choice ({}) is wrong.\n", "You may choose {}. ",
]  # fmt: skip
AFTER = [
    "", "\n\nOption {} fails.", "\nNote that {} is a distractor.", "\n\nWhy not {}? It melts.",
    "\nChoice {} would be right if it rained.", "\n{} is correct only if it rains.",
    "\nAnswer choice {} is not supported.", "\n\nNote: many choose {}.", " (Not {}.)",
    "\n\nHope this helps! A good day.", "\n- {}: wrong\n- the rest: wrong", "\n({}) is wrong.",
]  # fmt: skip


@given(
    st.permutations("ABCDEFGHIJ"),
    st.sampled_from(LETTER_FORMS),
    st.sampled_from(BEFORE),
    st.sampled_from(AFTER),
)
def test_a_letter_is_read_in_every_form_among_mentions_of_others(letters, form, before, after):
    given_, other, third, *_ = letters
    if form in ALONE:
        before = after = ""
    response = f"{before.format(other)}{form.format(given_)}{after.format(third)}"
    assert extract_letter(response, dict.fromkeys(letters, "")) == given_


CITIES = ["Paris", "Rome", "Oslo", "New York", "Bern", "Lima", "Port-au-Prince", "15", "-15", "No"]
WORD_FORMS = [
    "The answer is {words}.", "Answer: {words}", "**Answer:** {words}", r"\boxed{{{words}}}",
    r"\boxed{{\text{{{words}}}}}", "<answer>{words}</answer>", r"\boxed{{{letter}. {words}}}",
    "The correct answer is **{words}**.", "The answer is {letter}. {words}",
    "Answer: ({letter}) {words}", "The best answer is {words}, because it is large.",
    r"It is \boxed{{{other}}}, or rather \boxed{{{words}}}.",
    r"\boxed{{{other_letter}}} was wrong: \boxed{{{letter}}}", r"$\boxed{{\mathrm{{({letter})}}}}$",
]  # fmt: skip


@given(
    st.permutations(CITIES),
    st.sampled_from(WORD_FORMS),
    st.sampled_from(BEFORE),
    st.sampled_from(AFTER),
)
def test_the_words_of_a_choice_are_read_in_every_form_among_others(words, form, before, after):
    choices = dict(zip("ABCDEFGHIJ", words, strict=True))
    said = {"letter": "C", "words": choices["C"], "other_letter": "D", "other": choices["D"]}
    response = f"{before.format(choices['E'])}{form.format(**said)}{after.format(choices['F'])}"
    assert extract_letter(response, choices) == "C"


NUMBER_FORMS = [
    "{}", "{}.", "${}", "${}.", "**{}**", "{} dollars", "{}%", "{} percent", "{}\u20ac", "{}kg",
    "{}/day", "{} of 7", "{}, that is all", "1 + 2 = {}", "x = {}", "{} = 1 + 2",
]  # fmt: skip
"""What stands after the mark."""


def written(value):
    """A decimal in all the ways in which people write it."""
    plain = f"{value:f}"
    return [plain, f"{value:,f}", f"{value:,f}".replace(",", " "), plain.replace("-", "\u2212")]


@given(
    st.decimals(-(10**7), 10**7, places=2),
    st.integers(0, 3),
    st.sampled_from(NUMBER_FORMS),
    st.sampled_from(["", "\n" + "so much for that " * 30, "\n#### none"]),
)
def test_a_number_is_read_in_every_form(value, way, form, after):
    value = value.quantize(Decimal(1)) if value == value.to_integral_value() else value
    response = f"First 3 * 4 = 12.\n#### {form.format(written(value)[way])}{after}"
    assert extract_number(response, "strict") == Fraction(value)


@given(st.integers(0, 999), st.integers(1, 999), st.sampled_from("+-*/^:,x"))
def test_a_part_of_what_is_written_is_no_answer(first, second, mark):
    whole = f"{first}{mark}{second}"
    for method in ("strict", "flexible"):
        found = extract_number(f"#### {whole}", method)
        if mark == "/":
            assert found == Fraction(first, second)
        elif mark == "," and first > 0 and len(str(second)) == 3:
            assert found == Fraction(f"{first}{second}")
        else:
            assert found is None


FORMULA_FORMS = [
    r"\boxed{{{}}}", r"\boxed {{{}}}", r"$\boxed{{{}}}$.", r"\[\boxed{{{}}}\]", r"\fbox{{{}}}",
    r"\boxed{{${}$}}", r"\boxed{{\left({}\right)}}", r"\boxed{{x = {}}}", r"$\boxed {}$",
    r"\boxed{{{}\text{{ cm}}}}", r"The answer is ${}$.", "The answer is {}.", "**Answer:** {}",
    "Answer: {}",
    "The answer is:\n$$\n{}\n$$", "The answer is **{}**.", r"\(\fbox{{{}}}\)",
]  # fmt: skip
FRACTIONS = [r"\frac{{{}}}{{{}}}", r"\dfrac{{{}}}{{{}}}", "{}/{}", r"\frac {{{}}} {{{}}}"]
AROUND = ["{}", "({},7)", "[{},99)", r"\{{{},7\}}", r"{}\sqrt{{2}}", "x^2+{}", r"x \leq {}"]
"""Truths that a value is a part of."""


def is_right(response, truth):
    return compute_score(response, truth, timeout_s=60.0) == 1.0


@given(
    st.fractions(-99, 99, max_denominator=30),
    st.fractions(-99, 99, max_denominator=30),
    st.sampled_from(FORMULA_FORMS),
    st.sampled_from(FRACTIONS),
)
def test_a_fraction_is_right_in_every_form_and_another_one_in_none(value, other, form, fraction):
    written = str(value) if value.denominator == 1 else fraction.format(*value.as_integer_ratio())
    response = f"{form.format('123')}\n{form.format(written)}"
    assert is_right(response, str(value))
    assert is_right(response, str(other)) == (value == other)


VARIABLE_FORMS = ["{}{}", "7+{}{}", r"{}\pi {}", r"\sqrt{{{}}}{}", "-16t^2+{}{}", "x^2 + {} {}"]
"""Truths that end in a variable: letters such as t, h or m may be taken for units."""


@given(
    st.integers(2, 99),
    st.permutations("abcdghklmnopqrstuvwxyz"),
    st.integers(1, 2),
    st.sampled_from(VARIABLE_FORMS),
)
def test_a_variable_at_the_end_is_no_unit(value, letters, length, form):
    one, other = "".join(letters[:length]), "".join(letters[length : 2 * length])
    truth = form.format(value, one)
    assert is_right(rf"\boxed{{{truth}}}", truth)
    for wrong in (form.format(value, other), form.format(value, "").rstrip()):
        assert not is_right(rf"\boxed{{{wrong}}}", truth)
    assert form == "{}{}" or not is_right(rf"\boxed{{{truth}}}", form.format(value, "").rstrip())


@given(st.decimals(-999, 999, places=2), st.decimals(-999, 999, places=2), st.sampled_from(AROUND))
def test_a_decimal_is_right_in_every_formula_and_another_one_in_none(value, other, around):
    truth = around.format(value)
    response = rf"\boxed{{{around.format(f'{value.normalize():f}')}}}"
    assert is_right(response, truth)
    assert is_right(response, around.format(other)) == (value == other)


STATEMENTS = [
    "The answer is {}.", "Answer: {}", "The final answer is ${}$.", "**Answer:** {}", "ANSWER: {}",
    "The answer is \\({}\\).", "The answer is:\n\\[\n{}\n\\]", "The answer is {} cm", "Answer = {}",
    "So the answer to the question is {}, as said.", "The answer is $x = {}$.", "Answer:{}",
    "The answer is {} because of it.", "The answer is therefore {}.", "The answer would be {}.",
    "The final answer is ${}$. I hope it is correct.",
]  # fmt: skip
MENTIONED = [
    "", "The answer is not {}. ", "If the answer is {}, it fails. ", "We know {} is prime. ",
    "At first, the answer was {}. ", "The answer to part 1 is {}. ", "A wrong answer is {}. ",
]  # fmt: skip
MENTIONED_AFTER = [
    "", "\nNote that {} is wrong.", "\nThe answer is not {}.", "\nCheck: 9 - {} = 0.",
    "\n\n{} would be the answer if it rained.",
]  # fmt: skip


@given(
    st.lists(st.integers(-99, 99), min_size=3, max_size=3, unique=True),
    st.sampled_from(STATEMENTS),
    st.sampled_from(MENTIONED),
    st.sampled_from(MENTIONED_AFTER),
)
def test_an_answer_without_a_box_is_read_among_other_numbers(numbers, form, before, after):
    value, other, third = numbers
    response = f"{before.format(other)}{form.format(value)}{after.format(third)}"
    found = [number for number in numbers if is_right(response, str(number))]
    assert found == [value]
