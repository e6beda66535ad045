"""Our transfer against an all-gather of full tensors, over the same processes and memory.

Training weights, laid out as Megatron-core does, go to generation weights, laid out as vLLM does.
Both sides are bare float32 memory: no engine is built. Every method first proves that what it
wrote is right, bit for bit.

    mpiexec -n 4 python -m benchmarks.reshard --markdown reshard.md --json reshard.json
    mpiexec -n 4 python -m benchmarks.reshard --train tp=2,pp=2 --rollout tp=1 --layers 24
"""

from __future__ import annotations

import argparse
import ctypes
import shlex
import statistics
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from benchmarks.figures import MIB, machine, machine_markdown, markdown_table, report, spread
from benchmarks.launch import shown
from verl_hpc.cli.reshard import parse_sizes
from verl_hpc.layout.architecture import Architecture, read_architecture
from verl_hpc.layout.generation import generation_groups, zero_redundancy_applies
from verl_hpc.layout.megatron import TrainLayout, megatron_shard_map
from verl_hpc.layout.planner import HOST_BUCKET_BYTES, HOST_ROUNDS, plan_transfer
from verl_hpc.layout.report import minimum_received
from verl_hpc.layout.shard_map import ShardMap, shard_sizes
from verl_hpc.layout.vllm import vllm_shard_map
from verl_hpc.runtime.session import Session, session

if TYPE_CHECKING:
    import torch

ALL_GATHER = "all-gather of full tensors"
POINT_TO_POINT = "the same by point-to-point messages"
RIVALS = (ALL_GATHER, POINT_TO_POINT)
CHECKED = ("transfer", "transfer by messages")
COPY = "memcpy of the target's bytes"
PACKAGES = ("torch", "numpy", "mpi4py", "mpich", "xxhash")


@dataclass(frozen=True)
class Case:
    """From one training layout to one rollout size."""

    train: TrainLayout
    rollout_tp: int

    def __str__(self) -> str:
        t = self.train
        return f"TP{t.tp} x PP{t.pp} x DP{t.dp} to TP{self.rollout_tp}"


@dataclass
class Method:
    """A way to fill the target, and what it takes."""

    run: Callable[[], None]
    received_bytes: int = 0
    buffer_bytes: int = 0
    checked: bool = True
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    """Of all ranks together: neighbours on the same cores disturb it less."""


def main() -> int:
    """Command line of this module."""
    arguments = _parse()
    with session(device="cpu") as here:
        cases = _cases(arguments, here.world.size)
        arch = _architecture(arguments)
        facts = machine(PACKAGES)
        results = [_measure(here, arch, case, arguments) for case in cases]
        if here.world.rank == 0:
            record = {
                "command": _command(here.world.size),
                "model": {"parameters": arch.num_parameters, **_sizes(arch)},
                "machine": facts,
                "cases": results,
            }
            report(_markdown(record), record, arguments.markdown, arguments.json)
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.reshard",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--model-config", type=Path, metavar="JSON", help="take the sizes of this config.json")
    add("--hidden-size", type=int, default=1024)
    add("--ffn-size", type=int, default=2816)
    add("--layers", type=int, default=4)
    add("--heads", type=int, default=16)
    add("--kv-heads", type=int, default=4)
    add("--vocab-size", type=int, default=16000)
    add("--untied", action="store_true", help="an output layer of its own")
    add("--train", metavar="SIZES", help="tp=..,pp=..; data parallelism takes the ranks left")
    add("--rollout", metavar="SIZES", default="tp=1", help="tp of each engine, with --train")
    add("--repetitions", type=int, default=5, metavar="K")
    add("--json", type=Path, metavar="FILE")
    add("--markdown", type=Path, metavar="FILE")
    return parser.parse_args()


