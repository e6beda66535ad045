"""How long a new process takes to compile: cold, and with an archive of kept compile caches.

usage: python -m benchmarks.compile_caches [--repeats N] [--markdown FILE] [--json FILE]

Each start is a process with an empty cache directory of another name, as each job has. It compiles
a decoder layer's forward and backward pass for CPUs by torch.compile; a C++ compiler is needed.
torch counts what it compiled and what it found.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import machine, machine_markdown, markdown_table, report, spread
from verl_hpc.runtime.cache_archive import pack, unpack

NOTHING: frozenset[str] = frozenset()


def compile_layer() -> dict[str, float]:
    """Return seconds of the first forward and backward pass, and torch's counts of graphs that it
    found in its cache, and of those that it compiled; in a process that has compiled nothing."""
    import torch
    from torch._dynamo.utils import counters

    hidden = 64
    layer = torch.nn.TransformerEncoderLayer(hidden, 4, 4 * hidden, 0.0, batch_first=True)
    compiled = torch.compile(layer)
    began = time.perf_counter()
    compiled(torch.ones(2, 16, hidden)).sum().backward()
    seconds = time.perf_counter() - began
    count = counters["inductor"]
    return {
        "seconds": seconds,
        "found": count["fxgraph_cache_hit"],
        "compiled": count["fxgraph_cache_miss"],
    }


def start(cache: Path) -> dict[str, Any]:
    """Run `compile_layer` with the caches of a directory."""
    directories = {
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "TRITON_CACHE_DIR": str(cache / "triton"),
    }
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.compile_caches", "--start"],
        env=os.environ | directories,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(directory: Path) -> dict[str, dict[str, Any]]:
    """One cold start, whose caches are packed, and one that unpacks them first."""
    first, second, archive = directory / "first", directory / "second", directory / "kept.tar"
    found = {"cold": start(first)}
    began = time.perf_counter()
    pack(first, archive, NOTHING)
    found["cold"] |= {"archive": time.perf_counter() - began, "bytes": archive.stat().st_size}
    first.rename(directory / "gone")
    began = time.perf_counter()
    names = unpack(archive, second)
    found["kept"] = {"archive": time.perf_counter() - began, **start(second)}
    found["kept"]["new files"] = len(pack(second, archive, names) - names)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of this module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--start", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(argv)
    if arguments.start:
        print(json.dumps(compile_layer()))
        return 0
    facts = machine(("verl_hpc", "torch"))
    repetitions = []
    for _ in range(arguments.repeats):
        with tempfile.TemporaryDirectory() as directory:
            repetitions.append(measure(Path(directory)))
    rows = [_row(name, [one[name] for one in repetitions]) for name in ("cold", "kept")]
    ratios = spread([one["cold"]["seconds"] / one["kept"]["seconds"] for one in repetitions])
    header = ("start", "compile, median s", "min", "max", "archive, s", "graphs found", "compiled")
    told = (
        f"A cold start takes {ratios['median']:.1f} times as long ({ratios['min']:.1f} to "
        f"{ratios['max']:.1f}). The archive has {repetitions[0]['cold']['bytes']:,} bytes; its "
        "column is seconds to pack it after a cold start, and to unpack it before the other."
    )
    parts = ("`python -m benchmarks.compile_caches`", machine_markdown(facts))
    text = "\n\n".join((*parts, markdown_table(header, rows), told))
    report(text, {"machine": facts, "runs": repetitions}, arguments.markdown, arguments.json)
    return 0


def _row(name: str, found: list[dict[str, Any]]) -> tuple[str, ...]:
    seconds = spread([one["seconds"] for one in found])
    archive = spread([one["archive"] for one in found])["median"]
    counts = (str(found[0][key]) for key in ("found", "compiled"))
    times = (f"{seconds[key]:.1f}" for key in ("median", "min", "max"))
    return (name, *times, f"{archive:.3f}", *counts)


if __name__ == "__main__":
    sys.exit(main())
