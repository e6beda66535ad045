r"""\boxed{} and its kin."""

import pytest

from verl_hpc.boxed import box_spans, last_boxed


@pytest.mark.parametrize(
    ("text", "boxed"),
    [
        (r"\boxed{7}", "7"),
        (r"\boxed {7}", "7"),
        ("\\boxed\n{7}", "7"),
        (r"\fbox{7}", "7"),
        (r"\boxed 7", "7"),
        (r"\boxed 7.", "7"),
        (r"so \boxed 7 it is", "7"),
        (r"$\boxed x + 1$ is it", "x + 1"),
        (r"\(\boxed 7\)", "7"),
        (r"\boxed7", "7"),
        (r"\boxed{1} then \boxed{\frac{a}{\sqrt{b}}}.", r"\frac{a}{\sqrt{b}}"),
        (r"\boxed{1} then \fbox{2}", "2"),
        (r"\fbox{1} then \boxed{2}", "2"),
        (r"\boxed{\left\{ 1 \right.}", r"\left\{ 1 \right."),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{a \\}", r"a \\"),
        (r"\boxed{\text{\fbox{A}}}", r"\text{\fbox{A}}"),
        (r"\boxed{\boxed{5}, 6}", r"\boxed{5}, 6"),
        (r"{ \boxed{5}", "5"),
        (r"\boxed{5} goes into \boxed{}.", "5"),
        (r"\boxed{5}, no: \boxed{6", None),
        (r"\boxed{", None),
        (r"\boxed{}", None),
        (r"\boxed", None),
        (r"\boxedtext{5}", None),
        ("7", None),
    ],
)
def test_last_boxed(text, boxed):
    assert last_boxed(text) == boxed


def test_every_box_is_found_in_order_also_where_one_is_open():
    text = r"\boxed{a \fbox{b}} \boxed{c \boxed d$"
    found = [text[start:end] if end else None for start, end in box_spans(text)]
    assert found == [r"a \fbox{b}", "b", None, "d"]