def _architecture(arguments: argparse.Namespace) -> Architecture:
    if arguments.model_config is not None:
        return read_architecture(arguments.model_config)
    return Architecture(
        "llama",
        num_layers=arguments.layers,
        hidden_size=arguments.hidden_size,
        ffn_size=arguments.ffn_size,
        num_heads=arguments.heads,
        num_kv_heads=arguments.kv_heads,
        head_size=arguments.hidden_size // arguments.heads,
        vocab_size=arguments.vocab_size,
        tied_embeddings=not arguments.untied,
    )


def _cases(arguments: argparse.Namespace, size: int) -> list[Case]:
    """The one case that was asked for, or those that this many ranks allow."""
    if arguments.train is not None:
        sizes = parse_sizes("--train", arguments.train, ("tp", "pp"))
        tp, pp = sizes.get("tp", 1), sizes.get("pp", 1)
        rollout = parse_sizes("--rollout", arguments.rollout, ("tp",))
        return [Case(TrainLayout(tp=tp, pp=pp, dp=size // (tp * pp)), rollout.get("tp", 1))]
    half = max(size // 2, 1)
    wanted = [(half, size // half, 1), (half, 1, 1), (half, 1, half), (size, 1, 1)]
    return [
        Case(TrainLayout(tp=tp, pp=pp, dp=size // (tp * pp)), rollout)
        for tp, pp, rollout in dict.fromkeys(wanted)
    ]


def _measure(
    here: Session, arch: Architecture, case: Case, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Check every method once, then repeat them in turn."""
    bench = _Bench(here, arch, case)
    growth = {name: bench.check(method) for name, method in bench.methods.items()}
    names = list(bench.methods)
    for repetition in range(arguments.repetitions):
        first = repetition % len(names)
        for name in names[first:] + names[:first]:
            bench.time(bench.methods[name])
    if here.world.rank == 0:
        print(f"{case}: done", file=sys.stderr, flush=True)
    mine = {
        name: (m.received_bytes, m.buffer_bytes, growth[name]) for name, m in bench.methods.items()
    }
    everyone = here.control.allgather(mine)
    return {
        "case": str(case),
        "model_bytes": bench.source.num_bytes,
        "minimum_received_bytes_per_rank": bench.minimum,
        "target_bytes_per_rank": bench.target_bytes,
        "planning_seconds": bench.planning_seconds,
        "methods": {
            name: {
                "seconds": spread(method.seconds),
                "cpu_seconds": spread(method.cpu_seconds),
                "received_bytes_per_rank": [ranks[name][0] for ranks in everyone],
                "buffer_bytes_per_rank": [ranks[name][1] for ranks in everyone],
                "resident_growth_bytes_per_rank": [ranks[name][2] for ranks in everyone],
            }
            for name, method in bench.methods.items()
        },
    }


class _Bench:
    """One case: both memories of this rank and the methods that fill one from the other."""

    def __init__(self, here: Session, arch: Architecture, case: Case) -> None:
        from benchmarks.allgather import AllGather, local_sizes, stage_sizes

        self.here, self.rank = here, here.world.rank
        self.source = megatron_shard_map(arch, case.train, dtype="float32")
        zero = zero_redundancy_applies(case.train.tp, case.rollout_tp)
        groups = generation_groups(
            case.train.grid, case.rollout_tp, "zero_redundancy" if zero else "contiguous"
        )
        self.target = vllm_shard_map(arch, groups, "float32")
        stage = case.train.grid.coordinates(self.rank)["pp"]
        held = local_sizes(self.source, self.rank)
        padded = stage_sizes(self.source, case.train, stage)
        self.held = _memory({name: padded[name] for name in held})
        self.wanted = _memory(local_sizes(self.target, self.rank))
        _fill(self.source, self.rank, self.held)
        self.methods: dict[str, Method] = {}
        self._add_transfers()
        for name in RIVALS:
            rival = AllGather(
                self.source, self.target, case.train, self.rank, name == POINT_TO_POINT
            )
            self.methods[name] = Method(
                partial(rival.run, self.held, self.wanted),
                rival.received_bytes,
                rival.peak_buffer_bytes,
            )
        self._add_copy()
        sizes = shard_sizes(self.target)
        self.target_bytes = [sizes[r] for r in range(here.world.size)]

    def _add_transfers(self) -> None:
        import torch

        from verl_hpc.transfer.execute import Transfer
        from verl_hpc.transfer.process_memory import readable_neighbours

        nodes = self.here.world.node_of
        start = time.perf_counter()
        plan = plan_transfer(self.source, self.target, nodes, HOST_BUCKET_BYTES)
        near = readable_neighbours(self.here.control, nodes)
        assert len(near) == self.here.world.size - 1, "ranks may not read each other's memory here"
        transfers = {
            name: Transfer(plan, self.rank, verify=verify, rounds=HOST_ROUNDS, neighbours=of)
            for name, verify, of in (
                (CHECKED[0], True, near),
                (f"{CHECKED[0]}, no checksums", False, near),
                (CHECKED[1], True, {}),
                (f"{CHECKED[1]}, no checksums", False, {}),
            )
        }
        self.planning_seconds = time.perf_counter() - start
        minimum = minimum_received(plan.bundles)
        self.minimum = [minimum.get(r, 0) for r in range(self.here.world.size)]
        for name, transfer in transfers.items():
            method = Method(lambda: None)

            def run(transfer: Transfer = transfer, method: Method = method) -> None:
                stats = transfer.run(self.held, self.wanted, torch.float32)
                method.received_bytes = stats.received_bytes.total()
                method.buffer_bytes = stats.peak_buffer_bytes

            method.run = run
            self.methods[name] = method

    def _add_copy(self) -> None:
        """Every byte of the target must be written at least once: no method can be faster."""
        import torch

        model = {name: torch.zeros_like(tensor) for name, tensor in self.wanted.items()}

        def run() -> None:
            for name, tensor in self.wanted.items():
                tensor.copy_(model[name])

        self.methods[COPY] = Method(run, checked=False)

    def check(self, method: Method) -> int:
        """Run once into empty memory and compare every element; the run's growth in memory."""
        import torch.distributed as dist

        for tensor in self.wanted.values():
            tensor.fill_(float("nan"))
        dist.barrier()
        with _ResidentGrowth() as growth:
            method.run()
        if method.checked:
            for region, window in _windows(self.target, self.rank, self.wanted):
                if not window.equal(_values(self.target, region.tensor)[region.box.slices]):
                    raise AssertionError(f"rank {self.rank}: {region} arrived wrong")
        return growth.num_bytes

    def time(self, method: Method) -> None:
        """Seconds until the last rank is done, all having begun together."""
        import torch.distributed as dist

        dist.barrier()
        start, cpu = time.perf_counter(), time.process_time()
        method.run()
        spent = time.perf_counter() - start, time.process_time() - cpu
        everyone = self.here.control.allgather(spent)
        method.seconds.append(max(elapsed for elapsed, _ in everyone))
        method.cpu_seconds.append(sum(used for _, used in everyone))


def _memory(sizes: Mapping[str, int]) -> dict[str, torch.Tensor]:
    import torch

    return {name: torch.zeros(size, dtype=torch.float32) for name, size in sizes.items()}


def _values(shard_map: ShardMap, tensor: str) -> torch.Tensor:
    """What a logical tensor holds: whole numbers that tell its elements and its name apart."""
    import torch

    shape = shard_map.tensors[tensor].shape
    first = zlib.crc32(tensor.encode()) % 4096
    count = torch.Size(shape).numel()
    numbers = torch.arange(first, first + count, dtype=torch.int32)
    return numbers.remainder_((1 << 24) - 3).to(torch.float32).view(shape)


def _windows(
    shard_map: ShardMap, rank: int, memory: Mapping[str, torch.Tensor]
) -> Iterator[tuple[Any, torch.Tensor]]:
    for region in shard_map.held_by(rank):
        view = region.view
        yield region, memory[view.name].as_strided(region.box.shape, view.strides, view.offset)


def _fill(shard_map: ShardMap, rank: int, memory: Mapping[str, torch.Tensor]) -> None:
    for region, window in _windows(shard_map, rank, memory):
        window.copy_(_values(shard_map, region.tensor)[region.box.slices])


class _ResidentGrowth:
    """Largest resident memory inside the block, above what there was when it began."""

    def __enter__(self) -> Self:
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # forget the high-water mark
        self._before = _status("VmRSS")
        return self

    def __exit__(self, *_: object) -> None:
        self.num_bytes = _status("VmHWM") - self._before


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(name)


def _command(size: int) -> str:
    words = ["mpiexec", "-n", str(size), "python", "-m", "benchmarks.reshard"]
    return shlex.join([*words, *shown(sys.argv[1:])])


def _sizes(arch: Architecture) -> dict[str, Any]:
    return {
        "hidden_size": arch.hidden_size,
        "ffn_size": arch.ffn_size,
        "layers": arch.num_layers,
        "heads": arch.num_heads,
        "kv_heads": arch.num_kv_heads,
        "vocab_size": arch.vocab_size,
        "tied_embeddings": arch.tied_embeddings,
    }


def _markdown(record: Mapping[str, Any]) -> str:
    model = record["model"]
    sizes = ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in model.items() if k != "parameters")
    parts = [
        f"`{record['command']}`",
        machine_markdown(record["machine"]),
        f"Model: {model['parameters'] / 1e6:.1f} M parameters in float32 ({sizes}).",
    ]
    for result in record["cases"]:
        parts += [f"### {result['case']}", _case_markdown(result)]
    return "\n\n".join(parts)


def _case_markdown(result: Mapping[str, Any]) -> str:
    rivals = [result["methods"][name]["seconds"]["median"] for name in RIVALS]
    rows = []
    for name, found in result["methods"].items():
        seconds = found["seconds"]
        rows.append(
            (
                name,
                *(f"{seconds[key]:.3f}" for key in ("median", "min", "max")),
                f"{found['cpu_seconds']['median']:.2f}",
                *(f"{rival / seconds['median']:.2f}" for rival in rivals),
                *(_mib(found["received_bytes_per_rank"]) if name != COPY else ("0", "0")),
                f"{max(found['buffer_bytes_per_rank']) / MIB:.1f}",
                f"{max(found['resident_growth_bytes_per_rank']) / MIB:.1f}",
            )
        )
    header = (
        *("method", "median s", "min s", "max s", "CPU s, all ranks"),
        *("times as fast as all-gather", "as point-to-point"),
        *("received per rank, mean MiB", "max MiB"),
        *("extra memory, counted MiB", "measured MiB"),
    )
    minimum = _mib(result["minimum_received_bytes_per_rank"])
    target = _mib(result["target_bytes_per_rank"])
    count = len(next(iter(result["methods"].values()))["seconds"]["raw"])
    near, far = (_price_of_sums(result["methods"], name) for name in CHECKED)
    return (
        f"{markdown_table(header, rows)}\n\n"
        f"With checksums the transfer takes {near:.2f} times the CPU seconds that it takes "
        f"without, by messages {far:.2f} times (medians of pairs). "
        f"Least that can be received per rank: mean {minimum[0]} MiB, max {minimum[1]} MiB. "
        f"Generation weights per rank: {target[1]} MiB. {count} repetitions; planning, once a "
        f"run, took {result['planning_seconds']:.3f} s."
    )


def _price_of_sums(methods: Mapping[str, Any], name: str) -> float:
    """CPU seconds with checksums, by those without, repetition by repetition."""
    pairs = zip(
        methods[name]["cpu_seconds"]["raw"],
        methods[f"{name}, no checksums"]["cpu_seconds"]["raw"],
        strict=True,
    )
    return statistics.median(summed / plain for summed, plain in pairs)


def _mib(values: list[int]) -> tuple[str, str]:
    return f"{sum(values) / len(values) / MIB:.1f}", f"{max(values) / MIB:.1f}"


if __name__ == "__main__":
    sys.exit(main())
