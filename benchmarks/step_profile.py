"""Where one GRPO step's time goes, to the millisecond: torch's profiler around one step of rank 0.

The work is that of `grpo_step_vs_trl`. One step in the middle of a run is profiled; the seconds of
the steps around it say what the profiler costs.

    python -m benchmarks.step_profile --markdown profile.md --json profile.json
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks import launch
from benchmarks.figures import machine, machine_markdown, markdown_table, report
from benchmarks.grpo_step_vs_trl import ALONE, PACKAGES, add_work, our_config, work

PROFILED = 4
"""Step; those before it warm up."""
KINDS = {
    "matrix products": ("mkldnn::_linear", "_C::onednn_mm", "aten::mm", "aten::addmm", "aten::bmm"),
    "attention": ("aten::_scaled_dot_product", "_C::cpu_attention", "_C::cpu_attn"),
    "packing the rollout's weights": ("_C::create_onednn", "_C::release_dnnl"),
    "sampling": ("_C::fused_gumbel", "aten::_log_softmax"),
    "Adam": ("aten::_fused_adamw",),
    "reading other ranks' memory": ("read_memory",),
    "calls of torch.distributed": ("c10d::",),
}
"""Names of operations begin so; the others are element-wise, copies and views. torch.distributed
waits outside of its operations: that is in PYTHON."""
OTHERS, PYTHON = "other operations of tensors", "Python, and waiting inside it"


def main() -> int:
    """Command line of this module."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.step_profile", description=__doc__)
    add_work(parser)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--profiled-rank", nargs=2, metavar=("CONFIG", "OUT"))
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    if arguments.profiled_rank:
        return _rank(*arguments.profiled_rank)
    with tempfile.TemporaryDirectory() as directory:
        spec = work(arguments, Path(directory))
        found = {n: _profiled(arguments, spec, n, Path(directory)) for n in arguments.ranks}
    shown = launch.shown(sys.argv[1:])
    record = {
        "command": shlex.join(["python", "-m", "benchmarks.step_profile", *shown]),
        "machine": machine(PACKAGES),
        "work": {k: v for k, v in spec.items() if k not in ("model", "reward", "prompts")},
        "ranks": found,
    }
    report(markdown(record), record, arguments.markdown, arguments.json)
    return 0


def _profiled(
    arguments: argparse.Namespace, spec: Mapping[str, Any], num_ranks: int, scratch: Path
) -> dict[str, Any]:
    where = scratch / str(num_ranks)
    where.mkdir()
    out = where / "profile.json"
    launch.run(
        [
            *launch.mpiexec(num_ranks),
            *("-m", "benchmarks.step_profile", "--profiled-rank"),
            *(str(our_config(spec, where)), str(out)),
        ],
        where / "log.txt",
        arguments.timeout_s,
        ALONE if num_ranks == 1 else None,
    )
    lines = (where / "run" / "metrics.jsonl").read_text().splitlines()
    seconds = [json.loads(line)["timing_s/step"] for line in lines]
    return json.loads(out.read_text()) | {"seconds": seconds}


def _rank(config: str, out: str) -> int:
    """Our program, with one step of rank 0 profiled."""
    from torch.profiler import ProfilerActivity, profile, record_function

    from verl_hpc.cli.main import main as verl_hpc
    from verl_hpc.engines.megatron import data_parallel
    from verl_hpc.runtime.environment import launcher_rank
    from verl_hpc.trainer.steps import Steps
    from verl_hpc.transfer import reads

    entered: list[tuple[int, str]] = []
    begin, take, read = Steps.__init__, Steps.take, reads.read_memory

    def marked(name: str, call: Any) -> Any:
        def noted(*given: Any) -> Any:
            entered.append((time.time_ns(), name or given[2]))
            return call(*given)

        return noted

    def init(self: Any, run: Any, recipe: Any, enter: Any, refit: Any) -> None:
        begin(self, run, recipe, marked("", enter), marked("reshard", refit))

    def taken(self: Any, step: int, progress: Any) -> Any:
        if step != PROFILED or launcher_rank() != 0:
            return take(self, step, progress)
        entered.clear()
        with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiler:
            stepped = take(self, step, progress)
            entered.append((time.time_ns(), ""))
        trace = Path(out).with_name("trace.json")
        profiler.export_chrome_trace(str(trace))
        Path(out).write_text(json.dumps(_by_operator(json.loads(trace.read_text()), entered)))
        return stepped

    def named(*given: Any) -> None:
        with record_function("read_memory"):
            read(*given)

    with (
        patch.object(Steps, "__init__", init),
        patch.object(Steps, "take", taken),
        patch.object(reads, "read_memory", named),
        patch.object(data_parallel, "read_memory", named),
    ):
        return verl_hpc(["train", "--config", config])


