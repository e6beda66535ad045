"""Token ids that two models read differently."""

import json

import pytest

from verl_hpc.errors import ModelError
from verl_hpc.layout.vocabulary import first_other_token


@pytest.fixture
def model(tmp_path):
    """Directories with a tokenizer.json each; a list of texts is the vocabulary of a BPE."""

    def make(name, vocab, added=(), **fields):
        if isinstance(vocab, list):
            vocab = {text: number for number, text in enumerate(vocab)}
        added = [{"id": number, "content": text} for number, text in added]
        return write(name, {"model": {"vocab": vocab}, "added_tokens": added, **fields})

    def write(name, tree):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tokenizer.json").write_text(json.dumps(tree), encoding="utf-8")
        return tmp_path / name

    make.of = write
    return make


def test_the_first_id_with_another_text(model):
    ours, theirs = model("a", ["x", "y", "z", "w"]), model("b", ["x", "Y", "z", "W"])
    assert first_other_token(ours, theirs) == (1, "y", "Y")
    assert first_other_token(theirs, ours) == (1, "Y", "y")


def test_the_order_in_the_file_does_not_matter(model):
    ours, theirs = model("a", {"x": 0, "y": 1, "z": 2}), model("b", {"z": 2, "q": 1, "p": 0})
    assert first_other_token(ours, theirs) == (0, "x", "p")
    assert first_other_token(ours, model("c", {"z": 2, "y": 1, "x": 0})) is None


def test_a_token_more_is_not_another_token(model):
    assert first_other_token(model("a", ["x", "y"]), model("b", ["x", "y", "pad"])) is None


def test_added_tokens_may_have_other_names(model):
    """Also where the vocabulary has them, and where one model alone says that they are added."""
    ours = model("a", ["<reserved 0>", "x", "y"], added=[(0, "<reserved 0>")])
    theirs = model("b", ["<|im_start|>", "x", "y"], added=[(0, "<|im_start|>"), (3, "<pad>")])
    plain = model("c", ["<unk>", "x", "y"])
    for one, other in ((ours, theirs), (ours, plain), (plain, ours)):
        assert first_other_token(one, other) is None


def test_the_vocabulary_of_a_unigram(model):
    def unigram(*texts):
        return {"model": {"type": "Unigram", "vocab": [[text, -1.5] for text in texts]}}

    ours, theirs = model.of("a", unigram("<unk>", "x", "y")), model.of("b", unigram("<unk>", "y"))
    assert first_other_token(ours, theirs) == (1, "x", "y")
    assert first_other_token(ours, model("c", ["<unk>", "x"])) is None


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
        ({"model": {"vocab": {"x": "0"}}}, "model.vocab is no table"),
        ({"model": {"vocab": {"x": [0]}}}, "model.vocab is no table"),
        ({"model": {"vocab": {"x": True}}}, "model.vocab is no table"),
        ({"model": {"vocab": ["x"]}}, "model.vocab is no table"),
        ({"model": {"vocab": [[]]}}, "model.vocab is no table"),
        ({"model": {"vocab": [[1, 0.5]]}}, "model.vocab is no table"),
        ({"model": {"vocab": {}}, "added_tokens": {"x": 0}}, "added_tokens is no list"),
        ({"model": {"vocab": {}}, "added_tokens": 7}, "added_tokens is no list"),
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
