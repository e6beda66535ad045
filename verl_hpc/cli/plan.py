"""Will a run fit, how long does it take, how many GPUs does it need, and which layout is best.

Arithmetic on a configuration, a site profile and the models' config.json: no GPU, no torch, no
allocation. Without --nodes, on the fewest nodes on which the run fits. With --search, its
placement, layouts and rollout.tensor_parallel are chosen anew. `plan calibrate RUN...` fits the
time model to runs, and writes a file for --efficiency. A field of the run is set by its name, one
of the site profile by site. before its name. --budget and --until say how many steps fit into
GPU-hours and before a date, as a chain of how many jobs, with waits as the queue had them lately.

Status 0: it fits; 1: it does not, or an error.

examples:
  python -m verl_hpc plan --config configs/run/ppo_70b.yaml --nodes 16 \\
      --cluster slurm/h100_infiniband_pyxis.yaml \\
      --model-config configs/model/Llama-3.1-70B-Instruct.json
  python -m verl_hpc plan --config run.yaml --cluster slurm/my_site.yaml --max-nodes 64 --search \\
      --objective gpu-hours --write run_planned.yaml
  python -m verl_hpc plan --config run.yaml --cluster slurm/my_site.yaml --max-nodes 16 \\
      --budget 1250 --until 2027-01-31
  python -m verl_hpc plan calibrate runs/n1 runs/n2 --out efficiency.yaml
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verl_hpc.cli.output import write_file
from verl_hpc.errors import ConfigError

if TYPE_CHECKING:
    from verl_hpc.config.model import ParallelConfig
    from verl_hpc.config.run import RunConfig
    from verl_hpc.planner.plan import Plan
    from verl_hpc.planner.search.sizes import Objective

CALIBRATE = "calibrate"
_OBJECTIVES: dict[str, Objective] = {"time": "seconds", "gpu-hours": "gpu_hours"}
_OF_PLANS = (
    "config", "nodes", "max_nodes", "search", "explain", "objective", "json", "write",
    "prompt", "response", "measured", "budget", "until", "time", "like",
)  # fmt: skip

_OF_RECORD = (
    "config", "cluster", "nodes", "max_nodes", "objective", "model_config", "prompt", "response",
    "efficiency", "measured",
)  # fmt: skip
"""Options on which the result of a search depends."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--config", metavar="YAML", help="the run's configuration")
    add("--cluster", metavar="YAML", help="the site profile, see slurm/")
    add("--nodes", type=int, metavar="N", help="nodes, one rank per GPU on each")
    add("--max-nodes", type=int, metavar="N", help="the best number of nodes up to N")
    add("--search", action="store_true", help="choose placement and layouts, too")
    add("--objective", choices=tuple(_OBJECTIVES), help="what is best (default: time)")
    add("--explain", action="store_true", help="every term and assumption; why others lost")
    add(
        "--model-config",
        action="append",
        metavar="[ROLE=]FILE",
        help="config.json of the model, or of a role's, in place of what is at its path",
    )
    add("--prompt", type=float, metavar="TOKENS", help="mean prompt (default: half of the longest)")
    add("--response", type=float, metavar="TOKENS", help="mean response (default: the same)")
    add("--efficiency", metavar="FILE", help="what `plan calibrate` has written")
    add("--measured", metavar="FILE", help="what `doctor --nodes` has measured of the nodes")
    add("--json", action="store_true", help="print one JSON object")
    add("--write", type=Path, metavar="FILE", help="write a configuration of what --search found")
    fits = parser.add_argument_group("what fits into an allocation")
    fits.add_argument("--budget", type=float, metavar="HOURS", help="GPU-hours that are left")
    fits.add_argument("--until", metavar="DATE", help="last day, such as 2027-01-31")
    fits.add_argument("--time", metavar="LIMIT", help="of each job of the chain (default 24:00:00)")
    fits.add_argument("--like", metavar="RUN", help="seconds and nodes as this run had them")
    of_it = parser.add_argument_group("of plan calibrate")
    of_it.add_argument("--out", type=Path, metavar="FILE", help="where the factors go")
    of_it.add_argument("--skip", type=int, metavar="N", help="first steps not counted (default 3)")
    of_it.add_argument(
        "--by", choices=("clock", "cpu"), help="seconds of the clock (default), or of the CPUs"
    )
    add("words", nargs="*", metavar="field=value", help="settings over the files'; or calibrate")


