"""global_profiler.* and *.profiler.*: traces of steps by PyTorch's profiler."""

from __future__ import annotations

from typing import Any

from verl_hpc.migration.models import PROFILERS
from verl_hpc.migration.row import Draft
from verl_hpc.migration.values import Refused, Values

_GLOBAL = "global_profiler"
_OURS = "runtime.profile"
_TOOLS = ("torch", "torch_memory")
_CONTENTS = ("cpu", "cuda", "memory")


def profile(values: Values, draft: Draft) -> None:
    """verl traces a model's workers in a worker group; we trace all that a rank does in a step."""
    steps, tool = f"{_GLOBAL}.steps", f"{_GLOBAL}.tool"
    traced = [one for one in PROFILERS if values.flag(f"{one}.enable") and values[f"{one}.tool"]]
    if values[steps] is None or not traced:
        return
    for section in traced:
        key = f"{section}.tool"
        if values[key] not in _TOOLS:
            why = f"PyTorch's profiler is the one here; {values[key]} is started from outside"
            raise Refused(key if key in values else tool, why, f"{_OURS}, or the tool around srun")
    keys = [f"{one}.{name}" for one in traced for name in ("enable", "tool", "tool_config.torch")]
    draft.put(f"{_OURS}.steps", _numbers(values, steps), steps, tool, *keys)
    ranks = {rank for section in traced for rank in _ranks(values, section)}
    draft.put(f"{_OURS}.ranks", sorted(ranks), *(f"{one}.ranks" for one in traced))
    memory = [_has_memory(values, section) for section in traced]
    draft.put(f"{_OURS}.memory", any(memory), tool)
    draft.note(steps, "a trace has all that a rank does in a step, whichever models are enabled")


def _ranks(values: Values, section: str) -> list[int]:
    key, nodes, gpus = f"{section}.all_ranks", "trainer.nnodes", "trainer.n_gpus_per_node"
    if not values.flag(key):
        return _numbers(values, f"{section}.ranks") or [0]
    if nodes not in values and gpus not in values:
        raise Refused(key, f"how many there are is not said; give {gpus}", f"{_OURS}.ranks")
    return list(range(values.whole(nodes) * values.whole(gpus)))


def _has_memory(values: Values, section: str) -> bool:
    key = f"{section}.tool_config.torch.contents"
    contents = values[key] or []
    if not isinstance(contents, list) or any(one not in _CONTENTS for one in contents):
        raise Refused(key, f"expected some of {', '.join(_CONTENTS)}", _OURS)
    return "memory" in contents or values[f"{section}.tool"] == "torch_memory"


def _numbers(values: Values, key: str) -> list[int]:
    found: Any = values[key]
    if not isinstance(found, list) or any(type(number) is not int for number in found):
        raise Refused(key, "expected a list of whole numbers", _OURS)
    return list(dict.fromkeys(found))
