"""What an account has and has used, and what runs have: hours, waiting, lost work, energy, CO2.

RUN is a run directory or the name of one below runs/; without it, all of them. Slurm's accounts are
asked once for all runs; without accounts, runs' own records count. The page is Markdown; with
--report it goes into a file, for a centre's final report.

examples:
  python -m verl_hpc budget
  python -m verl_hpc budget ppo_70b --account proj123 --since 2026-10-01
  python -m verl_hpc budget --cluster slurm/my_site.yaml --report use_of_proj123.md
"""

from __future__ import annotations

import argparse
import getpass
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from verl_hpc.budget.days import DAY_S, parse_day
from verl_hpc.budget.page import Account, Report, render_page
from verl_hpc.budget.use import RunRecords, added, use_of
from verl_hpc.cli.output import write_file
from verl_hpc.cluster.profile import load_profile
from verl_hpc.cluster.site import Site
from verl_hpc.config.explain import explain
from verl_hpc.errors import ClusterError, ConfigError, DataError
from verl_hpc.metrics.log import Row, read_metrics, seconds_after
from verl_hpc.metrics.series import operator_joules, operator_seconds
from verl_hpc.runs.find import RUNS, find_run, named_runs
from verl_hpc.runs.heartbeat import FAILED
from verl_hpc.runs.jobs import by_cluster, read_jobs
from verl_hpc.runs.lives import RunLife, read_lives
from verl_hpc.runs.status import look, saved_steps
from verl_hpc.section import NonNegativeFinite, Section
from verl_hpc.slurm.accounting import (
    Life,
    account_limits,
    account_use,
    accounts_of,
    default_account,
    energy_meter,
    job_lives,
    shortly,
)
from verl_hpc.slurm.programs import run_program
from verl_hpc.slurm.tools import Runner

_COMMAND_TIMEOUT_S = 60.0
_LONGEST_WAIT_S = 30 * DAY_S
"""Longest assumed wait of a job that is not recorded because a user submitted a script."""
_DAY = r"^\d{4}-\d{2}-\d{2}$"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("runs", nargs="*", metavar="RUN", help="run directories or names (default: all in runs/)")
    add("--account", metavar="A", help="default: the site profile's, else yours in Slurm")
    add("--cluster", metavar="YAML", help="site profile (default: that of the first run)")
    add("--since", metavar="DATE", help="count the account's use from there (default: 1 January)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--report", type=Path, metavar="FILE", help="write the page there")
    form.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    now = time.time()
    since = None if arguments.since is None else parse_day(arguments.since, "--since")
    if since is not None and since > now:
        raise ConfigError(f"--since {arguments.since}: that day has not begun; give an earlier one")
    runs = {word: find_run(word) for word in arguments.runs} or named_runs(RUNS)
    report = gather(runs, now, arguments.account, arguments.cluster, since)
    if arguments.report is not None:
        write_file("--report", arguments.report, render_page(report))
        print(arguments.report)
        return 0
    print(json.dumps(report.as_json(), indent=1) if arguments.json else render_page(report))
    return 0


class Told(Section):
    """Output of the site's own command."""

    granted_hours: NonNegativeFinite | None = None
    used_hours: NonNegativeFinite | None = None
    unit: str = "GPU-hours"
    start: Annotated[str, Field(pattern=_DAY)] | None = None
    end: Annotated[str, Field(pattern=_DAY)] | None = None


@dataclass
class _Ask:
    """Asks Slurm's accounts; any question may stay without an answer."""

    of: Callable[[str | None], Runner]
    """Function that returns the runner for a cluster's accounts."""
    problems: list[str]

    def lives(self, cluster: str | None, job_ids: Iterable[str], since: float) -> list[Life]:
        """Return every start of these jobs; empty if the cluster's accounts do not answer."""
        try:
            return job_lives(job_ids, since, self.of(cluster))
        except ClusterError as error:
            self.problems.append(
                f"Slurm's accounts do not tell ({shortly(error)}): hours are by the runs' own "
                "records, and waiting and energy are not known."
            )
            return []

    def meter(self, cluster: str | None) -> str:
        try:
            return energy_meter(self.of(cluster))
        except ClusterError:
            return ""


def gather(
    runs: Mapping[str, Path],
    now: float,
    account: str | None = None,
    cluster: str | None = None,
    since: float | None = None,
    run: Runner | None = None,
) -> Report:
    """Ask the site's accounts and read the records of runs.

    Args:
        runs: run directories by name.
        now: seconds since the epoch.
        account: None takes the site profile's, else the user's in Slurm.
        cluster: site profile; None takes the first run's that has one.
        since: time from which the account's use counts; None takes 1 January.
        run: runs Slurm's programs; None asks the cluster that each job was submitted to, and the
            site profile's for the account's limits.

    Raises:
        ConfigError: a profile, the list of a run's jobs, or what the site's command prints is
            wrong.
    """
    ask = _Ask(lambda cluster: run or accounts_of(cluster), [])
    site = _site(runs, cluster)
    records = [records_of(name, path, now) for name, path in runs.items()]
    used = [
        use_of(record, lives, now)
        for record, lives in zip(records, _lives(ask, runs, records), strict=True)
    ]
    granted = _account(ask, site, account, since, now)
    meter = (
        ask.meter(None if site is None else site.cluster) if any(one.joules for one in used) else ""
    )
    co2 = None if site is None else site.budget.co2_g_per_kwh
    return Report(now, granted, used, co2, meter, ask.problems)