def _by_operator(
    trace: Mapping[str, Any], entered: Sequence[tuple[int, str]]
) -> dict[str, dict[str, float]]:
    """Seconds by operator of the step and kind of operation."""
    zero_us = trace["baseTimeNanoseconds"] / 1e3
    events = [e for e in trace["traceEvents"] if e.get("cat") in ("cpu_op", "user_annotation")]
    found: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for (start, name), (stop, _) in pairwise(entered):
        found[name][PYTHON] += (stop - start) / 1e9
    for event, self_s in _self_seconds(events):
        at = zero_us + event["ts"]
        operator = next((n for ns, n in reversed(entered) if ns / 1e3 <= at), "")
        if operator:
            found[operator][kind_of(event["name"])] += self_s
            found[operator][PYTHON] -= self_s
    return {name: dict(kinds) for name, kinds in found.items()}


def _self_seconds(events: Sequence[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], float]]:
    """Each event of the busiest thread, and its seconds outside the events within it."""
    threads = [event["tid"] for event in events]
    main_thread = max(set(threads), key=threads.count)
    open_events: list[list[Any]] = []
    mine = [event for event in events if event["tid"] == main_thread]
    for event in sorted(mine, key=lambda e: (e["ts"], -e["dur"])):
        while open_events and open_events[-1][2] <= event["ts"]:
            done, self_us, _ = open_events.pop()
            yield done, self_us / 1e6
        if open_events:
            open_events[-1][1] -= event["dur"]
        open_events.append([event, event["dur"], event["ts"] + event["dur"]])
    for done, self_us, _ in open_events:
        yield done, self_us / 1e6


def kind_of(name: str) -> str:
    """What an operation of this name is for; frames of autograd count as Python."""
    for kind, starts in KINDS.items():
        if name.startswith(starts):
            return kind
    return OTHERS if name.startswith(("aten::", "_C::", "vllm::")) else PYTHON


def markdown(record: Mapping[str, Any]) -> str:
    """The page: a table for each number of ranks."""
    spec = record["work"]
    step = (
        f"A step: {spec['prompts_per_step']} prompts of {spec['prompt_tokens']} tokens, "
        f"{spec['samples_per_prompt']} samples each, {spec['response_tokens']} tokens each. "
        f"Milliseconds of rank 0 in step {PROFILED} of {spec['steps']}."
    )
    lines = [f"`{record['command']}`", machine_markdown(record["machine"]), step]
    for num_ranks, found in record["ranks"].items():
        operators = {k: v for k, v in found.items() if k != "seconds"}
        lines.append(_table(num_ranks, operators, found["seconds"]))
    return "\n\n".join(lines) + "\n"


def _table(
    num_ranks: int, operators: Mapping[str, Mapping[str, float]], seconds: Sequence[float]
) -> str:
    kinds = [*KINDS, OTHERS, PYTHON]
    names = sorted(operators, key=lambda n: -sum(operators[n].values()))[:3]
    rest = [n for n in operators if n not in names]
    columns = {n: operators[n] for n in names}
    columns["the rest"] = {k: sum(operators[n].get(k, 0.0) for n in rest) for k in kinds}
    whole = sum(sum(found.values()) for found in columns.values())
    rows = []
    for kind in [*kinds, "all"]:
        cells = [
            sum(found.values()) if kind == "all" else found.get(kind, 0.0)
            for found in columns.values()
        ]
        shown = [f"{1000 * value:.0f}" for value in (*cells, sum(cells))]
        rows.append((kind, *shown, f"{sum(cells) / whole:.0%}"))
    return (
        f"On {num_ranks} rank{'s' if num_ranks > 1 else ''}; the steps took "
        f"{', '.join(f'{s:.2f}' for s in seconds)} s, the {PROFILED}th with the profiler.\n\n"
        + markdown_table(("", *columns, "step", "share"), rows)
    )


if __name__ == "__main__":
    sys.exit(main())
