"""What rollout.batch_invariant costs a step, and the bits that differ without it.

Runs of GRPO with the setting and without it take turns, from the same weights on the same prompts.
A step's seconds are those of rank 0; the first steps of a run, which start kernels, are left out.

usage: python -m benchmarks.batch_invariant [--ranks 2] [--pairs 4] [--steps 10]
           [--json FILE] [--markdown FILE]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import machine, machine_markdown, markdown_table, report, spread
from benchmarks.launch import run
from verl_hpc.metrics.log import read_metrics
from verl_hpc.testing.tiny import make_tiny_model

SKIPPED = 2
"""First steps of a run that are not counted."""
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "1 M": {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 4},
    "12 M": {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 6},
}
"""Sizes of decoders, by their parameters."""
RUN = """
recipe: rl
model: {dtype: float32}
rollout: {num_samples: 8, max_prompt_tokens: 128, max_response_tokens: 64, kv_cache_gib: 0.1}
batch: {size: 16}
data: {chat: never, train: {kind: reasoning_gym, task: chain_sum, size: 1000}}
reward: {function: reasoning_gym}
algorithm: {old_log_probs: recompute}
metrics: {report: false}
"""
_TIMEOUT_S = 1800.0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--ranks", type=int, default=2)
    add("--pairs", type=int, default=4)
    add("--steps", type=int, default=10)
    add("--json", type=Path)
    add("--markdown", type=Path)
    arguments = parser.parse_args(argv)
    facts = machine(("verl_hpc", "torch", "vllm", "megatron-core"))
    record, lines = {}, []
    for shape, sizes in SHAPES.items():
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory)
            heads = sizes["hidden_size"] // 32
            make_tiny_model(
                path / "model", "qwen3", num_attention_heads=heads, num_key_value_heads=2, **sizes
            )
            rows = [_pair(path, pair, arguments) for pair in range(arguments.pairs)]
        ratios = spread([exact / plain for plain, exact, _ in rows])
        seconds = [statistics.median(column) for column in zip(*rows, strict=True)]
        record[shape] = {"ratio": ratios, "pairs": rows}
        range_ = f"{ratios['median']:.2f} ({ratios['min']:.2f} to {ratios['max']:.2f})"
        lines.append((shape, f"{seconds[0]:.3f}", f"{seconds[1]:.3f}", range_, f"{seconds[2]:.1e}"))
    header = ("decoder", "step without, s", "step with, s", "ratio", "largest difference without")
    command = f"`python -m benchmarks.batch_invariant --ranks {arguments.ranks}`"
    text = "\n\n".join((command, machine_markdown(facts), markdown_table(header, lines)))
    report(text, {"machine": facts, **record}, arguments.markdown, arguments.json)
    return 0


def _pair(directory: Path, pair: int, arguments: argparse.Namespace) -> tuple[float, float, float]:
    """Run once without the setting and once with it, in turn first; seconds of a step of both, and
    the largest difference of log-probs without it."""
    seconds, largest = {}, {}
    file = directory / "run.yaml"
    file.write_text(RUN)
    for exact in (False, True) if pair % 2 == 0 else (True, False):
        name = f"pair-{pair}-{exact}".lower()
        command = [sys.executable, "-m", "verl_hpc", "train", "--ranks", str(arguments.ranks)]
        settings = {
            "name": name,
            "steps": arguments.steps + SKIPPED,
            "directory": str(directory),
            "model.path": str(directory / "model"),
            "parallel.tensor_parallel": arguments.ranks,
            "rollout.tensor_parallel": arguments.ranks,
            "rollout.batch_invariant": str(exact).lower(),
        }
        command += ["--config", str(file), *(f"{n}={value}" for n, value in settings.items())]
        run(command, directory / "log", _TIMEOUT_S)
        rows = read_metrics(directory / name)[SKIPPED:]
        seconds[exact] = statistics.median(row["timing_s/step"] for row in rows)
        largest[exact] = max(row["training/rollout_log_probs_diff_max"] for row in rows)
    assert largest[True] == 0.0
    return seconds[False], seconds[True], largest[False]


if __name__ == "__main__":
    sys.exit(main())