def run(arguments: argparse.Namespace) -> int:
    from verl_hpc.cli.plan_text import as_text
    from verl_hpc.runs.find import find_run

    if arguments.words[:1] == [CALIBRATE]:
        from verl_hpc.cli.plan_calibrate import run_calibrate

        _refuse(arguments, _OF_PLANS, f"plan {CALIBRATE} takes no such option; leave it out")
        return run_calibrate(arguments)
    if arguments.like is not None:
        run = find_run(arguments.like)
        own = [run / "config.yaml", run / "job" / "config.yaml"]
        arguments.like = run
        arguments.config = arguments.config or str(next(filter(Path.is_file, own), own[0]))
        arguments.cluster = arguments.cluster or str(run / "job" / "site.yaml")
    _check(arguments)
    if arguments.budget is not None or arguments.until is not None:
        from verl_hpc.cli.plan_budget import run_budget

        _refuse(
            arguments,
            ("write", "explain", "objective"),
            "it shows one plan, and --budget and --until compare several; leave it out",
        )
        return run_budget(arguments)
    _refuse(arguments, ("time", "like"), "it belongs to --budget and --until: add one of them")
    plan = make(arguments)
    _write(arguments, plan)
    text = (
        json.dumps(plan.as_json(), indent=1) if arguments.json else as_text(plan, arguments.explain)
    )
    print(text)
    return 0 if plan.fits else 1


def _refuse(arguments: argparse.Namespace, names: tuple[str, ...], why: str) -> None:
    for name in names:
        if getattr(arguments, name) not in (None, False):
            raise ConfigError(f"{_option(name)}: {why}")


def _option(name: str) -> str:
    """Return an option as it is written on the command line."""
    return f"--{name.replace('_', '-')}"


def _check(arguments: argparse.Namespace) -> None:
    """Raises: ConfigError: options that are missing, or do not go together."""

    from verl_hpc.cluster.job import MOST_NODES

    _check_words(arguments.words)
    only = f"only plan {CALIBRATE} RUN... takes it; leave it out, or name runs to calibrate from"
    _refuse(arguments, ("out", "skip", "by"), only)
    for name in ("config", "cluster"):
        if getattr(arguments, name) is None:
            raise ConfigError(f"--{name} is needed: python -m verl_hpc plan --help has examples")
    if arguments.nodes is not None and arguments.max_nodes is not None:
        raise ConfigError(
            "--nodes and --max-nodes are both given: --nodes N plans for N nodes, --max-nodes N "
            "for the best number up to N; leave one of them out"
        )
    for name in ("nodes", "max_nodes", "prompt", "response"):
        value = getattr(arguments, name)
        if value is not None and not 1 <= value < inf:
            raise ConfigError(f"{_option(name)} {value:g}: a number from 1 up is needed")
    for name in ("nodes", "max_nodes"):
        nodes = getattr(arguments, name) or 0
        if nodes > MOST_NODES:
            raise ConfigError(f"{_option(name)} {nodes}: from 1 to {MOST_NODES}, as Slurm takes")
    if arguments.search and arguments.nodes is None and arguments.max_nodes is None:
        raise ConfigError("--search needs to know how many nodes there are: --nodes or --max-nodes")
    if arguments.write is not None and not arguments.search:
        raise ConfigError("--write writes what --search has found: add --search")
    target, config = arguments.write, Path(arguments.config)
    if target is not None and target.exists() and config.exists() and target.samefile(config):
        raise ConfigError(f"--write {target}: that is --config itself; choose another file")
    if arguments.objective is not None and arguments.max_nodes is None:
        raise ConfigError(
            f"--objective {arguments.objective} chooses among numbers of nodes: give --max-nodes"
        )


