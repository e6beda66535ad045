"""bash reads a shell script and gives the words with which the script starts verl.

It runs the script in bubblewrap: without network, with nothing writable but a temporary
directory, and with nothing on PATH but a few programs that only compute or read. Before each
command bash looks whether it starts verl (`-m verl.trainer.main_ppo`); such a command is written
down and skipped. A program that is not on PATH is written down as well and does nothing. Where the
script reads what it prints, it prints a mark, and a mark among verl's words is an error.
"""

from __future__ import annotations

import logging
import os
import re
import resource
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path

from verl_hpc.config.foreign import MIGRATE
from verl_hpc.errors import ConfigError
from verl_hpc.migration.table import note, notes

PROGRAMS = ("verl.trainer.main_ppo", "verl_hpc.trainer.main_ppo")
_ON_PATH = "basename bash cat cut date dirname head id ls readlink realpath seq sort tail tr whoami"
_QUIET = "chmod cp ln mkdir mv rm sleep tee touch"
"""No message names these programs, because no word depends on what they do."""
_SECONDS = 10.0
_LONGEST = 2**21
"""This is the most that a file may hold, and what Linux takes as one program's arguments."""
_MOST_MEMORY = 2**29
_GIVE_COMMAND = f"give the command itself: {MIGRATE} python3 -m {PROGRAMS[0]} KEY=VALUE ..."
_MESSAGE = re.compile(r"^(?P<file>.+?): line (?P<line>\d+): (?P<says>.*)$", re.M)
_MARK = re.compile("\1(?P<line>\\d+):(?P<program>[^\1]*)\1")
_STRAY = re.compile(r"[-+~]|[\w]+\.[\w.]+=")
_PIECES = r"[-+~$\"']|\S*="
_COMMENT_INSIDE = re.compile(
    rf"-m ({'|'.join(map(re.escape, PROGRAMS))})(?=\s)(.*\\\n)+[ \t]*#.*\n([ \t]*#.*\n)*"
    rf"[ \t]*({_PIECES})"
)

# What bash reads before the script. The trap runs before each command, in its shell and with its
# variables. It sets what the user gave and PATH again, whatever the script has done to them. A
# command that may start verl is expanded by eval as the arguments of _migrate_keep. Its
# redirections are expanded with it and fail where nothing can be written; the last one is then
# taken away until none is left. With extdebug bash skips a command for which the trap fails. bash
# would look for its debugger if extdebug was set outside of the trap, and `! :` fails without
# ending a script that has set -e. The trap is one line because bash counts lines from its first.
_TRAP, _BEFORE = (Path(__file__).with_name(f"{name}.bash") for name in ("trap", "before"))


@dataclass(frozen=True)
class _Record:
    """This command was written down and not run."""

    line: int
    file: str
    errors: str
    """For a command that starts verl this holds all messages of bash up to then."""
    words: list[str]


@dataclass(frozen=True)
class _Result:
    starts: list[_Record]
    """These commands start verl."""
    others: list[_Record]
    """The programs of these commands are not on PATH."""
    errors: str
    problem: str | None
    """This says why bash did not come to the script's end, if it was stopped."""


def command_words(words: list[str]) -> list[str]:
    """Return the words behind the program's name, or all words if no program of verl is named."""
    for index, word in enumerate(words):
        if word in PROGRAMS:
            rest = words[index + 1 :]
            end = next((i for i, w in enumerate(rest) if re.match(r"\d?>|[|&;]", w)), len(rest))
            return rest[:end]
    return words


def words_of(
    path: Path, environment: Mapping[str, str], given: Mapping[str, str] | None = None
) -> list[str]:
    """Return the words behind the program's name in the script's first command that starts verl.

    Args:
        path: the script.
        environment: variables that the script finds when it is started.
        given: variables that stay as they are, whatever the script sets.

    Raises:
        ConfigError: the script cannot be read, does not start verl, or asks for a variable that
            is not set or for what a program prints; or bubblewrap is missing.
    """
    try:
        text = path.read_text(encoding="utf-8")
        _check_given(given or {}, text)
        result = _run(path, environment, given or {})
        if not result.starts:
            raise ConfigError(_why_none(path, result, text))
        words = list(_behind_program(result.starts[0].words))
        _check(path, result, words, text)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    _tell(path, result)
    return words


def _check_given(given: Mapping[str, str], text: str) -> None:
    """Raises: ConfigError: a script that reads no other file does not name a given variable."""
    if re.search(r"(?m)^.*\b(source|\.)[ \t]", text):
        return
    for name in given:
        if not re.search(rf"\b{name}\b", text):
            raise ConfigError(f"{name}=... is given, but the script has no such variable")


