"""Bounds for families without a layer table, against what transformers' own layers keep."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from tests.mpi.storages import Saved
from tests.unit.cluster.requests import ROOT
from verl_hpc.config.model import ModelConfig, ParallelConfig
from verl_hpc.errors import ModelError
from verl_hpc.hf.images import image_reader
from verl_hpc.layout.architecture import architecture_from, read_architecture
from verl_hpc.layout.json_file import read_json_object
from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.layout.not_mapped import WITH_IMAGES
from verl_hpc.planner.memory.by_name import by_name
from verl_hpc.planner.shape import RoleShape
from verl_hpc.testing.vision import make_vision_model


def shape_of(arch, vision_tower="trained", **settings):
    model = ModelConfig(path="none", dtype="float32", vision_tower=vision_tower)
    return RoleShape.of(arch, TrainLayout(), model, ParallelConfig(engine="fsdp", **settings))


@pytest.mark.parametrize("family", WITH_IMAGES)
def test_a_tower_keeps_no_more_than_the_bound(family, tmp_path):
    directory = make_vision_model(tmp_path / "model", family)
    arch = read_architecture(directory)
    model = AutoModelForImageTextToText.from_pretrained(directory)
    _, tokens, pixels = image_reader(arch).blank
    saved = Saved(model.parameters())
    with saved.counting():
        features = model.model.get_image_features(**pixels)
    bound = by_name(shape_of(arch), tokens, True)["tower"]
    assert features is not None
    assert bound / 4 < saved.most < bound
    again = by_name(shape_of(arch, recompute="full"), tokens, True)["tower"]
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    saved = Saved(model.parameters())
    with saved.counting():
        features = model.model.get_image_features(**pixels)
    assert saved.most < again < bound
    frozen = by_name(shape_of(arch, "frozen"), tokens, True)
    assert frozen == by_name(shape_of(arch), tokens, False)
    assert frozen["tower"] < again


@pytest.mark.parametrize(
    ("tower", "problem"),
    [
        ("x", "vision_config = 'x': not a section"),
        ({"depth": 2}, "vision_config: hidden_size = None: not an integer"),
        (
            {"hidden_size": 8, "intermediate_size": "8"},
            "vision_config: intermediate_size = '8': not an",
        ),
    ],
)
def test_a_tower_without_its_sizes_is_refused(tower, problem):
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "vocab_size": 9}
    arch = architecture_from({"model_type": "qwen3_vl", "vision_config": tower, **sizes}, shapes={})
    with pytest.raises(ModelError, match=f"config.json: {problem}"):
        by_name(shape_of(arch), 4, True)


def test_scores_of_a_layer_are_within_the_bound():
    config = AutoConfig.for_model(
        "gpt_oss", num_hidden_layers=2, hidden_size=16, intermediate_size=16, head_dim=8,
        num_attention_heads=8, num_key_value_heads=2, num_local_experts=2, vocab_size=32,
        num_experts_per_tok=1,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config)
    arch = read_architecture(ROOT / "configs/model/gpt-oss-20b.json", "fsdp").with_shapes({})
    tokens = torch.zeros(1, 400, dtype=torch.long)
    saved = Saved(model.parameters())
    with saved.counting():
        logits = model(tokens, use_cache=False).logits
    one = 8 * 400**2 * 4  # eight heads, float32
    assert logits is not None and saved.most > 2 * one  # so the scores are most of it
    own = by_name(shape_of(arch), 400, True)["scores"] / (arch.num_heads * 400**2 * 4)
    again = by_name(shape_of(arch, recompute="full"), 400, True)["scores"]
    assert again == 8 * arch.num_heads * 400**2 * 4
    assert own == 8 + 4 * (arch.num_layers - 1)
    assert saved.most < (8 + 4) * one


@pytest.mark.parametrize("name", ["gpt-oss-20b", "Qwen2.5-VL-7B-Instruct"])
def test_the_tensors_of_shipped_sizes_are_transformers_own(name):
    fields = read_json_object(ROOT / f"configs/model/{name}.json")
    config = AutoConfig.for_model(**{n: v for n, v in fields.items() if n != "tensors"})
    build = AutoModelForImageTextToText if "vision_config" in fields else AutoModelForCausalLM
    with torch.device("meta"):
        model = build.from_config(config)
    arch = read_architecture(ROOT / f"configs/model/{name}.json", "fsdp")
    shapes = sorted(tuple(p.shape) for p in model.state_dict().values())
    assert sorted(arch.published.shapes.values()) == shapes
