"""Run a case's commands one after the other, measure what they left, and keep the result."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from verl_hpc.config.regular_file import read_regular, replace_text
from verl_hpc.errors import ConfigError
from verl_hpc.package import VERSION
from verl_hpc.reproduction.case import MEASURE, Case, Row

RESULT, PROGRESS, LOG = "result.json", "progress.json", "log"
_PACKAGE = Path(__file__).parents[2]
_LAST_LINES = 15


@dataclass(frozen=True)
class Result:
    """What came of a case."""

    digest: str
    """Hash of the case that was run."""
    not_run: str = ""
    """Why it was not run; empty if it was."""
    failed: str = ""
    """Why it has no values although it was run; empty if it has."""
    values: Mapping[str, float] = field(default_factory=dict)
    curves: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]] = field(default_factory=dict)
    """Points by title of a chart and label of a curve."""
    seconds: float = 0.0
    ended: float = 0.0
    """Unix time."""
    version: str = VERSION

    def verdict(self, row: Row) -> str:
        """Say in a word or two how a row's value compares with theirs."""
        if self.not_run:
            return "not run"
        if row.name not in self.values:
            return "failed"
        if row.agrees(self.values[row.name]):
            return "agrees"
        return "differs, as explained" if row.reason else "DISAGREES"

    def is_good(self, case: Case) -> bool:
        """Whether no row failed, or disagrees without a reason."""
        bad = {"failed", "DISAGREES"}
        return all(self.verdict(row) not in bad for row in case.file.rows)


@dataclass(frozen=True)
class Places:
    """Directories that commands name in braces."""

    out: Path
    """Directory of all results; that of a case is below it."""
    data: Path
    weights: Path | None

    def put_into(self, text: str, case: Case) -> str:
        """Replace {out}, {case}, {data} and {weights}."""
        values = {
            "out": self.out / case.name,
            "case": case.directory,
            "data": self.data,
            "weights": self.weights or "{weights}",
        }
        for name, path in values.items():
            text = text.replace(f"{{{name}}}", str(path))
        return text


def missing(case: Case, places: Places) -> str:
    """Say what a case needs and is not here; empty if nothing is missing."""
    return "; ".join(_missing(case, places))


def _missing(case: Case, places: Places) -> Iterator[str]:
    needs, gpus = case.file.needs, num_gpus()
    if needs.gpus > gpus:
        yield f"needs {needs.gpus} GPU{'s' if needs.gpus > 1 else ''}, and {gpus} are here"
    for file in needs.files:
        if "{weights}" in file and places.weights is None:
            yield f"needs {file.replace('{weights}/', '')} in a directory that --weights names"
        elif not (path := Path(places.put_into(file, case))).exists():
            yield f"needs {path}, which is not there"
    for package in needs.packages:
        if importlib.util.find_spec(package) is None:
            yield f"needs the Python package {package}"


def num_gpus() -> int:
    """Count the GPUs of this machine by the devices of their drivers."""
    if nvidia := len(list(Path("/dev").glob("nvidia[0-9]*"))):
        return nvidia
    return len(list(Path("/dev/dri").glob("renderD*"))) if Path("/dev/kfd").exists() else 0


def kept_result(case: Case, places: Places) -> Result | None:
    """Return the result of an earlier run of the same case, unless that failed."""
    try:
        result = Result(**json.loads(read_regular(places.out / case.name / RESULT)))
    except (OSError, ValueError, TypeError):  # absent, or of another version
        return None
    return result if result.digest == case.digest and not result.failed else None


def run_case(case: Case, places: Places) -> Result:
    """Run a case, unless it cannot run here or its result is there already.

    Commands that an earlier start has finished are not repeated, unless one of them or a file
    beside case.yaml has changed; runs resume where they were.

    Raises:
        ConfigError: the case's directory of results has other files.
    """
    if kept := kept_result(case, places):
        return kept
    if reason := missing(case, places):
        return Result(case.digest, not_run=reason)
    out = places.out / case.name
    seconds = _open(case, out)
    commands = [places.put_into(text, case) for text in case.file.commands]
    for number, command in enumerate(commands[len(seconds) :], start=len(seconds) + 1):
        print(f"{case.name} {number}/{len(commands)}: {command}", flush=True)
        began = time.time()
        if status := _run(shlex.split(command), out):
            failed = f"{command}\nended with {status}; the end of {out / LOG}:\n{_tail(out / LOG)}"
            return _keep(Result(case.digest, failed=failed), out)
        seconds.append(time.time() - began)
        _write(out / PROGRESS, {"digest": case.runs_digest, "seconds": seconds})
    measured = _measured(case, out)
    return _keep(Result(case.digest, **measured, seconds=sum(seconds), ended=time.time()), out)


def _open(case: Case, out: Path) -> list[float]:
    """Return the seconds of the commands that are finished; what other commands have left is
    removed."""
    try:
        progress = json.loads(read_regular(out / PROGRESS))
    except (FileNotFoundError, ValueError):
        if out.exists() and any(out.iterdir()):
            raise ConfigError(
                f"{out} has files, and no {PROGRESS}: it is no directory of results of this case; "
                "choose another --directory"
            ) from None
        progress = {"digest": case.runs_digest, "seconds": []}
    if progress["digest"] != case.runs_digest:
        shutil.rmtree(out)
        progress = {"digest": case.runs_digest, "seconds": []}
    out.mkdir(parents=True, exist_ok=True)
    _write(out / PROGRESS, progress)
    return progress["seconds"]


def _run(words: Sequence[str], out: Path) -> int:
    """Run a program; its output is appended to the case's log. Return its exit status."""
    with (out / LOG).open("ab") as log:
        log.write(f"\n$ {shlex.join(words)}\n".encode())
        log.flush()
        try:
            return subprocess.run(
                words, env=_environment(), stdout=log, stderr=subprocess.STDOUT, check=False
            ).returncode
        except OSError as error:
            log.write(f"{error}\n".encode())
            return 127


def _environment() -> dict[str, str]:
    """Return an environment in which `python` is this interpreter and imports this package, and
    threads that wait leave their core to others.

    Variables of a batch job are left out: programs start their own ranks on its first node.
    """
    own = {n: value for n, value in os.environ.items() if not n.startswith(("SLURM_", "PMI"))}
    variables = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", **own}
    for name, first in (("PATH", Path(sys.executable).parent), ("PYTHONPATH", _PACKAGE)):
        variables[name] = os.pathsep.join(filter(None, [str(first), variables.get(name)]))
    return variables


def _measured(case: Case, out: Path) -> dict[str, Any]:
    """Return values and curves that measure.py prints as JSON, its last line; or why there are
    none."""
    words = [sys.executable, str(case.directory / MEASURE), str(out)]
    done = subprocess.run(words, env=_environment(), capture_output=True, text=True, check=False)
    try:
        printed = json.loads(done.stdout.splitlines()[-1])
        values = {str(name): float(value) for name, value in printed["values"].items()}
        return {"values": values, "curves": printed.get("curves", {})}
    except (IndexError, ValueError, TypeError, KeyError, AttributeError) as error:
        said = "\n".join((done.stdout + done.stderr).splitlines()[-_LAST_LINES:])
        return {
            "failed": f"{shlex.join(words)}\nended with {done.returncode}, and its last line is no "
            f'JSON object with "values" ({error!r}):\n{said}'
        }


def _keep(result: Result, out: Path) -> Result:
    _write(out / RESULT, asdict(result))
    return result


def _write(path: Path, values: Mapping[str, Any]) -> None:
    replace_text(path, json.dumps(values, indent=1) + "\n")


def _tail(path: Path) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-_LAST_LINES:])
