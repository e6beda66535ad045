"""Numbers in short, and back."""

import pytest

from verl_hpc.config.spans import parse_spans, spans


@pytest.mark.parametrize(
    ("numbers", "text"), [([], ""), ([3], "3"), ([5, 0, 1, 2], "0-2, 5"), ([1, 3, 4], "1, 3-4")]
)
def test_ranks_in_short(numbers, text):
    assert spans(numbers) == text


@pytest.mark.parametrize("text", ["", "3", "0-3", "0-3,8", "0,2,4-7,63"])
def test_what_the_kernel_writes(text):
    assert spans(parse_spans(text), ",") == text
