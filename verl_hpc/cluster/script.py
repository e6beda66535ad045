"""The batch script's text. It runs on the host, outside any container: only there is scontrol."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby

from verl_hpc.cluster.job import Job
from verl_hpc.cluster.restart_lines import decision_lines
from verl_hpc.cluster.setting import DEFAULT, Setting
from verl_hpc.cluster.shell import expandable
from verl_hpc.cluster.variables import ARCHIVES, CACHE
from verl_hpc.errors import ConfigError
from verl_hpc.runs.contract import ATTEMPT
from verl_hpc.runs.lock import FILE as LOCK
from verl_hpc.slurm.programs import OF_THE_CALLER

_WIDTH = 96
_NOT_LITERAL = set('"\\')
_SAY = 'say() { echo "$(date +%FT%T) $*"; }'
"""Lines of the batch script begin with the time, as those of ranks do."""


def render_script(job: Job, made_by: Sequence[str] = ()) -> str:
    """Lay a job out for sbatch; the same job gives the same bytes.

    Args:
        job: what to run.
        made_by: words, quoted, of the command that makes this text again, for its header.

    Raises:
        ConfigError: as `directive_lines`.
    """
    blocks = [
        _header(job, made_by),
        _setup(job),
        _variables(job),
        _chain_guard(job),
        _attempt(job),
        _environment(job),
        _step(job),
        decision_lines(job),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def render_step(job: Job) -> str:
    """The srun command alone."""
    return "\n".join(_fill(_step_words(job)))


def _header(job: Job, made_by: Sequence[str]) -> list[str]:
    lines = [shebang(job), f"# {job.title}", *made_by_lines(made_by)]
    if job.request.standalone:
        lines += [f"# sbatch it from the checkout; edit {_to_edit(job)} first."]
    return [*lines, *directive_lines(job.directives)]


def shebang(job: Job) -> str:
    """The first line of a batch script."""
    return "#!/bin/bash -l" if job.site.login_shell else "#!/bin/bash"


def made_by_lines(words: Sequence[str]) -> list[str]:
    """A comment that says how to make a script again."""
    return ["# Made by:", *(f"#   {line}" for line in _fill(words))] if words else []


def directive_lines(directives: Iterable[Setting]) -> list[str]:
    """Options of sbatch, as it reads them from a script.

    Raises:
        ConfigError: one has a character that sbatch does not take for itself.
    """
    return [f"#SBATCH --{_directive(setting)}" for setting in directives]


def _to_edit(job: Job) -> str:
    named = {setting.name for setting in job.directives}
    items: list[str] = [name for name in ("account", "partition", "qos") if name in named]
    items += [variable.name for variable in job.variables if variable.name == "IMAGE"]
    return f"{', '.join(items)} and the paths in CONFIG" if items else "the paths in CONFIG"


def _directive(setting: Setting) -> str:
    if found := sorted(set(setting.text) & _NOT_LITERAL):
        raise ConfigError(
            f"--{setting.text} [{setting.origin}]: {' '.join(found)} is not allowed in an #SBATCH "
            "line, where sbatch reads them as a shell does; write it without"
        )
    quoted = setting.value is not None and re.search("[ #']", setting.value)
    return f'{setting.name}="{setting.value}"' if quoted else setting.text


def _assign(setting: Setting) -> str:
    return f"{setting.name}={expandable(setting.value or '')}"


def _setup(job: Job) -> list[str]:
    if not job.site.setup:
        return []
    said = "setup of the site profile ended the job with status $?: $BASH_COMMAND"
    return [
        "# The site's own lines come first; one that fails ends the job.",
        "set -e",
        # Of a function such as module, the line that calls it says more than what failed in it.
        f"""trap 'echo "{said}" >&2; awk "NR == ${{BASH_LINENO[*]: -2:1}}+0" "$0" >&2' EXIT""",
        *job.site.setup,
        "trap - EXIT",
        "set +e",
    ]


def _variables(job: Job) -> list[str]:
    return [
        "# The TMPDIR of another node, or of another job, is not here.",
        '[ -d "${TMPDIR-}" ] || unset TMPDIR',
        *(_assign(variable) for variable in job.variables),
        'export TMPDIR="${TMPDIR:-/tmp}"',
        _SAY,
    ]


def _chain_guard(job: Job) -> list[str]:
    if job.restarts is None or job.restarts.by != "chain":
        return []
    return [
        "# Jobs of a chain start one after the other, whatever became of the one before.",
        'if [ -e "$RUN/job/ended" ]; then',
        '    say "the run has ended with status $(cat "$RUN/job/ended"): nothing to do"',
        "    exit 0",
        "fi",
    ]


def _attempt(job: Job) -> list[str]:
    passed = {setting.name for setting in job.passed}
    away = [*(name for name in OF_THE_CALLER if name not in passed), '"${!SQUEUE_@}"']
    return [
        "# Slurm's programs are to ask this job's own cluster, about all of its jobs.",
        f"unset {' '.join(away)}",
        "# Every start has its own logs: one file a node, each line with its rank before it.",
        f"umask {job.site.umask}",
        "shopt -s nullglob",
        'attempts=("$RUN"/job/attempts/[0-9]*)',
        "shopt -u nullglob",
        "attempt=${#attempts[@]}",
        *_alone(),
        'mkdir -p "$RUN/job/attempts" || exit 1',
        'while [ -e "$RUN/job/attempts/$attempt" ] || ! mkdir "$RUN/job/attempts/$attempt"; do',
        '    [ -e "$RUN/job/attempts/$((attempt++))" ] || exit 1',
        "done",
        f'export {ATTEMPT}="$RUN/job/attempts/$attempt"',
        'ln -sfn "$attempt" "$RUN/job/attempts/latest"',
        *_archives(job),
        'say "attempt $attempt: job $SLURM_JOB_ID on $SLURM_JOB_NODELIST"',
    ]


def _archives(job: Job) -> list[str]:
    """Make the directory of kept compile caches, which a container needs to mount it."""
    if not any(f"${variable.name}" == ARCHIVES for variable in job.variables):
        return []
    return [f'mkdir -p "{ARCHIVES}" || say "caches: compile caches are not kept" >&2']


def _alone() -> list[str]:
    """Refuse a second job of a run before it hides what the first one says."""
    return [
        f'other=$(sed -n \'s/.*"job_id": "\\([0-9_]*\\)".*/\\1/p\' "$RUN/{LOCK}" 2>/dev/null)',
        'if [ -n "$other" ] && [ "${other%%_*}" != "${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}" ] &&',
        '    squeue --noheader --states=R,S --jobs="$other" 2>/dev/null | grep -q .; then',
        '    say "job $other is running this run already: nothing to do" >&2',
        "    exit 1",
        "fi",
    ]


def _environment(job: Job) -> list[str]:
    missing = "export it before you submit; its value is written into no file"
    return [
        *(f': "${{{setting.name}:?{missing}}}"' for setting in job.passed),
        *_exports(job.environment),
    ]


def _exports(settings: Sequence[Setting]) -> list[str]:
    """Defaults share lines; the site's values may refer to each other, so that each is its own."""
    lines: list[str] = []
    for is_default, group in groupby(settings, lambda setting: setting.origin == DEFAULT):
        if is_default:
            lines += _fill(["export", *map(_assign, group)])
        else:
            lines += [f"export {_assign(setting)}" for setting in group]
    return lines


