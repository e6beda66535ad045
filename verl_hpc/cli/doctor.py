"""Check a cluster before a run waits for it: on the login node, and on its nodes.

Without --nodes, asks Slurm and looks at files. With --nodes N, also submits a job of N nodes whose
ranks check themselves and each other; nodes that fail are kept out of later submissions for some
days, and what was measured is written for plan --measured. One line a check: ok, fails or unknown.
Exit status 1 if one fails. A field of the site profile is set by site. before its name, one of the
run by its name.

examples:
  python -m verl_hpc doctor --cluster slurm/my_site.yaml
  python -m verl_hpc doctor --cluster slurm/my_site.yaml --config configs/run/ppo_70b.yaml --json
  python -m verl_hpc doctor --cluster slurm/my_site.yaml --nodes 16 --time 15 --account A
  srun --mpi=pmi2 python -m verl_hpc doctor --inside --cluster slurm/my_site.yaml
  python -m verl_hpc doctor --excluded
  python -m verl_hpc doctor --forget n017
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verl_hpc.cli.submit import add_job_options
from verl_hpc.errors import ConfigError

if TYPE_CHECKING:
    from verl_hpc.cluster.profile import Profile
    from verl_hpc.cluster.request import Request
    from verl_hpc.runs.verdict import Verdict

_STAND_IN = {
    "name": "doctor",
    "recipe": "sft",
    "steps": 1,
    "model": {"path": "model"},
    "data": {"train": {"kind": "files", "paths": ["data.parquet"]}},
}
"""A run for when none is given: the doctor's job needs its directory, and nothing else."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--cluster", metavar="YAML", help="the site profile, see slurm/")
    add("--config", metavar="YAML", help="a run, whose model, data and layout are looked at, too")
    add("--nodes", type=int, metavar="N", help="submit the checks that need nodes, and wait")
    add("--time", default="15", metavar="T", help="time limit of that job (default: 15 minutes)")
    add_job_options(parser)
    add("--json", action="store_true", help="one JSON object")
    add("--result", type=Path, metavar="DIR", help="what an earlier job found, in its directory")
    add("--excluded", action="store_true", help="list the nodes that submissions leave out")
    add("--forget", metavar="NODE", help="take a node off that list")
    add("--inside", action="store_true", help="this is a rank of a job: check nodes")
    add("--out", type=Path, metavar="DIR", help="with --inside: where runs write (default: .)")
    add(
        "--scratch", type=Path, metavar="DIR", help="with --inside: for node_scratch of the profile"
    )
    add("overrides", nargs="*", metavar="field=value", help="settings over the files'")


def run(arguments: argparse.Namespace) -> int:
    from verl_hpc.doctor.job import is_inside_step

    if arguments.excluded or arguments.forget is not None:
        return _excluded(arguments)
    if arguments.result is not None:
        return _result(arguments)
    if arguments.inside or (arguments.nodes is not None and is_inside_step()):
        from verl_hpc.cli.doctor_inside import inside

        return inside(arguments, _profile(arguments))
    return _login(arguments)


def _login(arguments: argparse.Namespace) -> int:
    from verl_hpc.doctor.login import check_login
    from verl_hpc.runs.verdict import any_fails
    from verl_hpc.slurm.tools import on_cluster

    profile = _profile(arguments)
    if profile is None and (arguments.config or arguments.nodes is not None):
        needs = "--config" if arguments.config else "--nodes"
        raise ConfigError(f"{needs} needs --cluster: the site profile, see slurm/")
    request = None if profile is None else _request(arguments, profile)
    checks = check_login(
        request,
        run=on_cluster(None if profile is None else profile.site.cluster),
        has_config=arguments.config is not None,
        has_nodes=arguments.nodes is not None,
    )
    verdicts = _shown(checks, arguments.json)
    if request is None or arguments.nodes is None:
        return _end(verdicts, arguments.json)
    if any_fails(verdicts):
        _say("no job is submitted before these are right")
        return _end(verdicts, arguments.json)
    return _on_nodes(request, verdicts, arguments.json)


def _on_nodes(request: Request, verdicts: list[Verdict], as_json: bool) -> int:
    from verl_hpc.doctor.job import result_of, submit_checks, wait_for_result
    from verl_hpc.slurm.tools import on_cluster

    job = submit_checks(request)
    later = f"python -m verl_hpc doctor --result {request.run_directory}"
    _say(f"job {job}: checks on {request.nodes} nodes; waiting for it")
    try:
        checks = wait_for_result(
            request.run_directory, job, on_cluster(request.profile.site.cluster)
        )
    except KeyboardInterrupt:
        _say(f"not waiting any longer; when job {job} is over: {later}")
        return 1
    verdicts += _shown(checks, as_json)
    return _end(verdicts, as_json, request.profile, result_of(request.run_directory, job))


