"""What programs in sandboxes cost, many at once: `python benchmarks/sandboxes.py [NUMBER...]`.

A real endpoint serves so many programs of one rank, each in bubblewrap. The model, which says
nothing new, lets nobody go on before all have asked: they are alive at once. Printed are processor
time and memory of all processes, the keepers' included, at that moment.
"""

from __future__ import annotations

import argparse
import os
import selectors
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path

from verl_hpc.agents.endpoint import Ask, Endpoint
from verl_hpc.agents.programs import Ended, Program, ProgramJob, Programs
from verl_hpc.agents.protocol import Replies
from verl_hpc.agents.session import Session, Writer
from verl_hpc.data.prompts import Encoder
from verl_hpc.rewards.sandbox.containment import Limits
from verl_hpc.rollout.protocol import Response
from verl_hpc.runtime.processes import below, usage
from verl_hpc.testing.local_run import LetterTokenizer

AGENT = textwrap.dedent(
    """
    import json, os, urllib.request
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/completions",
        json.dumps({"model": "policy", "prompt": "ab", "max_tokens": 4}).encode(),
        {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
    )
    said = json.load(urllib.request.urlopen(request))["choices"][0]["text"]
    open(os.environ["VERL_HPC_SCORE"], "w").write(str(len(said)))
    """
)
MIB = 2**20
HEADER = (
    *("programs", "processes", "ms of a core each, until it asks", "s until all have asked"),
    *("s until all have ended", "MiB each"),
)


def shared_memory(processes: Sequence[int]) -> int:
    """Return the memory of processes in bytes, in which what several share counts once."""
    total = 0
    for process in processes:
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            total += int(line.split()[1]) * 1024 if line.startswith("Pss:") else 0
    return total


def at_once(programs: Programs, endpoint: Endpoint, number: int) -> str:
    """Run so many programs at once; return a row of the table."""
    writer = Writer(Encoder(LetterTokenizer()))
    limits = Limits(timeout_s=600.0, cpu_s=600.0)
    start = time.monotonic()
    tokens = [endpoint.open(index, Session(writer)) for index in range(number)]
    under_way = []
    for token in tokens:
        given = ["python", "-Sc", AGENT], "{}", endpoint.address, token
        job = ProgramJob(*given, "bubblewrap", "none", None, [], limits)
        under_way.append(programs.begin(job))
    with selectors.DefaultSelector() as selector:
        selector.register(endpoint, selectors.EVENT_READ)
        for program in under_way:
            selector.register(program, selectors.EVENT_READ, program)
        asks: list[Ask] = []
        while len(asks) < number:
            for key, _ in selector.select(600):
                assert key.data is None, f"it ends early: {key.data.ended()}"
                asks += endpoint.asks()
        all_asked_s = time.monotonic() - start
        processes = below(programs._helper.process.pid, 100 * number)
        used, memory = usage(processes), shared_memory(processes)
        for ask in asks:
            endpoint.answer(ask.number, Response((3, 4), (-1.0, -1.0), "stop"))
        selector.unregister(endpoint)
        ended = _ends(selector, under_way)
    assert all(end.score == "2" and end.status == 0 for end in ended), ended[0]
    for token in tokens:
        endpoint.close(token)
    wall_s = time.monotonic() - start
    cells = [
        f"{number}",
        f"{len(processes)}",
        f"{1000 * used.cpu_s / number:.0f}",
        f"{all_asked_s:.1f}",
        f"{wall_s:.1f}",
        f"{memory / number / MIB:.1f}",
    ]
    return f"| {' | '.join(cells)} |"


def _ends(selector: selectors.BaseSelector, under_way: Sequence[Program]) -> list[Ended]:
    ended: list[Ended] = []
    while len(ended) < len(under_way):
        for key, _ in selector.select(600):
            result = key.data.ended()
            selector.unregister(key.fileobj)
            ended.append(result)
    return ended


def main(numbers: Sequence[int]) -> None:
    """Print a table."""
    programs = Programs()
    endpoint = Endpoint(Replies(LetterTokenizer(), {2}), 64, 8, (), programs.directory)
    endpoint.start()
    print(f"{os.cpu_count()} processors, Python {sys.version.split()[0]}")
    print(f"| {' | '.join(HEADER)} |\n| {' | '.join(['---:'] * len(HEADER))} |")
    for number in numbers:
        print(at_once(programs, endpoint, number), flush=True)
    endpoint.stop()
    programs.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("numbers", nargs="*", type=int, default=[1, 16, 64, 256])
    main(parser.parse_args().numbers)
