"""A wrong value scores 0 in every form in which the right one scores 1."""

from hypothesis import given
from hypothesis import strategies as st

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
BEFORE = ["", "Option {} looks fine.\n", "({}) fails. ", "It is not {}.\n\n", "Is {} right? "]
AFTER = ["", "\n\nOption {} fails.", "\nNote that {} is a distractor."]


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
