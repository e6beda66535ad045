"""What a search finds fits by the ledger."""

from dataclasses import replace

import pytest

from tests.unit.config.trees import GAE, parse
from tests.unit.layout.models import PUBLISHED
from verl_hpc.errors import ConfigError
from verl_hpc.hardware.node import KINDS, Hardware
from verl_hpc.layout.architecture import architecture_from
from verl_hpc.placement.layouts import run_layouts
from verl_hpc.planner.memory.ledger import ledger
from verl_hpc.planner.search.emit import applied
from verl_hpc.planner.search.sizes import search_sizes
from verl_hpc.planner.timing.machine import Machine

H100 = Machine(Hardware(KINDS["H100-80"], 8))
MODELS = {
    n: replace(architecture_from(PUBLISHED[f"Llama-3.1-{n}"][0]), max_positions=8192)
    for n in ("8B", "70B")
}
OFFLOAD = {"parameters": True, "gradients": True, "optimizer": True}
LENGTHS = {"rollout__max_prompt_tokens": 1024, "rollout__max_response_tokens": 3072}


def config_of(**changes):
    return parse(**GAE, **{"batch__size": 512, "offload": OFFLOAD, **LENGTHS, **changes})


def archs_of(config, model):
    return dict.fromkeys(config.role_settings, MODELS[model])


@pytest.mark.parametrize(("model", "num_gpus"), [("8B", 8), ("70B", 64)])
def test_it_fits_by_the_ledger_and_is_laid_out_as_told(model, num_gpus):
    config = config_of()
    archs = archs_of(config, model)
    verified = search_sizes(config, archs, H100, [num_gpus])
    again = applied(config, verified.overrides)
    assert again == verified.ledger.config
    layouts = run_layouts(again, MODELS[model], num_gpus, archs=archs, ranks_per_node=8)
    assert layouts.train == verified.ledger.layouts.train
    told = ledger(again, archs, layouts, H100.hardware, counts_peers=True)
    assert told.fits and told.least_room_bytes == verified.ledger.least_room_bytes


def test_the_fastest_and_the_cheapest_number_of_gpus():
    config = config_of()
    archs = archs_of(config, "8B")
    fastest = search_sizes(config, archs, H100, [8, 16])
    cheapest = search_sizes(config, archs, H100, [8, 16], "gpu_hours")
    assert (fastest.candidate.num_ranks, cheapest.candidate.num_ranks) == (16, 8)
    large = archs_of(config, "70B")
    assert search_sizes(config, large, H100, [8, 64]).candidate.num_ranks == 64
    with pytest.raises(ConfigError, match="nothing fits on 8 ranks"):
        search_sizes(config, large, H100, [8])
