"""What has no counterpart: profilers, queues, quantised training, verl's own debugging."""

from __future__ import annotations

from verl_hpc.migration.layout_rows import ACTOR, CRITIC, FSDP, REF
from verl_hpc.migration.row import Row, fixed

_TIMELINE = "timeline/ of the run directory, and perf/* of metrics.jsonl"
_QAT = "training that knows of a quantised rollout is not there"
_DISTILLATION = "recipe: distillation, and roles.teacher (docs/recipes.md)"

ROWS: list[Row] = [
    *(
        fixed(f"{model}.profiler.*", "profilers are started from outside", _TIMELINE)
        for model in (ACTOR, REF, CRITIC)
    ),
    fixed("global_profiler.*", "profilers are started from outside", _TIMELINE),
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
