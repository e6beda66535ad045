"""Time all-reduce, all-gather, broadcast and point-to-point messages, beside MPI's.

Over all ranks, over those of a node and over those that have the same place on different nodes;
with --config over the groups of that run's layouts instead. Groups of one kind work at the same
time, as they do in a run, and the slowest counts. GB/s are bus bandwidth, as nccl-tests has it.

Start it with mpiexec or srun as a run, or on one machine's CPUs with --ranks.

examples:
  python -m verl_hpc comm --ranks 4
  mpiexec -n 4 python -m verl_hpc comm --config configs/run/examples/quickstart.yaml --sizes 1,16
  srun --mpi=pmi2 python -m verl_hpc comm --sizes 64,1024 --json
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from verl_hpc.errors import ConfigError

if TYPE_CHECKING:
    from verl_hpc.config.run import RunConfig
    from verl_hpc.runtime.preflight.speeds import Groups, Speed
    from verl_hpc.runtime.session import Session
    from verl_hpc.runtime.world import World

_TIMEOUT_S, _LATE_AFTER_S = 300.0, 60.0
_MIB = 2**20
_MOST_MIB = 65_536


def _mib(text: str) -> tuple[float, ...]:
    try:
        sizes = tuple(float(word) for word in text.split(","))
    except ValueError:
        sizes = (0.0,)
    if not all(0 < size <= _MOST_MIB for size in sizes):
        raise argparse.ArgumentTypeError(f"{text}: numbers above 0, up to {_MOST_MIB}, of MiB")
    return sizes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--config", metavar="YAML", help="a run, whose layouts say which ranks form groups")
    add("--sizes", type=_mib, default=(1.0, 16.0), metavar="MIB,...", help="default: 1,16")
    add("--repeats", type=int, default=5, metavar="N", help="of each operation (default: 5)")
    add(
        "--bootstrap",
        choices=("mpi", "slurm"),
        default="mpi",
        help="how ranks find each other; slurm has no MPI to compare with",
    )
    add("--ranks", type=int, metavar="N", help="start N ranks on the CPUs of this machine")
    add("--json", action="store_true", help="one JSON object a line")
    add("overrides", nargs="*", metavar="section.field=value", help="settings over the file's")


def run(arguments: argparse.Namespace) -> int:
    from verl_hpc.runtime import environment

    try:
        config = _config(arguments)
    except ConfigError:
        # Every rank reads the same; one of them complaining is enough.
        if environment.launcher_rank() == 0:
            raise
        return 1
    if arguments.ranks is not None:
        from verl_hpc.trainer.forked import fork_plain_ranks

        ended = fork_plain_ranks(arguments.ranks)
        if ended is not None:
            return ended
    from verl_hpc.runtime.session import session

    with session(
        collective_timeout_s=_TIMEOUT_S,
        late_after_s=_LATE_AFTER_S,
        device="auto" if arguments.ranks is None else "cpu",
        bootstrap=arguments.bootstrap,
    ) as here:
        _measure(here, config, arguments)
    here.job.leave()
    return 0


def _config(arguments: argparse.Namespace) -> RunConfig | None:
    from verl_hpc.config.load import load_config

    if arguments.repeats < 1:
        raise ConfigError(f"--repeats {arguments.repeats}: choose 1 or more")
    if arguments.overrides and arguments.config is None:
        raise ConfigError("settings are those of --config, which is not given")
    return load_config(arguments.config, arguments.overrides) if arguments.config else None


def _measure(here: Session, config: RunConfig | None, arguments: argparse.Namespace) -> None:
    from verl_hpc.runtime.preflight.speeds import measure

    world = here.world
    groups = here.control.together(lambda: _groups(config, world))
    with_mpi = arguments.bootstrap == "mpi"
    sizes = [int(size * _MIB) for size in arguments.sizes]
    if world.rank == 0 and not arguments.json:
        print(_heading(here, with_mpi), flush=True)
    for speed in measure(here, groups, sizes, with_mpi, arguments.repeats):
        if world.rank == 0:
            print(json.dumps(speed.to_data()) if arguments.json else _row(speed), flush=True)


def _groups(config: RunConfig | None, world: World) -> dict[str, Groups]:
    """Return groups of ranks by name. Raises: ConfigError: there is only one rank."""
    if world.size < 2:
        raise ConfigError("one rank has nobody to talk to; start several, or give --ranks")
    return _of_machine(world) if config is None else _of_run(config, world)


def _of_machine(world: World) -> dict[str, Groups]:
    nodes = [
        tuple(r for r, node in enumerate(world.node_of) if node == number)
        for number in range(world.num_nodes)
    ]
    groups: dict[str, Groups] = {"all ranks": [tuple(range(world.size))]}
    if world.num_nodes > 1 and len({len(ranks) for ranks in nodes}) == 1:
        groups["within a node"] = nodes
        groups["across nodes"] = list(zip(*nodes, strict=True))
    return groups


def _of_run(config: RunConfig, world: World) -> dict[str, Groups]:
    """Return the groups of a run's layouts by name, each set of groups once."""
    from verl_hpc.placement.layouts import place_roles

    layouts = place_roles(config, world.size, world.node_of.count(0))
    named: list[tuple[str, Groups]] = [("all ranks", [tuple(range(world.size))])]
    for role, layout in layouts.train.items():
        grid = layout.data_grid
        axes = {"tp": "tensor", "cp": "context", "dp": "data", "pp": "pipeline"}
        named += [(f"{role}, {text} parallel", grid.groups(axis)) for axis, text in axes.items()]
    if layouts.replicas:
        named.append(("rollout engine", layouts.replicas))
    by_name: dict[str, Groups] = {}
    for name, groups in named:
        same = {tuple(map(tuple, other)) for other in by_name.values()}
        if len(groups[0]) > 1 and tuple(map(tuple, groups)) not in same:
            by_name[name] = groups
    return by_name


def _heading(here: Session, with_mpi: bool) -> str:
    plane = "Gloo" if here.world.device == "cpu" else "NCCL"
    mpi = f", {here.job.library} in host memory" if with_mpi else ""
    titles = f"{'groups':<34} {'operation':<15} {'MiB':>9} {plane + ' GB/s':>11} {'MPI GB/s':>11}"
    return f"{here.world.size} ranks on {here.world.num_nodes} node(s), {plane}{mpi}\n{titles}"


def _row(speed: Speed) -> str:
    of = f"{speed.groups}: {speed.num_groups} x {speed.num_ranks}"
    mpi = "-" if speed.mpi_gb_s is None else f"{speed.mpi_gb_s:.3f}"
    size = f"{speed.num_bytes / _MIB:.4g}"
    return f"{of:<34} {speed.operation:<15} {size:>9} {speed.gb_s:>11.3f} {mpi:>11}"
