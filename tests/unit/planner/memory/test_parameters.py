"""Parameters of ranks against the shard maps, where layers are of two kinds."""

from collections import Counter

from tests.unit.layout.models import deepseek
from verl_hpc.config.model import ModelConfig, ParallelConfig
from verl_hpc.layout.generation import cache_bytes_per_token
from verl_hpc.layout.megatron import TrainLayout, is_expert, megatron_shard_map
from verl_hpc.planner.memory.parameters import chunk_parameters, stage_elements
from verl_hpc.planner.shape import RoleShape

ARCH = deepseek(num_layers=7, num_dense_layers=3)


def test_every_stage_has_the_parameters_of_its_layers_and_no_bias_of_a_router():
    layout = TrainLayout(tp=2, pp=2, vpp=2, dp=2, ep=2)
    parallel = ParallelConfig(**layout.sizes_of_model, sequence_parallel=True)
    for dtype, backend in (("float32", "local"), ("bfloat16", "transformer_engine")):
        model = ModelConfig(path="m", dtype=dtype)
        shape = RoleShape.of(ARCH, layout, model, parallel, on_gpu=True)
        shard_map = megatron_shard_map(ARCH, layout, backend=backend, dtype=dtype)
        for stage in range(2):
            sizes: Counter[str] = Counter()
            for region in shard_map.held_by(layout.grid.rank(pp=stage)):
                if "embed" not in region.tensor and "lm_head" not in region.tensor:
                    sizes[region.view.name] += region.box.num_elements
            biases = {name for name in sizes if "expert_bias" in name}
            assert biases
            for chunk in range(2):
                wanted = Counter(
                    (name.split(".", 4)[4] if ".layers." in name else name.split(".", 1)[1], size)
                    for name, size in sizes.items()
                    if name.startswith(f"chunk{chunk}.") and name not in biases
                )
                parameters = chunk_parameters(shape, stage, chunk)
                outside = {"embedding", "output_layer.weight"}
                assert wanted == Counter(
                    (p.name, p.num_elements) for p in parameters if p.name not in outside
                )
                assert all(p.expert == is_expert(f".{p.name}") for p in parameters)
            every = [p for c in range(2) for p in chunk_parameters(shape, stage, c)]
            assert stage_elements(shape, stage).total == sum(p.num_elements for p in every)


def test_a_cache_has_a_latent_vector_on_every_rank():
    one, four = (cache_bytes_per_token(ARCH, tp, 1, 2) for tp in (1, 4))
    assert one == four == ARCH.num_layers * (12 + 4) * 2
