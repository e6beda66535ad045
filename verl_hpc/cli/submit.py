"""Submit a training run to Slurm, or show what would be submitted.

A field of the run is set by its name, one of the site profile by site. before its name. A dry run
needs no Slurm and writes nothing. --script-only prints a script that sbatch runs by hand from a
checkout, as those in launch/. A run that cannot fit the memory of its nodes is refused, where the
site profile says which GPUs they have and the models' config.json is seen from here.

examples:
  python -m verl_hpc.submit --config configs/run/ppo_70b.yaml --cluster slurm/my_site.yaml \\
      --nodes 16 --time 24:00:00 --account A --dry-run
  python -m verl_hpc.submit --config configs/run/examples/ppo_lab.yaml --cluster slurm/lab.yaml \\
      --nodes 2 --time 10 steps=2 site.container.kind=bare
  python -m verl_hpc.submit --config configs/run/grpo_8b.yaml --cluster slurm/my_site.yaml \\
      --nodes 2 --time 8:00:00 --sweep optimizer.lr=1e-6,3e-6 --sweep seed=0,1 --at-once 2
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verl_hpc.errors import ConfigError

if TYPE_CHECKING:
    from verl_hpc.cluster.job import Job
    from verl_hpc.cluster.request import Request

_SHORTHANDS = {
    "account": "account",
    "partition": "partition",
    "qos": "qos",
    "resume_by": "restarts.by",
    "max_restarts": "restarts.most",
}
"""Fields of the site profile by the options of the command line that set them."""

_SWITCHES = ("auto", "force", "script_only")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--config", required=True, metavar="YAML", help="the run's configuration")
    add("--cluster", required=True, metavar="YAML", help="the site profile, see slurm/")
    add("--nodes", required=True, type=int, metavar="N", help="nodes, one rank per GPU on each")
    add("--time", required=True, metavar="T", help="time limit, such as 24:00:00")
    add_job_options(parser)
    add("--resume-by", choices=("requeue", "chain"), help="how a run resumes after a time limit")
    add("--max-restarts", type=int, metavar="N", help="maximum number of automatic restarts")
    add(
        "--sweep",
        action="append",
        default=[],
        metavar="field=v,w",
        help="a run for each value, in one array; repeat it for all combinations",
    )
    add("--at-once", type=int, metavar="N", help="runs of a sweep that are under way at a time")
    add("--auto", action="store_true", help="choose placement and layouts as plan --search does")
    add("--force", action="store_true", help="submit what does not fit by the memory ledger")
    add("--dry-run", action="store_true", help="print the job with every value's origin")
    add("--script-only", action="store_true", help="print a script for sbatch, and nothing else")
    add("overrides", nargs="*", metavar="field=value", help="settings over the files'")


def run(arguments: argparse.Namespace) -> int:
    from verl_hpc.cluster.checks import check_own_code, check_packages, check_request
    from verl_hpc.cluster.excluded import exclude_list, excluded_nodes
    from verl_hpc.cluster.explain import explain
    from verl_hpc.cluster.fit import memory_verdict, with_best_layout
    from verl_hpc.cluster.job import plan_job
    from verl_hpc.cluster.profile import PREFIX, load_for_job
    from verl_hpc.cluster.request import Request
    from verl_hpc.cluster.script import render_script
    from verl_hpc.cluster.shell import check_words
    from verl_hpc.config.load import load_config
    from verl_hpc.sources.local import with_local_models

    check_words(_given(arguments))
    flags: dict[str, Any] = {
        field: getattr(arguments, name)
        for name, field in _SHORTHANDS.items()
        if getattr(arguments, name) is not None
    }
    ours = [word for word in arguments.overrides if word.startswith(PREFIX)]
    words = tuple(word for word in arguments.overrides if not word.startswith(PREFIX))
    # A script for everybody must not depend on one user's variables.
    environ = {} if arguments.script_only else os.environ
    profile = load_for_job(arguments.cluster, ours, flags, arguments.directive, environ)
    request = Request(
        config=with_local_models(load_config(arguments.config, words)),
        config_path=arguments.config,
        overrides=words,
        profile=profile,
        nodes=arguments.nodes,
        time=arguments.time,
        directory=Path.cwd(),
        standalone=arguments.script_only,
        excluded=() if arguments.script_only else excluded_nodes(profile.site),
        exclude_list=str(exclude_list(profile.site)),
    )
    if arguments.sweep:
        return _sweep(arguments, request)
    if arguments.at_once is not None:
        raise ConfigError("--at-once belongs to --sweep, which is not given")
    job = plan_job(request)
    made_by = _made_by(arguments)
    if arguments.auto:
        if arguments.script_only:
            raise ConfigError(
                "--auto with --script-only: the script names --config, which has no layout that "
                "was found; write one with `plan --search --write FILE`, and submit that"
            )
        request = with_best_layout(job, " ".join(made_by))
        job = plan_job(request)
    check_request(job)
    _note("" if arguments.script_only else check_packages(job))
    verdict = memory_verdict(job, arguments.force)
    script = render_script(job, made_by)
    if arguments.script_only:
        sys.stdout.write(script)
        print(verdict, file=sys.stderr)
        return 0
    report = f"{explain(job, made_by)}\n== memory\n{verdict}\n"
    if arguments.dry_run:
        _note_unused()
        check_own_code(job)
        sys.stdout.write(report)
        return 0
    return _submit(job, script, report, verdict)


def _given(arguments: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Yield options and their words, all of which the script repeats in its header."""
    for name, value in vars(arguments).items():
        option = "override" if name == "overrides" else f"--{name.replace('_', '-')}"
        yield from ((option, str(word)) for word in (value if isinstance(value, list) else [value]))


