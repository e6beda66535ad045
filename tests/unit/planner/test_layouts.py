"""From a configuration to layouts, and the refusals on the way."""

import pytest

from tests.unit.config.trees import parse
from tests.unit.layout.models import architecture
from verl_hpc.errors import ConfigError
from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.planner.layouts import run_layouts

MODEL = architecture(vocab_size=128, max_positions=1024)


def lay_out(num_ranks, **changes):
    return run_layouts(parse(**changes), MODEL, num_ranks)


def refusal(num_ranks, **changes):
    with pytest.raises(ConfigError) as caught:
        lay_out(num_ranks, **changes)
    return str(caught.value)


def test_data_parallelism_takes_the_ranks_that_are_left():
    layouts = lay_out(8, parallel__tensor_parallel=2, parallel__pipeline_parallel=2)
    assert layouts.train == TrainLayout(tp=2, pp=2, dp=2)
    assert layouts.model_groups == ((0, 1, 4, 5), (2, 3, 6, 7))
    assert lay_out(1).train == TrainLayout()


def test_the_papers_grouping_where_it_applies():
    layouts = lay_out(8, parallel__tensor_parallel=4, rollout__tensor_parallel=2)
    assert layouts.grouping == "zero_redundancy"
    assert layouts.replicas == ((0, 2), (1, 3), (4, 6), (5, 7))
    assert layouts.num_replicas == 4


def test_neighbours_where_it_does_not_or_where_asked():
    wider = lay_out(8, parallel__tensor_parallel=2, rollout__tensor_parallel=4)
    assert (wider.grouping, wider.replicas) == ("contiguous", ((0, 1, 2, 3), (4, 5, 6, 7)))
    asked = lay_out(
        4,
        parallel__tensor_parallel=4,
        rollout__tensor_parallel=2,
        rollout__grouping="contiguous",
    )
    assert asked.replicas == ((0, 1), (2, 3))


def test_engines_of_several_stages_are_neighbours():
    layouts = lay_out(8, parallel__tensor_parallel=2, rollout__pipeline_parallel=2)
    assert (layouts.grouping, layouts.replicas) == ("contiguous", ((0, 1), (2, 3), (4, 5), (6, 7)))
    message = refusal(3, rollout__pipeline_parallel=3)
    assert "rollout pipeline_parallel = 3 does not divide the model's 4 layers" in message


def test_chunks_of_an_interleaved_pipeline():
    layouts = lay_out(2, parallel__pipeline_parallel=2, parallel__virtual_pipeline=2)
    assert layouts.train == TrainLayout(pp=2, vpp=2)


def test_a_stated_number_of_replicas_is_checked():
    sizes = {"parallel__tensor_parallel": 2, "parallel__data_parallel": 4}
    assert lay_out(8, **sizes).train.dp == 4
    message = refusal(4, **sizes)
    for words in ("data_parallel = 4", "4 ranks", "2 model-parallel", "give 2", "start 8 ranks"):
        assert words in message


def test_ranks_that_do_not_divide():
    message = refusal(6, parallel__tensor_parallel=2, parallel__pipeline_parallel=2)
    for words in ("tensor_parallel 2 x pipeline_parallel 2 = 4", "6 ranks", "multiple of 4"):
        assert words in message


@pytest.mark.parametrize(
    "num_ranks, changes, words",
    [
        (3, {"parallel__tensor_parallel": 3}, ["tensor_parallel = 3", "8 attention heads"]),
        (7, {"parallel__pipeline_parallel": 7}, ["4 layers", "pipeline_parallel = 7"]),
        (4, {"rollout__tensor_parallel": 3}, ["rollout tensor_parallel = 3", "4 ranks"]),
        (
            16,
            {"parallel__tensor_parallel": 8, "rollout__tensor_parallel": 16},
            ["rollout tensor_parallel = 16", "8 attention heads"],
        ),
        (
            4,
            {
                "parallel__tensor_parallel": 2,
                "rollout__tensor_parallel": 4,
                "rollout__grouping": "zero_redundancy",
            },
            ["zero-redundancy", "(2)", "(4)"],
        ),
    ],
)
def test_models_that_cannot_be_cut_that_way(num_ranks, changes, words):
    message = refusal(num_ranks, **changes)
    assert message.startswith("parallel / rollout: ")
    for word in words:
        assert word in message


def test_sequences_fit_the_models_positions():
    message = refusal(1, rollout__max_prompt_tokens=1000, rollout__max_response_tokens=25)
    for words in ("max_prompt_tokens 1000", "max_response_tokens 25 = 1025", "1024 positions"):
        assert words in message
    lay_out(1, rollout__max_prompt_tokens=1000, rollout__max_response_tokens=24)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"recompute_num_layers": 4}, ["= 4 does not divide", "(2)", "block"]),
        ({"recompute_method": "block", "recompute_num_layers": 3}, ["= 3", "more than 2"]),
    ],
)
def test_more_layers_to_recompute_than_a_stage_has(changes, words):
    sizes = {"parallel__pipeline_parallel": 2, "parallel__recompute": "full"}
    message = refusal(2, **sizes, **{f"parallel__{name}": v for name, v in changes.items()})
    for word in words:
        assert word in message
    lay_out(2, **sizes, parallel__recompute_num_layers=2)
