"""What has no counterpart: queues, quantised training, verl's own debugging."""

from __future__ import annotations

from verl_hpc.migration.models import ACTOR, FSDP
from verl_hpc.migration.row import Row, fixed

_QAT = "training that knows of a quantised rollout is not there"
_DISTILLATION = "recipe: distillation, and roles.teacher (docs/recipes.md)"

ROWS: list[Row] = [
    *(
        fixed(f"{section}.qat.*", _QAT, "model.fp8, rollout.quantization")
        for section in (ACTOR, *(f"{m}.megatron" for m in FSDP), *FSDP.values())
    ),
    fixed("transfer_queue.*", "columns travel between ranks; there is no queue", "placement"),
    fixed("distillation.*", "a recipe of its own, with a role of its own", _DISTILLATION),
    fixed("skip.*", "responses of another run are not replayed", "rollout.on_interrupt"),
    fixed("hydra.*", "there is no Hydra here", "directory, name"),
    fixed("hydra", "there is no Hydra here", "directory, name"),
]