def _lives(ask: _Ask, runs: Mapping[str, Path], records: Sequence[RunRecords]) -> list[list[Life]]:
    """Return every start of each run's jobs, asking each cluster once."""
    places = list(zip(runs.values(), records, strict=True))
    own = [by_cluster(path / "job", record.job_ids) for path, record in places]
    firsts = [_earliest(path, record.lives) for path, record in places]
    asked: dict[str | None, list[str]] = {}
    for cluster, job_ids in (pair for jobs in own for pair in jobs.items()):
        asked.setdefault(cluster, []).extend(job_ids)
    since = min((first for jobs, first in zip(own, firsts, strict=True) if jobs), default=0.0)
    told = {cluster: ask.lives(cluster, job_ids, since) for cluster, job_ids in asked.items()}
    return [
        [
            life
            for cluster, job_ids in jobs.items()
            for life in told[cluster]
            if life.job_id in job_ids and life.submitted >= first
        ]
        for jobs, first in zip(own, firsts, strict=True)
    ]


def records_of(name: str, path: Path, now: float) -> RunRecords:
    """Return the records in a run's own files. Raises: ConfigError: its list of jobs cannot be
    read."""
    lives = tuple(read_lives(path))
    submitted = [str(job["job_id"]) for job in read_jobs(path / "job")]
    started = [life.job_id for life in lives if life.job_id is not None]
    rows = _rows(path)
    job_ids = tuple(dict.fromkeys([*submitted, *started]))
    operators, measured = (added(map(by, rows)) for by in (operator_seconds, operator_joules))
    unsaved_s = _unsaved_s(path, lives, rows, now)
    return RunRecords(name, job_ids, lives, operators, measured, unsaved_s)


def _unsaved_s(
    path: Path, lives: Sequence[RunLife], rows: Sequence[Row], now: float
) -> float | None:
    if look(path, now, None).is_alive:
        return None
    if lives and lives[-1].outcome not in (None, FAILED):  # it saved, whatever is left of that
        return 0.0
    return seconds_after(rows, max(saved_steps(path), default=0))


def _rows(path: Path) -> list[Row]:
    try:
        return read_metrics(path)
    except DataError:
        return []


def _earliest(path: Path, lives: Iterable[RunLife]) -> float:
    """Return a time just before a run's first job was submitted, in seconds since the epoch; 0 if
    unknown. A margin allows for a submitter's clock that was ahead."""
    jobs = read_jobs(path / "job")
    told = {str(job["job_id"]): job["submitted"] for job in jobs if job.get("submitted")}
    times = [datetime.fromisoformat(text).timestamp() for text in told.values()]
    times += [life.began - _LONGEST_WAIT_S for life in lives if life.job_id not in told]
    return max(min(times, default=0.0) - 60, 0.0)


def _site(runs: Mapping[str, Path], cluster: str | None) -> Site | None:
    own = [path / "job" / "site.yaml" for path in runs.values()]
    file = cluster or next((path for path in own if path.is_file()), None)
    return None if file is None else load_profile(file).site


def _account(
    ask: _Ask, site: Site | None, name: str | None, since: float | None, now: float
) -> Account | None:
    name = name or (site.account if site is not None else None)
    if site is not None and site.budget.command:
        return _told(site.budget.command, name or site.name)
    year = datetime.fromtimestamp(now, UTC).astimezone().year
    since = parse_day(f"{year}-01-01", "") if since is None else since
    run = ask.of(None if site is None else site.cluster)
    try:
        name = name or default_account(getpass.getuser(), run)
        if name is None:
            return None
        limit, used = account_limits(name, run), account_use(name, since, now, run)
    except ClusterError as error:
        ask.problems.append(f"What the account has is not known ({shortly(error)}).")
        return None
    # Jobs of an account that is granted core-hours may use GPUs, and are charged for cores.
    use_tells = limit.gpu_hours is None and limit.core_hours is None
    gpus = bool(used.get("gres/gpu")) if use_tells else limit.gpu_hours is not None
    unit, granted = ("GPU-hours", limit.gpu_hours) if gpus else ("core-hours", limit.core_hours)
    spent = used.get("gres/gpu" if gpus else "cpu", 0.0)
    source = "sacctmgr (GrpTRESMins) and sreport, which lacks the last hour"
    return Account(name, unit, granted, spent, since, None, source)


def _told(command: list[str], name: str) -> Account:
    """Raises: ConfigError: the site's command fails, or prints something else."""
    setting = f"budget.command = {' '.join(command)}"
    try:
        told = Told.model_validate(json.loads(run_program(command, _COMMAND_TIMEOUT_S)))
    except ClusterError as error:
        raise ConfigError(f"{setting}: {error}") from None
    except ValidationError as error:
        raise ConfigError(f"{setting} prints:\n{explain(error, Told)}") from None
    except ValueError as error:
        raise ConfigError(f"{setting}: what it prints is no JSON ({error})") from None
    days = told.start, told.end
    start, end = (None if day is None else parse_day(day, setting) for day in days)
    hours = told.granted_hours, told.used_hours
    return Account(name, told.unit, *hours, start, end, "the site's own command")