def _run(path: Path, environment: Mapping[str, str], given: Mapping[str, str]) -> _Result:
    """Raises: ConfigError: bubblewrap is missing or fails."""
    bubblewrap, bash = shutil.which("bwrap"), shutil.which("bash")
    if bubblewrap is None or bash is None:
        missing = "bash" if bash is None else "bubblewrap"
        raise ConfigError(note("not_installed", missing=missing, otherwise=_GIVE_COMMAND))
    with tempfile.TemporaryDirectory() as folder:
        _prepare(Path(folder), path, given)
        command = [bubblewrap, *_namespaces(folder, path), bash, "-u", "--", str(path)]
        variables = _variables(environment) | dict(given)
        variables |= {"BASH_ENV": f"{folder}/before", "PATH": f"{folder}/bin", "LC_ALL": "C.UTF-8"}
        problem = None
        with Path(folder, "errors").open("ab") as errors:
            try:
                done = subprocess.run(
                    command,
                    env=variables,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    timeout=_SECONDS,
                    preexec_fn=_limit,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                problem = f"bash did not end within {_SECONDS:g} s"
            else:
                if done.returncode < 0 or done.returncode > 128:
                    problem = f"bash ended with status {done.returncode}"
        said = Path(folder, "errors").read_text("utf-8", errors="replace")
        starts, others = (Path(folder, name).read_bytes() for name in ("starts", "others"))
    if said.startswith("bwrap: "):
        raise ConfigError(note("no_namespaces", said=said.strip(), otherwise=_GIVE_COMMAND))
    if len(starts) >= _LONGEST:
        raise ConfigError(f"its words are more than {_LONGEST} characters; {_GIVE_COMMAND}")
    return _Result(_records(starts), _records(others), said, problem)


def _prepare(folder: Path, path: Path, given: Mapping[str, str]) -> None:
    """Write what bash reads before the script, and make the directory that is PATH."""
    (folder / "bin").mkdir()
    for name in _ON_PATH.split():
        program = shutil.which(name)
        if program is not None:
            (folder / "bin" / name).symlink_to(program)
    # bash looks on PATH for the file of `source FILE`, and the script's own directory is last.
    fixed = {**given, "PATH": f"{folder}/bin:{path.resolve().parent}"}
    keep = "\n".join(f"_migrate_{name}={shlex.quote(value)}" for name, value in fixed.items())
    again = "; ".join(f"{name}=$_migrate_{name}" for name in fixed)
    trap = " ".join(_TRAP.read_text("utf-8").strip("\n").replace("@GIVEN@", again).split("\n"))
    before = _BEFORE.read_text("utf-8").replace("@FOLDER@", shlex.quote(str(folder)))
    before = before.replace("@TRAP@", shlex.quote(trap))
    (folder / "before").write_text(before.replace("@GIVEN@", keep), encoding="utf-8")
    for name in ("starts", "others"):
        (folder / name).touch()


def _namespaces(folder: str, path: Path) -> list[str]:
    """Return the options of bubblewrap."""
    here = Path.cwd()
    words = ["--unshare-all", "--die-with-parent", "--new-session", "--ro-bind", "/", "/"]
    words += ["--dev", "/dev", "--proc", "/proc"]
    temporary = Path("/tmp")  # noqa: S108
    # An older bash writes its here-documents there.
    if not any(one.is_relative_to(temporary) for one in (here, path.resolve())):
        words += ["--tmpfs", str(temporary)]
    return [*words, "--bind", folder, folder, "--chdir", str(here)]


def _variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return all variables but the functions and options that a shell has exported."""
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith("BASH_FUNC_") and name not in ("SHELLOPTS", "BASHOPTS")
    }


def _limit() -> None:
    for what, most in (
        (resource.RLIMIT_FSIZE, _LONGEST),
        (resource.RLIMIT_AS, _MOST_MEMORY),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(what)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (most, most))


def _records(wrote: bytes) -> list[_Record]:
    fields = iter(os.fsdecode(wrote).split("\0")[:-1])
    records: list[_Record] = []
    # A file that has grown to its limit ends within a record.
    while len(head := list(islice(fields, 4))) == 4:
        line, file, errors, count = head
        records.append(_Record(int(line), file, errors, list(islice(fields, int(count)))))
    return records


def _behind_program(words: Sequence[str]) -> Sequence[str]:
    at = next(
        i for i, pair in enumerate(pairwise(words)) if pair[0] == "-m" and pair[1] in PROGRAMS
    )
    return words[at + 2 :]


def _why_none(path: Path, result: _Result, text: str) -> str:
    """Say why no command starts verl."""
    # Of an error of syntax the last message is the line itself.
    messages = [m for m in _MESSAGE.finditer(result.errors) if not m["says"].startswith("`")]
    lines = result.errors.splitlines()
    last = lines[-1] if lines and lines[-1].startswith((f"{path}: ", "bash: ")) else None
    if messages:
        last = _explained(path, messages[-1], text)
    if result.problem is not None:
        return f"{result.problem}{f' ({last})' if last else ''}; {_GIVE_COMMAND}"
    none = f"starts none of {', '.join(PROGRAMS)}"
    for record in result.others:
        named = [name for option, name in pairwise(record.words) if option == "-m"]
        name = next((name for name in named if name.startswith("verl")), None)
        if name is not None:
            module = name.rpartition(".")[2]
            says = [f"; {says}" for word, says in notes("program_").items() if word in module]
            return f"{none}, but {name}{says[0] if says else ''}"
    return last or "; ".join([none, *_skipped(result.others)])


def _skipped(records: Sequence[_Record]) -> list[str]:
    """Name the programs that were not run in one sentence, if there are any."""
    programs = dict.fromkeys(
        f"{record.words[0]} (line {record.line})"
        for record in records
        if record.words[0] not in _QUIET.split() and "\1" not in record.words[0]
    )
    return [f"these programs were not run: {', '.join(programs)}"] if programs else []


def _explained(path: Path, message: re.Match[str], text: str) -> str:
    """Say what bash says, and what to do if it misses a variable or what a program prints."""
    where = _where(path, message["file"], int(message["line"]))
    mark = _MARK.search(message["says"])
    if mark is not None:
        return _not_run(path, mark, text)
    unset = re.fullmatch(r"(\$?\w+)(\[.*\])?: unbound variable", message["says"])
    if unset is None:
        return f"{where}: {message['says']}"
    name = unset[1].removeprefix("$")
    if name.isdigit():
        return f"{where}: ${name} is an argument of the script; write its value there"
    return f"{where}: ${name} is not set; {_way(path, name)}"


def _where(path: Path, file: str, line: int) -> str:
    return f"line {line}" if file == str(path) else f"{file}, line {line}"


def _way(path: Path, name: str) -> str:
    """Say how the user gives a variable."""
    return f"give it: {MIGRATE} {name}=... {path.name}"


def _not_run(path: Path, mark: re.Match[str], text: str) -> str:
    lines, line = text.splitlines(), int(mark["line"])
    source = lines[line - 1] if line <= len(lines) else ""
    sets = re.match(r"(?:.*[\s;:])?([A-Za-z_]\w*)\+?=", source.partition("$(")[0])
    way = _way(path, sets[1] if sets is not None else "NAME")
    return f"line {line}: {mark['program']} is not run, and what it prints is asked for; {way}"


def _check(path: Path, result: _Result, words: Sequence[str], text: str) -> None:
    """Raises: ConfigError: the words are not those that verl would get, or not all that the
    script's author believes to pass."""
    first = result.starts[0]
    for message in _MESSAGE.finditer(first.errors):
        if message["says"].endswith(": unbound variable"):
            raise ConfigError(_explained(path, message, text))
    mark = _MARK.search("\0".join(words))
    if mark is not None:
        raise ConfigError(_not_run(path, mark, text))
    where = _where(path, first.file, first.line)
    if any(word and not word.strip() for word in words):
        raise ConfigError(f"{where}: {note('blank_inside')}")
    if _COMMENT_INSIDE.search(text):
        raise ConfigError(f"{where}: {note('comment_inside')}")
    for record in result.others:
        if record.line > first.line and _STRAY.match(record.words[0]):
            where = _where(path, record.file, record.line)
            raise ConfigError(f"{where}: {record.words[0]} {note('stray')}")


def _tell(path: Path, result: _Result) -> None:
    """Say in the log what may make the words others than those of a run on the cluster."""
    first = result.starts[0]
    before = [one for one in result.others if one.file != first.file or one.line <= first.line]
    told = [match[0].strip() for match in _MESSAGE.finditer(first.errors)]
    told = [line for line in told if not line.endswith("Read-only file system")]
    told += [f"{path}: {text}" for text in _skipped(before)]
    if len(result.starts) > 1:
        times = len(result.starts)
        told.append(f"{path}: starts verl {times} times; these are the words of the first")
    for line in told:
        logging.getLogger(__name__).warning(line)