def _check_words(words: Sequence[str]) -> None:
    from verl_hpc.config.explain import near_or_all

    for word in words:
        if "=" not in word:
            near = near_or_all(word, [CALIBRATE], "the only word without = is")
            raise ConfigError(f"plan {word}: a setting is field=value; {near}")


def make(arguments: argparse.Namespace) -> Plan:
    """Return the plan that the options ask for."""

    from verl_hpc.cli.plan_inputs import planner_of
    from verl_hpc.planner.search.sizes import node_counts

    planner = planner_of(arguments)
    objective = _OBJECTIVES[arguments.objective or "time"]
    nodes, most = arguments.nodes, arguments.max_nodes
    if arguments.search:
        counts = [nodes] if most is None else node_counts(most)
        return planner.search(counts, objective, "--nodes" if most is None else "--max-nodes")
    if most is not None:
        return planner.on_best(most, objective)
    return planner.on_fewest() if nodes is None else planner.on(nodes)


def _write(arguments: argparse.Namespace, plan: Plan) -> None:
    """Write the file that --write asks for."""

    from verl_hpc.cluster.profile import PREFIX

    if arguments.write is not None:
        words = [word for word in arguments.words if not word.startswith(PREFIX)]
        made_by = _made_by(arguments)
        _write_found(Path(arguments.config), arguments.write, plan, made_by, words)
        print(f"wrote {arguments.write}", file=sys.stderr)


def _made_by(arguments: argparse.Namespace) -> str:
    """Return the command, for the record."""
    words = ["python -m verl_hpc plan --search"]
    for name in _OF_RECORD:
        value = getattr(arguments, name)
        values = value if isinstance(value, list) else [] if value is None else [value]
        words += [f"{_option(name)} {shlex.quote(f'{one}')}" for one in values]
    return " ".join([*words, *map(shlex.quote, arguments.words)])


def _write_found(
    config: Path, target: Path, plan: Plan, made_by: str, words: Sequence[str]
) -> None:
    """Write the result of a search as a configuration that includes the original one.

    Args:
        config: the original file.
        target: the file to write.
        plan: a plan with `found`.
        made_by: the command, for the record.
        words: overrides of the command line.

    Raises:
        ConfigError: the file cannot be written, or cannot express what was found.
    """

    from verl_hpc.config.load import load_config
    from verl_hpc.config.plain_yaml import write_yaml
    from verl_hpc.config.tree import INCLUDE, parse_override, put

    base = load_config(config, words)
    tree: dict[str, Any] = {INCLUDE: [os.path.relpath(config.resolve(), target.resolve().parent)]}
    for word in words:
        put(tree, *parse_override(word))
    assert plan.found is not None
    for name, value in plan.found.overrides.items():
        put(tree, name, _whole(base, name, value))
    text = plan.record(made_by).header() + write_yaml(tree)
    write_file("--write", target, text)
    if load_config(target).model_dump() != plan.config.model_dump():
        target.unlink()
        raise ConfigError(
            f"--write {target}: {config} has labels in its placement that a file which includes "
            "it cannot take away; remove placement from it"
        )


def _whole(base: RunConfig, name: str, value: object) -> object:
    """Return a section, with defaults for all that the included file sets in it."""

    from verl_hpc.config.model import ParallelConfig

    *sections, last = name.split(".")
    if last != "parallel" or not isinstance(value, Mapping):
        return value
    parent = base.roles.get(sections[-1]) if sections else base
    before: ParallelConfig | None = getattr(parent, "parallel", None)
    known = () if before is None else sorted(before.model_fields_set)
    return {field: ParallelConfig.model_fields[field].default for field in known} | dict(value)
