"""Messages between the stages of a pipeline, whose sizes all stages know beforehand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch.distributed as dist
from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator
from megatron.core.pipeline_parallel.schedules import get_schedule_table
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.transformer_config import TransformerConfig


class StageMessages(P2PCommunicator):
    """Sends and receives hidden states and their gradients of rows of different lengths.

    Megatron-core's own class sends each shape before the tensor, and the host waits for the device
    every time: 19 to 37 times in an update of 16 micro-batches on 4 stages. Here every stage has
    packed the same micro-batches, and their tensors arrive in the order of the schedule.

    Args:
        group: the stages.
        config: Megatron-core's settings.
        lengths: tokens of each micro-batch's row on a rank of a stage.
    """

    def __init__(
        self, group: dist.ProcessGroup, config: TransformerConfig, lengths: Sequence[int]
    ) -> None:
        super().__init__(group, config)
        chunks = config.virtual_pipeline_model_parallel_size or 1
        order = get_schedule_table(len(lengths), chunks, config.microbatch_group_size_per_vp_stage)
        # The first stage receives what the last one sends of all chunks but the last; gradients
        # go the other way through the chunks, and the last stage receives the first one's.
        everything = [lengths[number] for number, _ in order]
        of_other_end = [lengths[number] for number, chunk in order if chunk < chunks - 1]
        is_first, is_last = group.rank() == 0, group.rank() == group.size() - 1
        self._from_previous = iter(of_other_end if is_first else everything)
        self._from_next = iter(of_other_end if is_last else everything)

    def _communicate_shapes(
        self, tensor_send_next: Any, tensor_send_prev: Any, recv_prev: bool, recv_next: bool
    ) -> tuple[list[int], list[int]]:
        """Return the shapes of what arrives from the stages before and behind this one."""
        del tensor_send_next, tensor_send_prev
        return self._shape(self._from_previous, recv_prev), self._shape(self._from_next, recv_next)

    def _shape(self, lengths: Iterator[int], arrives: bool) -> list[int]:
        return [next(lengths), 1, self.config.hidden_size] if arrives else [0, 0, 0]


_GROUPS = ["tp", "cp", "embd", "pos_embd", "pp", "dp_cp"]
"""Groups that a schedule wants together with a communicator."""


def stage_messages(
    group: dist.ProcessGroup, config: TransformerConfig, lengths: Sequence[int]
) -> dict[str, Any]:
    """Return the arguments of a Megatron-core schedule with which stages exchange rows as
    `StageMessages`, whose arguments these are; none where one stage has all layers."""
    if group.size() == 1:
        return {}
    groups = ProcessGroupCollection.use_mpu_process_groups(_GROUPS)
    return {"p2p_communicator": StageMessages(group, config, lengths), "pg_collection": groups}