def _sweep(arguments: argparse.Namespace, base: Request) -> int:
    """Submit an array of runs, or show what would be submitted."""

    from verl_hpc.cluster.checks import check_own_code, check_packages, check_request
    from verl_hpc.cluster.explain import explain
    from verl_hpc.cluster.fit import memory_verdict
    from verl_hpc.cluster.script import render_script
    from verl_hpc.cluster.submission import submit_sweep
    from verl_hpc.cluster.sweep import plan_sweep, render_array, table

    if arguments.auto:
        raise ConfigError(
            "--auto with --sweep: each run would have a layout of its own; write one with "
            "`plan --search --write FILE`, and sweep that"
        )
    # Every run is checked before any is submitted.
    sweep = plan_sweep(base, arguments.sweep, arguments.at_once)
    verdicts = []
    for run in sweep.runs:
        check_request(run.job)
        verdicts.append(memory_verdict(run.job, arguments.force))
    for note in dict.fromkeys(check_packages(run.job) for run in sweep.runs):
        _note(note)
    words = _made_by(arguments)
    words += [f"--sweep {shlex.quote(word)}" for word in arguments.sweep]
    words += [f"--at-once {sweep.at_once}"] if sweep.at_once else []
    array = render_array(sweep, words)
    reports = [
        f"{explain(run.job, ())}\n== memory\n{verdict}\n"
        for run, verdict in zip(sweep.runs, verdicts, strict=True)
    ]
    _note_unused()
    if arguments.dry_run:
        for run in sweep.runs:
            check_own_code(run.job)
        parts = [("array", array), ("runs", table(sweep) + "\n"), ("run 0", reports[0])]
        sys.stdout.write("\n".join(f"== {title}\n{text}" for title, text in parts))
        return 0
    job = submit_sweep(sweep, array, [render_script(run.job) for run in sweep.runs], reports)
    print(f"job {job}: a sweep of {len(sweep.runs)} runs")
    print("\n".join(dict.fromkeys(verdicts)))
    print(table(sweep))
    print(f"run directories: {sweep.directory}/0 to {len(sweep.runs) - 1}")
    return 0


def _made_by(arguments: argparse.Namespace) -> list[str]:
    """Return the command that reproduces the script, with its options in a fixed order."""
    words = ["python -m verl_hpc.submit"]
    words += [
        f"--{name.replace('_', '-')} {shlex.quote(str(getattr(arguments, name)))}"
        for name in ("config", "cluster", "nodes", "time", *_SHORTHANDS)
        if getattr(arguments, name) is not None
    ]
    words += [f"--directive={shlex.quote(word)}" for word in arguments.directive]
    words += [f"--{name.replace('_', '-')}" for name in _SWITCHES if getattr(arguments, name)]
    return [*words, *map(shlex.quote, arguments.overrides)]


def _submit(job: Job, script: str, report: str, verdict: str) -> int:
    from verl_hpc.cluster.submission import submit
    from verl_hpc.slurm.tools import scancel

    _note_unused()
    ids, request = submit(job, script, report), job.request
    attempts = request.run_directory / "job" / "attempts"
    print(f"job {ids[0]}: {job.title}")
    print(verdict)
    if len(ids) > 1:
        ends = scancel(request.profile.site.cluster, *ids)
        print(f"chain: {' '.join(ids[1:])}; `{ends}` ends all of it")
    if request.excluded:
        print(f"left out: {', '.join(request.excluded)} ({request.exclude_list})")
    print(f"run directory: {request.run_directory}")
    print(f"logs: {attempts}/latest/")
    return 0


def _note(text: str) -> None:
    if text:
        print(f"note: {text}", file=sys.stderr)


def _note_unused() -> None:
    from verl_hpc.cluster.inherited import unused_options

    if unused := unused_options():
        _note(
            f"{', '.join(unused)}: this shell sets what sbatch would read, and the job does not "
            "take it over; set it in the site profile, or give it with --directive"
        )


def add_job_options(parser: argparse.ArgumentParser) -> None:
    """Add --account, --partition, --qos and --directive."""
    add = parser.add_argument
    add("--account", metavar="A", help="account to charge")
    add("--partition", metavar="P")
    add("--qos", metavar="Q")
    add(
        "--directive",
        action="append",
        default=[],
        metavar="OPTION",
        help="one more option of sbatch, such as reservation=r; repeat it for more",
    )
