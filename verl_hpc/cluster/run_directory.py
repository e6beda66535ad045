"""What a submission leaves in the run directory, below job/: enough to know, and to do it again.

job/config.yaml      the resolved configuration, which the ranks read; the doctor has none. Where
                     --auto has chosen its layout, its first lines say so
job/site.yaml        the resolved site profile
job/job.sbatch       the script
job/dry_run.txt      every value with its origin
job/code/verl_hpc/   a copy of this package, which the ranks run
job/source.json      its version and commit
job/submitted.jsonl  one line a job: id, time, size
job/attempts/K/      logs of the K-th start, one file a node; outcome is what rank 0 says at its end
job/slurm-ID.log     what the batch script said
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any

from verl_hpc.cluster.request import Request
from verl_hpc.cluster.site import Site
from verl_hpc.config.load import dump_config
from verl_hpc.config.plain_yaml import write_yaml
from verl_hpc.errors import ConfigError
from verl_hpc.package import FOLDER, VERSION

ENDED = "ended"
"""Marker of a chain: the run is over, and jobs that still wait have nothing to do."""


def make_directories(request: Request) -> None:
    """Make the run directory and its job/, readable by those whom the site's umask lets in.

    Raises:
        ConfigError: they cannot be made.
    """
    run, site = request.run_directory, request.profile.site
    with writing(request, run):
        make_directory(run, site)
        with site_umask(site):
            # Slurm silently drops the output of a job whose log directory is missing.
            (run / "job/attempts").mkdir(parents=True, exist_ok=True)


def make_directory(directory: Path, site: Site) -> None:
    """Make a directory for those whom the site's umask lets in; new ones above it are also open to
    those whom the login's umask lets in.

    Raises:
        OSError: it cannot be made.
    """
    with site_umask(site, or_login=True):
        directory.parent.mkdir(parents=True, exist_ok=True)
    with site_umask(site):
        directory.mkdir(exist_ok=True)


def missing(directory: Path) -> list[Path]:
    """A directory and those above it that are not there, the innermost first."""
    return list(takewhile(lambda path: not path.exists(), [directory, *directory.parents]))


def write_job(request: Request, script: str, report: str) -> Path:
    """Fill the run directory's job/.

    Returns:
        The directory job/.

    Raises:
        ConfigError: the run directory cannot be written.
    """
    make_directories(request)
    job = request.run_directory / "job"
    site = request.profile.site
    with writing(request, request.run_directory), site_umask(site):
        (job / ENDED).unlink(missing_ok=True)
        if request.program == "train":
            header = "" if request.record is None else request.record.header()
            (job / "config.yaml").write_text(header + dump_config(request.config), "utf-8")
        profile = write_yaml(site.model_dump(mode="json"))
        (job / "site.yaml").write_text(profile, encoding="utf-8")
        (job / "job.sbatch").write_text(script, encoding="utf-8")
        (job / "dry_run.txt").write_text(report, encoding="utf-8")
        if site.code == "snapshot":
            _copy_package(job / "code")
        source = json.dumps(source_state(), indent=1) + "\n"
        (job / "source.json").write_text(source, encoding="utf-8")
    return job


@contextmanager
def writing(request: Request, directory: Path) -> Iterator[None]:
    """Around what writes into the directory of a run or of a sweep.

    Raises:
        ConfigError: the body cannot write there, or cannot read what is there.
    """
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"directory = {request.config.directory}: cannot write {directory}: "
            f"{error}; choose another with directory=..."
        ) from None


@contextmanager
def site_umask(site: Site, or_login: bool = False) -> Iterator[None]:
    """Let files of the body be read by those whom the site's umask lets in.

    Args:
        or_login: also by those whom the umask of this process lets in.
    """
    mask = int(site.umask, 8)
    before = os.umask(mask)
    if or_login:
        os.umask(mask & before)
    try:
        yield
    finally:
        os.umask(before)


def source_state() -> dict[str, Any]:
    """Version of this package; commit, and whether files differ from it, if it is a checkout."""
    commit = _git("rev-parse", "HEAD")
    changed = _git("status", "--porcelain", "--", str(FOLDER))
    return {"version": VERSION, "commit": commit, "changed": bool(changed)}


def _git(*words: str) -> str | None:
    if shutil.which("git") is None:
        return None
    command = ["git", "-C", str(FOLDER), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:  # such as an environment that is too long
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _copy_package(target: Path) -> None:
    """Copy the package, with its byte code, which would be made anew by every rank; a reader sees
    the old copy or the new one, never half of it."""
    fresh, old = target.with_name("code.new"), target.with_name("code.old")
    for leftover in (fresh, old):
        shutil.rmtree(leftover, ignore_errors=True)
    for path in FOLDER.rglob("*"):
        name = path.relative_to(FOLDER)
        is_half_written = path.parent.name == "__pycache__" and path.suffix != ".pyc"
        if is_half_written or not path.is_file():
            continue
        copy = fresh / FOLDER.name / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)  # not its mode, which is that of the user's own files
        os.utime(copy, ns=(0, path.stat().st_mtime_ns))  # byte code is of a file of this time
    if target.exists():
        target.replace(old)
    fresh.replace(target)
    shutil.rmtree(old, ignore_errors=True)
