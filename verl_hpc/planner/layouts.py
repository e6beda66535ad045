"""From a run's configuration to its layouts, with every check that needs no GPU."""

from __future__ import annotations

from dataclasses import dataclass

from verl_hpc.config.run import RunConfig
from verl_hpc.errors import ConfigError, LayoutError
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.generation import (
    Grouping,
    generation_groups,
    layers_per_rollout_stage,
    zero_redundancy_applies,
)
from verl_hpc.layout.megatron import TrainLayout, check_megatron_layout
from verl_hpc.layout.pipeline import layers_per_stage
from verl_hpc.layout.vllm import check_vllm_layout


@dataclass(frozen=True)
class RunLayouts:
    """Where a run trains and generates."""

    train: TrainLayout
    replicas: tuple[tuple[int, ...], ...]
    """Ranks of every rollout engine."""
    grouping: Grouping

    @property
    def model_groups(self) -> tuple[tuple[int, ...], ...]:
        """Ranks of each data-parallel replica of the training layout, by data-parallel index."""
        grid = self.train.grid
        return tuple(grid.ranks(dp=index) for index in range(self.train.dp))

    @property
    def num_replicas(self) -> int:
        return len(self.replicas)


def run_layouts(config: RunConfig, arch: Architecture, num_ranks: int) -> RunLayouts:
    """Lay a run out on `num_ranks` ranks.

    Raises:
        ConfigError: the ranks do not match the sizes, or the model cannot be cut that way.
    """
    try:
        layouts = _lay_out(config, num_ranks)
        check_megatron_layout(arch, layouts.train)
        check_vllm_layout(arch, config.rollout.tensor_parallel)
        layers_per_rollout_stage(arch.num_layers, config.rollout.pipeline_parallel)
    except LayoutError as error:
        raise ConfigError(f"parallel / rollout: {error}") from None
    _check_lengths(config, arch)
    _check_recompute(config, arch, layouts.train)
    return layouts


def _lay_out(config: RunConfig, num_ranks: int) -> RunLayouts:
    sizes = config.parallel
    model_parallel = sizes.tensor_parallel * sizes.pipeline_parallel
    if num_ranks % model_parallel:
        raise ConfigError(
            f"parallel: tensor_parallel {sizes.tensor_parallel} x pipeline_parallel "
            f"{sizes.pipeline_parallel} = {model_parallel} does not divide the {num_ranks} ranks; "
            f"start a multiple of {model_parallel} ranks, or choose smaller sizes"
        )
    dp = num_ranks // model_parallel
    if sizes.data_parallel not in (None, dp):
        raise ConfigError(
            f"parallel.data_parallel = {sizes.data_parallel}, but {num_ranks} ranks / "
            f"{model_parallel} model-parallel ranks give {dp}; start "
            f"{(sizes.data_parallel or 1) * model_parallel} ranks, or leave it out"
        )
    train = TrainLayout(
        tp=sizes.tensor_parallel, pp=sizes.pipeline_parallel, dp=dp, vpp=sizes.virtual_pipeline
    )
    rollout = config.rollout
    one_stage = rollout.pipeline_parallel == 1
    applies = zero_redundancy_applies(train.tp, rollout.tensor_parallel) and one_stage
    grouping: Grouping = rollout.grouping or ("zero_redundancy" if applies else "contiguous")
    groups = generation_groups(
        train.grid, rollout.tensor_parallel, grouping, rollout.pipeline_parallel
    )
    return RunLayouts(train, groups, grouping)


def _check_lengths(config: RunConfig, arch: Architecture) -> None:
    rollout = config.rollout
    longest = rollout.max_prompt_tokens + rollout.max_response_tokens
    if longest > arch.max_positions:
        raise ConfigError(
            f"rollout: max_prompt_tokens {rollout.max_prompt_tokens} + max_response_tokens "
            f"{rollout.max_response_tokens} = {longest} is above the model's "
            f"{arch.max_positions} positions"
        )


def _check_recompute(config: RunConfig, arch: Architecture, train: TrainLayout) -> None:
    """Megatron-core would run off the end of a stage that is not a multiple of the number."""
    number, method = config.parallel.recompute_num_layers, config.parallel.recompute_method
    if number is None:
        return
    stages = {
        layers for row in layers_per_stage(arch.num_layers, train.pp, train.vpp) for layers in row
    }
    if method == "block" and number > max(stages):
        raise ConfigError(
            f"parallel.recompute_num_layers = {number}: no stage has more than {max(stages)} "
            "layers; choose at most as many"
        )
    if method != "block" and any(layers % number for layers in stages):
        raise ConfigError(
            f"parallel.recompute_num_layers = {number} does not divide the layers of every stage "
            f"({', '.join(map(str, sorted(stages)))}); choose a divisor, or recompute_method: block"
        )
