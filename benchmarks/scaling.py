"""Strong and weak scaling, on paper or measured.

Without a cluster: predicted steps of models of 7B to 70B, of two mixtures of experts, and of the
runs of launch/*.sbatch, on 8 to 4,096 GPUs. With --cluster, or with --ranks, a run of one
configuration at each size, one after the other, and the page of `report scaling` about them, with
the prediction beside what was measured.

usage: python -m benchmarks.scaling [--sizes 8,64,512] [--picture FILE] [--markdown FILE]
           [--json FILE]
       python -m benchmarks.scaling --cluster SITE --nodes 1,2,4 --config YAML --time T [--weak]
           [--markdown FILE] [field=value ...]
       python -m benchmarks.scaling --ranks 1,2,4 --config YAML [--weak] [--markdown FILE]
           [field=value ...]
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import report
from benchmarks.launch import shown
from benchmarks.scaling_paper import SIZES, Row, found, own, rows_of
from benchmarks.scaling_shapes import GPU, GRPO, PER_GPU, Shape, launched, models
from benchmarks.scaling_tables import (
    beside_table,
    breaks_table,
    picture,
    record_of,
    strong_table,
    weak_table,
)
from verl_hpc.planner.hardware import gpu_kind
from verl_hpc.planner.timing.cost import MEANINGS, TERMS, Efficiency
from verl_hpc.planner.timing.step import ASSUMPTIONS


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of this module."""
    words = sys.argv[1:] if argv is None else argv
    arguments = _parser().parse_args(words)
    on_paper(arguments, shlex.join(["python", "-m", "benchmarks.scaling", *shown(words)]))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=numbers, default=SIZES, metavar="N,N", help="GPUs on paper")
    parser.add_argument("--picture", type=Path, help="SVG file of efficiency over GPUs")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--json", type=Path)
    return parser


def numbers(text: str) -> tuple[int, ...]:
    """Ascending, of `1,2,4`.

    Raises:
        argparse.ArgumentTypeError: something else.
    """
    words = text.split(",")
    if not all(word.isdecimal() and int(word) for word in words):
        raise argparse.ArgumentTypeError(f"{text!r}: numbers from 1 up, such as 1,2,4")
    return tuple(sorted({int(word) for word in words}))


def on_paper(arguments: argparse.Namespace, command: str) -> None:
    """Print and write the page without a cluster."""
    sizes = arguments.sizes
    strong = {shape.name: rows_of(shape, sizes, found, weak=False) for shape in models()}
    weak = {shape.name: rows_of(shape, sizes, found, weak=True) for shape in models()}
    mine = {shape.name: rows_of(shape, sizes, own, weak=False) for shape in launched()}
    best = {shape.name: rows_of(shape, sizes, found, weak=False) for shape in launched()}
    grown = {shape.name: rows_of(shape, sizes, own, weak=True) for shape in launched()}
    text = [f"`{command}`", _setting()]
    text += ["## Where the rule breaks, strong scaling", breaks_table(strong | mine)]
    text += ["## Weak scaling, efficiency", weak_table(weak | grown)]
    for shape in models():
        title = f"## {shape.name}: {shape.config.batch.size} prompts a step"
        text += [title, strong_table(strong[shape.name], shape.ranks_per_node)]
    for shape in launched():
        tables = mine[shape.name], best[shape.name]
        text += [_title(shape), beside_table(*tables, shape.ranks_per_node)]
    text += ["## Assumptions", _assumptions()]
    record = {
        "command": command,
        "gpu": GPU,
        "factors": {term: getattr(Efficiency(), term) for term in TERMS},
        "models": _records(models(), {"strong": strong, "weak": weak}),
        "launched": _records(launched(), {"strong": mine, "found": best, "weak": grown}),
    }
    report("\n\n".join(text), record, arguments.markdown, arguments.json)
    if arguments.picture is not None:
        arguments.picture.write_text(picture(strong), encoding="utf-8")


def _records(
    shapes: Sequence[Shape], series: Mapping[str, Mapping[str, Sequence[Row]]]
) -> dict[str, Any]:
    return {
        shape.name: {kind: record_of(shape, rows[shape.name]) for kind, rows in series.items()}
        for shape in shapes
    }


def _title(shape: Shape) -> str:
    what = "examples" if shape.config.recipe == "sft" else "prompts"
    size = f"{shape.config.batch.size} {what} a step; its own size is {shape.num_ranks} GPUs"
    return f"## launch/{shape.name}.sbatch: {size}"


def _setting() -> str:
    kind, batch, rollout = gpu_kind(GPU), GRPO["batch"], GRPO["rollout"]
    return (
        f"GPUs: {GPU}, {kind.memory_gib:g} GiB each, {kind.peak_tflops('bfloat16'):g} Tflop/s in "
        f"bfloat16, {kind.hbm_gb_s:g} GB/s of memory; nodes of 8 (sft_8b: 4), 400 Gb/s of network "
        f"per GPU, taken as 45 GB/s. The models: GRPO without a reference, {batch['size']} prompts "
        f"x {rollout['num_samples']} responses (weak: {PER_GPU} prompts on a GPU), at most "
        f"{rollout['max_prompt_tokens']} + {rollout['max_response_tokens']} tokens, "
        f"{batch['mini_batches']} optimizer steps, all training state offloaded during generation. "
        "A mean prompt and a mean response are half of the longest. Layouts and placement are "
        "searched anew for each size."
    )


def _assumptions() -> str:
    factors = Efficiency()
    lines = [f"- {sentence}" for sentence in ASSUMPTIONS]
    lines += [f"- {term} = {getattr(factors, term):g}: {MEANINGS[term]}" for term in TERMS]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
