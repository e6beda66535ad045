"""A model directory whose tensors are not those of its config.json."""

import os

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.unit.checkpoint.steps import make_model, write_step
from verl_hpc.checkpoint.weights import component_of, hf_files, open_weights
from verl_hpc.errors import CheckpointError, ModelError
from verl_hpc.layout.box import Box
from verl_hpc.layout.heads import HEAD_TENSORS, SCORE_HEAD, VALUE_HEAD
from verl_hpc.testing.tiny import make_tiny_model

NORM = "model.norm.weight"
EMBEDDING = "model.embed_tokens.weight"


@pytest.fixture
def model(tmp_path):
    return make_model(tmp_path / "model")


def change(model, **tensors):
    file = model / "model.safetensors"
    changed = {k: v.clone() for k, v in load_file(file).items()} | tensors
    save_file({k: v for k, v in changed.items() if v is not None}, file)


@pytest.mark.parametrize("place", [0.0, 0.5, 1.0])
def test_a_token_that_changes_changes_the_fingerprint(model, place):
    known = open_weights(model).fingerprint()
    rows = load_file(model / "model.safetensors")[EMBEDDING].clone()
    rows[int(place * (len(rows) - 1))] += 1
    change(model, **{EMBEDDING: rows})
    assert open_weights(model).fingerprint() != known


@pytest.mark.parametrize(
    "tensor, message",
    [
        (torch.zeros(5), rf"tensor {NORM} has shape \[5\]; config.json calls for"),
        (torch.ones(32, dtype=torch.int64), f"tensor {NORM} is int64; weights"),
        (torch.ones(32, dtype=torch.uint8), f"tensor {NORM} is uint8; weights"),
        (torch.ones(32).to(torch.float8_e4m3fn), f"tensor {NORM} is float8_e4m3fn; weights"),
        (None, f"1 tensors that are not there, first {NORM}"),
    ],
    ids=["shape", "int64", "uint8", "float8", "missing"],
)
def test_a_tensor_that_is_not_as_the_configuration_says(model, tensor, message):
    change(model, **{NORM: tensor})
    with pytest.raises(ModelError, match=message):
        open_weights(model)


def test_links_to_files_are_files_as_in_a_cache_of_downloads(model, tmp_path):
    (model / "config.json").rename(tmp_path / "blob")
    (model / "config.json").symlink_to("../blob")
    (model / "a\nb.txt").write_text("x")
    (model / "model.safetensors.index.json").symlink_to("nowhere")
    files = hf_files(model)
    assert files["config.json"] == model / "config.json"
    assert "a\nb.txt" in files
    assert "model.safetensors.index.json" not in files


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda file: file.symlink_to("nowhere"), "not a file, or a broken link"),
        (lambda file: file.symlink_to(file.name), "not a file, or a broken link"),
        (lambda file: file.mkdir(), "not a file, or a broken link"),
        (lambda file: os.mkfifo(file), "not a file, or a broken link"),
        (lambda file: file.symlink_to("/proc/self/mem/x"), "not a file, or a broken link"),
        (lambda file: file.symlink_to("x" * 300), "cannot be read: File name too long"),
    ],
    ids=["dangling", "loop", "directory", "pipe", "below a file", "impossible"],
)
def test_what_a_save_could_not_copy_is_named_before(model, make, told):
    make(model / "x.txt")
    with pytest.raises(ModelError, match=rf"{model}/x\.txt.*{told}.*move it away"):
        hf_files(model)


def test_a_name_that_is_no_text(model):
    (model / os.fsdecode(b"\xff.txt")).write_text("x")
    with pytest.raises(ModelError, match=r"udcff\.txt.* not valid text.*move it away"):
        hf_files(model)


def test_a_value_head_may_be_missing(model):
    weights = open_weights(model, head="value")
    assert not weights.has_head
    assert VALUE_HEAD not in weights.tensors
    assert weights.fingerprint() == open_weights(model).fingerprint()


def test_a_value_head_that_is_there(model):
    change(model, **{VALUE_HEAD: torch.ones(1, 32)})
    weights = open_weights(model, head="value")
    assert weights.has_head
    known = weights.fingerprint()
    assert weights.tensors[VALUE_HEAD].shape == (1, 32)
    change(model, **{VALUE_HEAD: torch.zeros(1, 32)})
    assert open_weights(model, head="value").fingerprint() != known
    assert open_weights(model).fingerprint() != known


@pytest.fixture
def classifier(tmp_path):
    sizes = {"hidden_size": 32, "num_hidden_layers": 1}
    return make_tiny_model(tmp_path / "classifier", head="score", **sizes)


def test_a_sequence_classifier_has_no_language_head(classifier):
    weights = open_weights(classifier, head="score")
    assert weights.has_head
    assert weights.tensors[SCORE_HEAD].shape == (1, 32)
    assert "lm_head.weight" not in weights.tensors
    assert not open_weights(classifier, head="value").has_head
    with pytest.raises(ModelError, match=r"1 tensors that are not there, first lm_head\.weight"):
        open_weights(classifier)


def test_a_new_head_is_not_in_the_fingerprint(model, classifier):
    """A reward model that is trained from a language model has none to read."""
    weights = open_weights(model, head="score", new_head=True)
    assert not weights.has_head
    assert weights.fingerprint() != open_weights(classifier, head="score").fingerprint()


def test_a_language_model_or_two_classes_give_no_score(model, classifier):
    with pytest.raises(ModelError, match=r"no score\.weight in it.* with num_labels 1"):
        open_weights(model, head="score")
    change(classifier, **{SCORE_HEAD: torch.zeros(2, 32)})
    with pytest.raises(ModelError, match=r"shape \[2, 32\].* \[1, 32\] is needed.*num_labels 1"):
        open_weights(classifier, head="score")


@pytest.mark.parametrize(("name", "head"), [("critic", "value"), ("judge", "score")])
def test_a_steps_component_of_any_name(model, tmp_path, name, head):
    step = write_step(model, tmp_path, heads={name: head})
    weights = open_weights(step, name, head=head)
    tensor = HEAD_TENSORS[head]
    assert weights.has_head
    (found,) = weights.read({tensor: Box.whole((1, 32))}).values()
    assert found.count_nonzero() == 32
    assert open_weights(step, "actor").tensors.keys() == weights.tensors.keys() - {tensor}


def test_a_step_without_the_component(model, tmp_path):
    step = write_step(model, tmp_path)
    assert open_weights(step, "actor", head="value").has_head is False
    with pytest.raises(CheckpointError, match="no critic in it, only actor"):
        open_weights(step, "critic", head="value")


def test_the_only_model_of_a_step_stands_for_the_actor(model, tmp_path):
    step = write_step(model, tmp_path)
    assert open_weights(step, "judge", "actor").tensors == open_weights(step).tensors
    for number, heads in enumerate(({}, {"critic": "value"})):
        several = Components(["actor.optimizer", "reward", "reward.optimizer", *heads])
        expected = "cost" if number else "reward"
        assert component_of(several, "cost", "actor") == expected
        assert component_of(several, "reward", "actor") == "reward"
    assert component_of(Components(["reward"]), "critic") == "critic"


class Components:
    """What `component_of` asks of a step."""

    def __init__(self, components):
        self.components = components
