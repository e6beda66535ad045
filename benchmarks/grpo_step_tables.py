"""What `grpo_step_vs_trl` measured, as tables."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from benchmarks.figures import machine_markdown, markdown_table, spread

OPERATORS = ("rollout", "reshard", "old_log_probs", "update_actor")
DESCRIPTIONS: Mapping[str, str] = {
    "ours-1": "verl_hpc, 1 rank, vLLM",
    "ours-1-hf": "verl_hpc, 1 rank, transformers generates",
    "ours-2": "verl_hpc, 2 ranks, DP2, vLLM TP1 x 2",
    "ours-4": "verl_hpc, 4 ranks, TP2 x DP2, vLLM TP1 x 4",
    "trl-1": "TRL, 1 process",
    "trl-2": "TRL, 2 processes (torchrun, gloo)",
    "trl-1-plain": "TRL, 1 process, allocators as they are by default",
    "trl-2-plain": "TRL, 2 processes, allocators as they are by default",
}
RIVALS = {"ours-1": "trl-1", "ours-1-hf": "trl-1", "ours-2": "trl-2", "ours-4": "trl-2"}


def line_of(run: Mapping[str, Any]) -> str:
    """A run, while the benchmark goes on."""
    steps = ", ".join(f"{s:.2f}" for s in run["seconds"])
    return f"first step after {run['first_step_ended_after']:.1f} s, then {steps}"


def summary(spec: Mapping[str, Any], runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Of all runs of a variant."""
    lengths = {run[key] for run in runs for key in ("shortest", "longest")}
    if spec["mean_tokens"] is None:
        assert lengths == {spec["response_tokens"]}, f"completions of {lengths} tokens"
    samples = spec["prompts_per_step"] * spec["samples_per_prompt"]
    seconds = spread([s for run in runs for s in run["seconds"]])
    mean_length = fmean(length for run in runs for length in run["lengths"])
    # Steps of equal work are compared by their median, others by all that they did.
    of_a_step = seconds["median"] if spec["mean_tokens"] is None else fmean(seconds["raw"])
    # Forward for generation, forward and backward for the update, of each sample by itself.
    operations = 4 * spec["operations_per_token"] * samples * (spec["prompt_tokens"] + mean_length)
    return {
        "seconds_per_step": seconds,
        "mean_length": mean_length,
        "generated_tokens_per_second": samples * mean_length / of_a_step,
        "operations_per_second": operations / of_a_step,
        "first_step_ended_after": spread([run["first_step_ended_after"] for run in runs]),
        "operators": {
            name: spread([s for run in runs for s in run["operators"][name]])
            for name in OPERATORS
            if all("operators" in run for run in runs)
        },
    }


def markdown(record: Mapping[str, Any]) -> str:
    """The whole page."""
    work = record["work"]
    packages = ", ".join(f"{k} {v}" for k, v in record["machine"]["trl_packages"].items())
    lengths = f"{work['response_tokens']} tokens each (checked in both programs)"
    if work["mean_tokens"] is not None:
        lengths = (
            f"which end after {work['mean_tokens']:g} tokens on average, at most "
            f"{work['response_tokens']}"
        )
    environment = (
        f"TRL's environment: {packages}. With one process both had OMP_WAIT_POLICY=ACTIVE, "
        "and TRL with any number the settings of glibc's and torch's allocators that ours makes."
    )
    step = (
        f"A step: {work['prompts_per_step']} prompts of {work['prompt_tokens']} tokens, "
        f"{work['samples_per_prompt']} samples each, {lengths}, one optimizer step. The first two "
        "steps of each run are left out. Operations are those of the model's weights, 2 a token "
        "for generation and 6 for the update, each sample counted by itself; the peak is a "
        "product of two 2048 x 2048 matrices, by MKL or oneDNN, whichever is faster: "
        f"{record['peak'] / 1e9:.0f} GF/s."
    )
    parts = [
        f"`{record['command']}`",
        machine_markdown(record["machine"]),
        environment,
        step,
        _step_table(record),
        "Where our step's time goes (median seconds):",
        _operator_table(record),
    ]
    return "\n\n".join(parts)


def _step_table(record: Mapping[str, Any]) -> str:
    rows = []
    for name, found in record["variants"].items():
        seconds = found["seconds_per_step"]
        rival = record["variants"].get(RIVALS.get(name, ""))
        times = found["generated_tokens_per_second"]
        rows.append(
            (
                DESCRIPTIONS[name],
                *(f"{seconds[key]:.2f}" for key in ("median", "min", "max")),
                len(seconds["raw"]),
                f"{found['mean_length']:.1f}",
                f"{times:.0f}",
                f"{times / rival['generated_tokens_per_second']:.2f}" if rival else "",
                f"{found['operations_per_second'] / 1e9:.0f}",
                f"{found['operations_per_second'] / record['peak']:.0%}",
                f"{found['first_step_ended_after']['median']:.1f}",
            )
        )
    return markdown_table(
        (
            *("program", "s/step, median", "min", "max", "steps", "mean tokens"),
            *("generated tokens/s", "times TRL's", "GF/s", "of peak"),
            "first step ended after, s",
        ),
        rows,
    )


def _operator_table(record: Mapping[str, Any]) -> str:
    rows = [
        (DESCRIPTIONS[name], *(f"{found['operators'][o]['median']:.2f}" for o in OPERATORS))
        for name, found in record["variants"].items()
        if found["operators"]
    ]
    return markdown_table(("program", *OPERATORS), rows)
