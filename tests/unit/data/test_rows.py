"""Rows as public data sets have them: what they say, and what contradicts itself."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.data.conftest import files, write_jsonl, write_parquet
from tests.unit.data.preference_shapes import PREFERENCES
from tests.unit.data.shapes import SHAPES, said
from verl_hpc.data.conversations import compared
from verl_hpc.data.messages import read_messages
from verl_hpc.data.sources import open_source
from verl_hpc.errors import DataError

ALL = [*SHAPES, *PREFERENCES]
NOTHING = {"prompt": "", "answer": None, "rejected": None, "label": None, "system": None}


def test_there_are_shapes_of_many_public_sets():
    assert len(dict(ALL)) == len(ALL) >= 60


@pytest.mark.parametrize("write", [write_jsonl, write_parquet])
def test_every_shape_is_read_or_refused_by_its_line(tmp_path, write):
    wrong = []
    for number, (name, shape) in enumerate(ALL):
        path = tmp_path / f"{number}.{write.__name__.removeprefix('write_')}"
        where = f"{path} line 1" if write is write_jsonl else f"{path} row 0"
        try:
            problem = read(write(path, [shape.row]), shape)
        except DataError as error:
            expected = shape.expected if isinstance(shape.expected, str) else "it is read"
            if not re.match(f"{re.escape(where)}: .*{expected}", str(error), re.DOTALL):
                wrong.append(f"{name}: {error}; expected: {expected}")
            continue
        if isinstance(shape.expected, str):
            wrong.append(f"{name}: is read; expected: {shape.expected}")
            continue
        expected = NOTHING | {"template_arguments": {}} | shape.expected
        read_fields = {field: getattr(problem, field) for field in expected}
        wrong += [f"{name}: {n} is {v}" for n, v in read_fields.items() if v != expected[n]]
    assert not wrong, "\n".join(wrong)


def test_fields_within_fields_are_followed_to_some_depth():
    nested = []
    for _ in range(2000):
        nested = [nested]
    with pytest.raises(DataError, match="the prompt has fields that are nested too deeply"):
        read_messages([{"role": "user", "content": "x", "tool_calls": nested}], "the prompt")


def read(path, shape):
    settings = dict(shape.settings)
    train_on = settings.pop("train_on", "all")
    return open_source(files(path, **settings), shape.needs, train_on)[0]


exchanges = st.lists(
    st.tuples(st.sampled_from("xy"), st.sampled_from("xy")), min_size=1, max_size=4
)


@given(exchanges, exchanges)
def test_nothing_of_two_conversations_is_left_out(one, other):
    """Prompt and answer together are each conversation again, and part where the model answers."""
    chosen, rejected = (
        said(*(word for asked, answered in words for word in (f"u: {asked}", f"a: {answered}")))
        for words in (one, other)
    )
    pairs = list(zip(chosen, rejected, strict=False))
    shared = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
    part_at_answers = shared < len(pairs) and chosen[shared]["role"] == "assistant"
    if not part_at_answers:
        with pytest.raises(DataError):
            compared(None, chosen, rejected)
        return
    prompt, better, worse = compared(None, chosen, rejected)
    assert (len(prompt), (prompt + better, prompt + worse)) == (shared, (chosen, rejected))