def _step(job: Job) -> list[str]:
    return [
        "# TERM must not end this shell before srun has ended.",
        "trap : TERM",
        *_fill(_step_words(job)),
        "rc=$?",
        'timeout 60 srun --export=ALL --nodes="$SLURM_NNODES" --ntasks="$SLURM_NNODES" \\',
        f'    --ntasks-per-node=1 rm -rf "{CACHE}"',
    ]


def _step_words(job: Job) -> list[str]:
    options = (f"--{_option(setting)}" for setting in job.srun)
    return ["srun", *options, *job.prefix, *job.command]


def _option(setting: Setting) -> str:
    return setting.name if setting.value is None else f"{setting.name}={_folded(setting.value)}"


def _folded(value: str) -> str:
    """A long list of names over several lines; inside quotes bash drops `\\` and the line's end."""
    if len(value) <= _WIDTH or "$" in value:
        return expandable(value)
    return '"' + ",\\\n".join(_packed(value.split(","), ",", _WIDTH - 22)) + '"'


def _fill(words: Sequence[str]) -> list[str]:
    """Words on as few lines as fit, continued by backslashes."""
    return " \\\n    ".join(_packed(words, " ", _WIDTH - 6)).split("\n")


def _packed(items: Iterable[str], separator: str, width: int) -> list[str]:
    """Items on as few lines of at most this width as possible; a longer one has its own."""
    lines = [""]
    for item in items:
        joined = f"{lines[-1]}{separator}{item}" if lines[-1] else item
        if len(joined) <= width or not lines[-1]:
            lines[-1] = joined
        else:
            lines.append(item)
    return lines
