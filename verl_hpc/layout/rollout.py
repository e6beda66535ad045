"""Shard map of a rollout engine, computed on all ranks before any engine is built."""

from __future__ import annotations

from collections.abc import Sequence

from verl_hpc.config.rollout import RolloutConfig
from verl_hpc.errors import ConfigError, LayoutError
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.generation import layers_per_rollout_stage
from verl_hpc.layout.quantization import BlockMisfitError, quantised_engine, quantised_tensors
from verl_hpc.layout.shard_map import ShardMap, whole
from verl_hpc.layout.vllm import vllm_shard_map

EXPERTS_ON_EVERY_STAGE = ("glm4_moe",)
"""Families whose class in vLLM refuses a pipeline stage of dense layers alone."""


def rollout_shard_map(
    config: RolloutConfig, arch: Architecture, replicas: Sequence[tuple[int, ...]], dtype: str
) -> ShardMap:
    """The `shard_map` of the engines that `build_rollout` builds with the same arguments.

    Args:
        config: names the engine.
        arch: the model.
        replicas: ranks of every engine, in tensor-parallel order within its pipeline stages.
        dtype: element type of the weights.

    Raises:
        ConfigError: tensor parallelism with transformers' engine, or a setting that a family
            without a layer table does not have.
        LayoutError: the model does not divide by the sizes, or its blocks do not.
    """
    if config.engine == "hf":
        _check_one_rank(replicas)
        return whole_shard_map(arch, replicas, dtype)
    if not arch.is_mapped:
        check_by_name(config, arch)
        return whole_shard_map(arch, replicas, dtype)
    engines = staged_shard_map(
        arch, replicas, config.pipeline_parallel, dtype, config.expert_parallel
    )
    if config.quantization is None:
        return engines
    names = frozenset(quantised_tensors(arch, config.ignored_layers))
    try:
        return quantised_engine(engines, names)
    except BlockMisfitError as error:
        tp = len(replicas[0]) // config.pipeline_parallel
        fitting = _fitting(arch, names, tp, config.expert_parallel)
        sizes = f"tensor_parallel of {' or '.join(map(str, fitting))} fits; " if fitting else ""
        raise LayoutError(
            f"rollout.quantization = fp8 with rollout.tensor_parallel = {tp}: {error}, as vLLM "
            f"quantises; {sizes}or leave such layers out with rollout.ignored_layers"
        ) from None


def _fitting(
    arch: Architecture, names: frozenset[str], below: int, expert_parallel: bool
) -> list[int]:
    """Smaller tensor-parallel sizes whose parts are whole blocks."""
    sizes = []
    for tp in range(1, below):
        try:
            engine = vllm_shard_map(arch, [tuple(range(tp))], None, expert_parallel)
            quantised_engine(engine, names)
        except LayoutError:
            continue
        sizes.append(tp)
    return sizes


def stage_groups(
    replicas: Sequence[tuple[int, ...]], num_stages: int
) -> list[list[tuple[int, ...]]]:
    """Tensor-parallel groups as `[stage][replica]`; a replica has its stages one after another."""
    size, rest = divmod(len(replicas[0]), num_stages)
    assert not rest, (replicas, num_stages)
    return [
        [group[stage * size : (stage + 1) * size] for group in replicas]
        for stage in range(num_stages)
    ]


def staged_shard_map(
    arch: Architecture,
    replicas: Sequence[tuple[int, ...]],
    num_stages: int,
    dtype: str,
    expert_parallel: bool = False,
) -> ShardMap:
    """Shard map of vLLM engines of `num_stages` pipeline stages.

    Names keep the layers' global numbers. The first stage has the embedding, the last the final
    norm and the output layer, which with tied weights is the embedding again (vLLM 0.32,
    `model_executor/models/llama.py` and `qwen2.py`).

    Raises:
        LayoutError: the model does not divide.
    """
    per_stage = layers_per_rollout_stage(arch.num_layers, num_stages)
    last = num_stages - 1
    if arch.family in EXPERTS_ON_EVERY_STAGE and per_stage <= arch.num_dense_layers:
        raise LayoutError(
            f"rollout pipeline_parallel = {num_stages}: the {per_stage} layers of the first stage "
            f"have no experts, which vLLM's {arch.family} needs on every stage; choose fewer stages"
        )

    def stages_of(tensor: str) -> set[int]:
        if tensor.startswith("model.layers."):
            return {int(tensor.split(".")[2]) // per_stage}
        if tensor == "model.embed_tokens.weight":
            return {0, last} if arch.tied_embeddings else {0}
        return {last}

    maps = [
        vllm_shard_map(arch, groups, dtype, expert_parallel)
        for groups in stage_groups(replicas, num_stages)
    ]
    regions = [
        region
        for stage, whole_model in enumerate(maps)
        for region in whole_model.regions
        if stage in stages_of(region.tensor)
    ]
    return ShardMap(maps[0].tensors, regions)


def _check_one_rank(replicas: Sequence[tuple[int, ...]]) -> None:
    if len(replicas[0]) != 1:
        raise ConfigError(
            f"rollout.tensor_parallel = {len(replicas[0])} with rollout.engine = hf; it has "
            "the whole model on every rank, so choose 1, or engine: vllm"
        )


def check_by_name(config: RolloutConfig, arch: Architecture) -> None:
    """Raises: ConfigError: what vLLM does not do with weights of a family without a layer table."""
    settings = {
        "pipeline_parallel": config.pipeline_parallel > 1,
        "expert_parallel": config.expert_parallel,
        "quantization": config.quantization is not None,
    }
    for name, is_set in settings.items():
        if is_set:
            raise ConfigError(
                f"rollout.{name} = {getattr(config, name)}: a {arch.family} has no layer table "
                "(docs/models.md), and its weights reach vLLM by their names: leave it out"
            )


def whole_shard_map(
    arch: Architecture, replicas: Sequence[tuple[int, ...]], dtype: str
) -> ShardMap:
    """Shard map of an engine that gets every tensor whole on every rank, under its own name: that
    of transformers, and vLLM where it cuts the tensors of a family itself."""
    tensors = arch.tensors(dtype)
    holders = tuple(sorted(rank for group in replicas for rank in group))
    return ShardMap(tensors, [whole(n, n, s.shape, holders) for n, s in tensors.items()])


PART_BYTES = 2**28
"""Bytes of whole tensors that are sent to an engine at a time, unless one has more."""


def in_parts(engine: ShardMap, most_bytes: int = PART_BYTES) -> list[ShardMap]:
    """Cut a map into maps of neighbouring tensors, each of at most so many bytes or one tensor."""
    parts: list[list[str]] = []
    size = most_bytes
    for name, spec in engine.tensors.items():
        size += spec.num_bytes
        if size > most_bytes:
            parts.append([])
            size = spec.num_bytes
        parts[-1].append(name)
    return [engine.restricted_to(names) for names in parts]
