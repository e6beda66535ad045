"""oneDNN's matrix products against MKL's, on the shapes of a decoder's linear layers.

A layer multiplies three times: forward, for the gradient of its input, and for that of its weight.
Ours takes oneDNN for the first two (`verl_hpc.engines.megatron.products`).

    python -m benchmarks.products --markdown products.md --json products.json
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import launch
from benchmarks.figures import machine, machine_markdown, markdown_table, report, spread

if TYPE_CHECKING:
    import torch

# Inputs and outputs of the fused query, key and value, of the two of the MLP, and of the head.
LAYERS: Mapping[str, Mapping[str, tuple[int, int]]] = {
    "3 M, hidden 256": {
        "qkv": (256, 512),
        "attention out": (256, 256),
        "MLP in": (256, 1536),
        "MLP out": (768, 256),
    },
    "SmolLM2-135M, hidden 576": {
        "qkv": (576, 960),
        "attention out": (576, 576),
        "MLP in": (576, 3072),
        "MLP out": (1536, 576),
        "head": (576, 49152),
    },
}
Product = Callable[["torch.Tensor", "torch.Tensor"], "torch.Tensor"]


def main() -> int:
    """Command line of this module."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.products",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--tokens", type=int, default=1024, help="of a row (default 1024)")
    parser.add_argument("--repetitions", type=int, default=9, metavar="K")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    import torch

    facts = machine(("torch",))
    cases = {
        f"{model}: {layer}": _compare(arguments.tokens, *size, arguments.repetitions)
        for model, layers in LAYERS.items()
        for layer, size in layers.items()
    }
    command = shlex.join(["python", "-m", "benchmarks.products", *launch.shown(sys.argv[1:])])
    record = {
        "command": command,
        "machine": facts,
        "threads": torch.get_num_threads(),
        "tokens": arguments.tokens,
        "cases": cases,
    }
    report(_markdown(record), record, arguments.markdown, arguments.json)
    return 0


def best_rate(size: int = 2048, repetitions: int = 5) -> float:
    """The machine's peak in float32, operations a second: the best of some products, by either
    library."""
    import torch

    one, other = torch.rand(2, size, size)
    best = min(_seconds(product, one, other) for product in _PRODUCTS.values()
               for _ in range(repetitions))  # fmt: skip
    return 2 * size**3 / best


def _compare(tokens: int, inputs: int, outputs: int, repetitions: int) -> dict[str, Any]:
    """Seconds of each product of a layer by each library, in turn."""
    import torch

    x, grad = torch.rand(tokens, inputs), torch.rand(tokens, outputs)
    weight = torch.rand(outputs, inputs)
    operands = {
        "forward": (x, weight.t()),
        "input's gradient": (grad, weight),
        "weight's gradient": (grad.t(), x),
    }
    calls = max(1, int(2e8 / (tokens * inputs * outputs)))
    found: dict[str, Any] = {}
    for name, (one, other) in operands.items():
        seconds: dict[str, list[float]] = {library: [] for library in _PRODUCTS}
        for _ in range(repetitions + 1):
            for library, product in _PRODUCTS.items():
                seconds[library].append(_seconds(product, one, other, calls))
        found[name] = {library: spread(all_s[1:]) for library, all_s in seconds.items()}
    return found


def _seconds(product: Product, one: torch.Tensor, other: torch.Tensor, calls: int = 1) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        product(one, other)
    return (time.perf_counter() - start) / calls


def _mkl(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.mm(one, other)


def _onednn(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    import torch

    found: torch.Tensor = torch.ops.mkldnn._linear_pointwise(one, other.t(), None, "none", [], "")
    return found


_PRODUCTS: Mapping[str, Product] = {"MKL": _mkl, "oneDNN": _onednn}


def _markdown(record: Mapping[str, Any]) -> str:
    rows = []
    for case, products in record["cases"].items():
        times = [f"{by['MKL']['median'] / by['oneDNN']['median']:.2f}" for by in products.values()]
        milliseconds = [
            f"{1e3 * by[library]['median']:.2f}" for by in products.values() for library in by
        ]
        rows.append((case, *times, *milliseconds))
    names = next(iter(record["cases"].values()))
    header = [f"{name}: times as fast as MKL" for name in names]
    header += [f"{name}, {library} ms" for name in names for library in _PRODUCTS]
    return "\n\n".join(
        [
            f"`{record['command']}`",
            machine_markdown(record["machine"]),
            f"{record['tokens']} tokens, float32, {record['threads']} threads; medians.",
            markdown_table(("layer", *header), rows),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