def _result(arguments: argparse.Namespace) -> int:
    from verl_hpc.doctor.job import newest_result, read_result

    path, profile = newest_result(arguments.result)
    return _end(_shown(read_result(path), arguments.json), arguments.json, profile, path)


def _excluded(arguments: argparse.Namespace) -> int:
    from verl_hpc.cluster.excluded import exclude_list, forget, read_excluded

    profile = _profile(arguments)
    path = exclude_list(None if profile is None else profile.site)
    if arguments.forget is not None:
        forget(path, arguments.forget)
    nodes = read_excluded(path)
    if arguments.json:
        print(json.dumps({"path": str(path), "nodes": [asdict(node) for node in nodes]}, indent=1))
        return 0
    print(f"{path}: {len(nodes) or 'no'} node{'' if len(nodes) == 1 else 's'} left out")
    for node in nodes:
        print(f"  {node.node} of {node.site} until {node.until}: {node.reason}")
    return 0


def _profile(arguments: argparse.Namespace) -> Profile | None:
    from verl_hpc.cluster.profile import PREFIX, load_for_job

    ours = [word for word in arguments.overrides if word.startswith(PREFIX)]
    flags = {
        name: getattr(arguments, name)
        for name in ("account", "partition", "qos")
        if getattr(arguments, name) is not None
    }
    if arguments.cluster is None:
        if ours or flags or arguments.directive:
            named = ours[0] if ours else f"--{next(iter(flags), 'directive')}"
            raise ConfigError(f"{named} needs --cluster: the site profile, see slurm/")
        return None
    return load_for_job(arguments.cluster, ours, flags, arguments.directive)


def _request(arguments: argparse.Namespace, profile: Profile) -> Request:
    from verl_hpc.cluster.excluded import exclude_list, excluded_nodes
    from verl_hpc.cluster.profile import PREFIX
    from verl_hpc.cluster.request import Request
    from verl_hpc.config.load import load_config
    from verl_hpc.config.run import RunConfig
    from verl_hpc.doctor.job import NAME

    words = tuple(word for word in arguments.overrides if not word.startswith(PREFIX))
    if arguments.config is not None:
        config = load_config(arguments.config, words)
    elif [word for word in words if not word.startswith("directory=")]:
        raise ConfigError(f"override {words[0]!r} is one of a run: give --config, too")
    else:
        directory = [word.partition("=")[2] for word in words]
        tree = _STAND_IN | ({"directory": directory[-1]} if directory else {})
        config = RunConfig.model_validate(tree)
    return Request(
        config=config.model_copy(update={"name": NAME}),
        config_path=arguments.config or "",
        overrides=words,
        profile=profile,
        nodes=1 if arguments.nodes is None else arguments.nodes,
        time=arguments.time,
        directory=Path.cwd(),
        program="doctor",
        excluded=excluded_nodes(profile.site),
        exclude_list=str(exclude_list(profile.site)),
    )


def _shown(verdicts: Iterable[Verdict], as_json: bool) -> list[Verdict]:
    """Print each verdict as soon as it is there, as some questions take Slurm a while."""
    shown = []
    for verdict in verdicts:
        shown.append(verdict)
        if not as_json:
            print(verdict, flush=True)
    return shown


def _end(
    verdicts: Sequence[Verdict],
    as_json: bool,
    profile: Profile | None = None,
    result: Path | None = None,
) -> int:
    """Print the end, and return the exit status. With a profile, failed nodes go on its list; with
    a job's result, the place of its measurements is printed."""

    from verl_hpc.doctor.job import keep_out, measured_beside
    from verl_hpc.runs.verdict import any_fails, failing_nodes, to_data

    added = [] if profile is None else keep_out(profile, list(verdicts))
    for node in added:
        _say(f"{node.node} is left out of submissions until {node.until}")
    measured = None if result is None else measured_beside(result)
    if measured is not None:
        _say(f"for plan: --measured {measured}")
    failed = any_fails(verdicts)
    if as_json:
        nodes = [{"node": node, "reason": why} for node, why in failing_nodes(verdicts)]
        tree: dict[str, Any] = {"ok": not failed, "verdicts": to_data(verdicts)}
        tree |= {"failing_nodes": nodes, "measured": None if measured is None else str(measured)}
        print(json.dumps(tree, indent=1))
    return 1 if failed else 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
