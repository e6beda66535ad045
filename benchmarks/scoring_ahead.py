"""A slow reward function, called after generation or in processes beside it.

One engine answers prompts, and a function that takes 20 ms scores every response: in the rank, one
after another, when all have ended; then in processes of the rank, as they end. Both run in one
program, in turn, with the same responses; their scores are compared. `sleep` waits, as for a
service; `burn` computes, as a parser of mathematics does.

    mpiexec -n 1 python -m benchmarks.scoring_ahead --sequences 32 --markdown ahead.md
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.figures import machine, machine_markdown, markdown_table, report, spread
from verl_hpc.config.load import parse_config
from verl_hpc.config.run import RunConfig
from verl_hpc.runtime.session import Session, session
from verl_hpc.testing.tiny import make_tiny_model

REWARD = """
import time


def sleep(response, ground_truth):
    time.sleep({seconds})
    return (sum(map(ord, response)) % 97) / 97


def burn(response, ground_truth):
    end = time.process_time() + {seconds}
    while time.process_time() < end:
        pass
    return (sum(map(ord, response)) % 97) / 97
"""
AFTER, BESIDE = "after, in the rank", "beside, in processes"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--reward-ms", type=float, default=20.0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--sequences", type=int, help="generated at a time; all, if left out")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as directory, session(threads_per_rank=1) as here:
        record = {
            kind: _measure(here, Path(directory) / kind, kind, arguments)
            for kind in ("sleep", "burn")
        }
    facts = machine(("verl_hpc", "torch", "vllm"))
    options = "" if arguments.sequences is None else f" --sequences {arguments.sequences}"
    text = "\n\n".join(
        (
            f"`mpiexec -n 1 python -m benchmarks.scoring_ahead{options}`",
            machine_markdown(facts),
            _what(arguments),
            _table(record),
        )
    )
    report(text, {"machine": facts, **record}, arguments.markdown, arguments.json)
    return 0


def _measure(
    here: Session, directory: Path, kind: str, arguments: argparse.Namespace
) -> dict[str, Any]:
    from verl_hpc.generation.generate import generate
    from verl_hpc.generation.score import score
    from verl_hpc.step.batch import StepRows
    from verl_hpc.trainer.build import build_run

    run = build_run(here, _configuration(directory, kind, arguments))
    assert run.rollout is not None and run.sync is not None
    run.sync.to_generation()
    asking, scoring = run.settings.generate, run.settings.score
    assert run.rollout is not None and run.rollout.engine is not None
    ways = {
        AFTER: (replace(asking, scoring=None), replace(scoring, ahead=None)),
        BESIDE: (replace(asking, scoring=scoring), scoring),
    }
    seconds: dict[str, list[float]] = {AFTER: [], BESIDE: [], "generate": []}
    for step in range(arguments.repeats + 1):
        rows = StepRows(step, range(arguments.prompts))
        values = []
        for way, (asks, scores) in ways.items():
            run.rollout.engine.finish_update()  # nothing is cached of the other way
            begin = time.perf_counter()
            (samples, columns), _ = generate(run.rollout.place, run.rollout, asks, rows)
            generated = time.perf_counter()
            found, _ = score(run.rollout.place, scores, rows, samples, columns)
            end = time.perf_counter()
            values.append(found.values)
            if step:  # the first one warms up
                seconds[way].append(end - begin)
                seconds["generate"] += [generated - begin] if way == AFTER else []
        assert values[0] == values[1], "the same scores"
    run.rollout.engine.close()
    return {name: spread(times) for name, times in seconds.items()} | {"count": len(samples)}


def _configuration(directory: Path, kind: str, arguments: argparse.Namespace) -> RunConfig:
    model = make_tiny_model(
        directory / "model",
        "qwen2",
        tied=True,
        noise=0.05,
        hidden_size=256,
        num_attention_heads=8,
        num_key_value_heads=4,
    )
    file = directory / "reward.py"
    file.write_text(REWARD.format(seconds=arguments.reward_ms / 1000))
    data = {"kind": "reasoning_gym", "task": "chain_sum", "size": arguments.prompts}
    return parse_config(
        {
            "name": f"ahead-{kind}",
            "recipe": "rl",
            "directory": str(directory),
            "steps": 1,
            "model": {"path": str(model), "dtype": "float32"},
            "batch": {"size": arguments.prompts},
            "data": {"train": data},
            "rollout": {
                "num_samples": arguments.samples,
                "max_prompt_tokens": 128,
                "overlong_prompt": "truncate_left",
                "max_response_tokens": arguments.tokens,
                "kv_cache_gib": 0.25,
                "max_num_seqs": arguments.sequences,
            },
            "reward": {"function": f"{file}:{kind}"},
            "runtime": {"reward_processes": arguments.processes},
        }
    )


def _what(arguments: argparse.Namespace) -> str:
    at_a_time = "all" if arguments.sequences is None else arguments.sequences
    return (
        f"{arguments.prompts} prompts, {arguments.samples} responses each of at most "
        f"{arguments.tokens} tokens, {at_a_time} at a time, a reward of "
        f"{arguments.reward_ms:g} ms, processes of the rank: {arguments.processes}; "
        f"{arguments.repeats} repetitions in turn. Seconds to generate and score."
    )


def _table(record: dict[str, Any]) -> str:
    rows = []
    for kind, found in record.items():
        after, beside = found[AFTER]["median"], found[BESIDE]["median"]
        shown = [f"{found[n]['median']:.2f} ({found[n]['min']:.2f} to {found[n]['max']:.2f})"
                 for n in ("generate", AFTER, BESIDE)]  # fmt: skip
        rows.append((kind, found["count"], *shown, f"{beside / after:.2f}"))
    header = ("reward", "responses", "generation alone", AFTER, BESIDE, "beside / after")
    return markdown_table(header, rows)


if __name__ == "__main__":
    sys.exit(main())
