"""Token ids that two models read differently."""

import json

import pytest

from verl_hpc.errors import ModelError
from verl_hpc.layout.vocabulary import first_other_token


@pytest.fixture
def model(tmp_path):
    """Directories with a tokenizer.json each; a list of texts is the vocabulary of a BPE."""

    def make(name, vocab, added=(), **fields):
        if isinstance(vocab, list) and isinstance(vocab[0], str):
            vocab = {text: number for number, text in enumerate(vocab)}
        added = [{"id": number, "content": text} for number, text in added]
        return write(name, {"model": {"vocab": vocab}, "added_tokens": added, **fields})

    def write(name, tree):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tokenizer.json").write_text(json.dumps(tree), encoding="utf-8")
        return tmp_path / name

    make.of = write
    return make


RESERVED = [(0, "<reserved 0>")]
STARTS = [(0, "<|im_start|>"), (3, "<pad>")]


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ((["x", "y", "z", "w"],), (["x", "Y", "z", "W"],), (1, "y", "Y")),
        # in any order
        (({"x": 0, "y": 1, "z": 2},), ({"z": 2, "q": 1, "p": 0},), (0, "x", "p")),
        (({"x": 0, "y": 1},), ({"y": 1, "x": 0},), None),
        # a token more
        ((["x", "y"],), (["x", "y", "pad"],), None),
        # added tokens, also where one model alone says that they are added
        ((["<reserved 0>", "x"], RESERVED), (["<|im_start|>", "x"], STARTS), None),
        ((["<reserved 0>", "x"], RESERVED), (["<unk>", "x"],), None),
        # the vocabulary of a Unigram
        (([["<unk>", 0.0], ["x", -1.5]],), ([["<unk>", 0.0], ["y", -1.5]],), (1, "x", "y")),
        (([["<unk>", 0.0], ["x", -1.5]],), (["<unk>", "x"],), None),
    ],
)
def test_the_first_id_with_another_text(model, ours, theirs, expected):
    one, other = model("a", *ours), model("b", *theirs)
    assert first_other_token(one, other) == expected
    swapped = expected and (expected[0], expected[2], expected[1])
    assert first_other_token(other, one) == swapped


def test_one_without_the_file(model, tmp_path):
    ours = model("a", ["x"])
    assert first_other_token(ours, tmp_path) is None
    assert first_other_token(tmp_path, ours) is None


def test_files_of_equal_bytes_are_not_parsed(model):
    pair = [model.of(name, {"model": 1}) for name in "ab"]
    assert first_other_token(*pair) is None
    assert first_other_token(pair[0], pair[0]) is None


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ([], "holds list; expected a JSON object"),
        ({}, "model.vocab is no table"),
        ({"model": []}, "model.vocab is no table"),
        ({"model": {"vocab": "xy"}}, "model.vocab is no table"),
        ({"model": {"vocab": {"x": True}}}, "model.vocab is no table"),
        ({"model": {"vocab": ["x"]}}, "model.vocab is no table"),
        ({"model": {"vocab": [[]]}}, "model.vocab is no table"),
        ({"model": {"vocab": [[1, 0.5]]}}, "model.vocab is no table"),
        ({"model": {"vocab": {}}, "added_tokens": {"x": 0}}, "added_tokens is no list"),
        ({"model": {"vocab": {}}, "added_tokens": [0]}, "added_tokens is no list"),
        ({"model": {"vocab": {}}, "added_tokens": [{"id": [0]}]}, "added_tokens is no list"),
    ],
)
def test_a_file_that_is_no_tokenizer(model, tree, words):
    ours, theirs = model("a", ["x"]), model.of("b", tree)
    with pytest.raises(ModelError, match=words) as caught:
        first_other_token(ours, theirs)
    assert str(theirs / "tokenizer.json") in str(caught.value)


def test_a_file_that_is_cut_off(model):
    ours, theirs = model("a", ["x"]), model("b", ["y"])
    text = (theirs / "tokenizer.json").read_text()
    (theirs / "tokenizer.json").write_text(text[:-5])
    with pytest.raises(ModelError, match="is not JSON .*is the download whole"):
        first_other_token(ours, theirs)
