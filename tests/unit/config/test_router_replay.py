"""Router replay is refused where the rollout has no experts, or none that it can tell of."""

import pytest

from tests.unit.config.trees import parse
from verl_hpc.errors import ConfigError

REPLAY = {"algorithm__router_replay": "rollout"}


def test_it_is_off_unless_asked_for():
    assert not parse().replays_experts
    assert parse(**REPLAY).replays_experts


UNFIT_SETTINGS = [
    ({"recipe": "sft"}, "router_replay has no effect with recipe: sft"),
    ({"recipe": "dpo"}, "router_replay has no effect with recipe: dpo"),
    ({"rollout__engine": "hf"}, "rollout.engine = hf, which does not tell .* choose vllm"),
    ({"rollout__pipeline_parallel": 2}, "rollout.pipeline_parallel = 2: .* choose 1"),
    ({"rollout__on_interrupt": "keep"}, "on_interrupt = keep: .* choose drop"),
    *(
        ({"rollout__engine_options": {name: value}}, f"engine_options.{name} with algorithm")
        for name, value in (
            ("enable_prefix_caching", True),
            ("enable_prefix_caching", False),
            ("kv_transfer_config", {}),
            ("speculative_config", {}),
        )
    ),
]


@pytest.mark.parametrize("changes, words", UNFIT_SETTINGS)
def test_what_it_does_not_go_with(changes, words):
    with pytest.raises(ConfigError, match=words):
        parse(**REPLAY, **changes)


@pytest.mark.parametrize("option", ["enable_return_routed_experts", "aux_output_config"])
def test_vllms_own_switches_are_not_free(option):
    with pytest.raises(ConfigError, match=f"{option}.*algorithm.router_replay"):
        parse(rollout__engine_options={option: True})
