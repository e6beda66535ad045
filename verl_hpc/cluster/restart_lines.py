"""Lines of the batch script that decide, when the ranks have left, whether the run goes on."""

from __future__ import annotations

from verl_hpc.cluster.job import Job
from verl_hpc.runs.contract import ATTEMPT, OUTCOME, RESTART


def decision_lines(job: Job) -> list[str]:
    """The end of the batch script: whether the job starts again, and its exit status."""
    if job.restarts is None:
        return ['exit "$rc"']
    # One job of an array has the array's own number, which means all of them.
    array = "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
    job_id = array if job.request.in_array else "$SLURM_JOB_ID"
    return [
        *_outcome(),
        *_ask_slurm(job_id),
        *_preempted(),
        *(_chain() if job.restarts.by == "chain" else _requeue(job, job_id)),
    ]


def _outcome() -> list[str]:
    return [
        "# Status 0 is no success where rank 0 has not said that the run is over.",
        f'[ "$rc" -ne 0 ] || [ -e "${ATTEMPT}/{OUTCOME}" ] ||',
        '    { say "the ranks left with status 0, but the run is not over: failed" >&2; rc=1; }',
    ]


def _ask_slurm(job_id: str) -> list[str]:
    """A function of the script that asks for a field of this job."""
    return [
        "# Without an answer nobody knows whether there is such a job, so ask again.",
        "ask() {",
        "    for _ in {1..6}; do",
        f'        squeue --noheader --states=all --jobs="{job_id}" "$@" && return',
        "        sleep 30",
        "    done",
        '    say "Slurm has not answered for three minutes" >&2',
        "    return 1",
        "}",
    ]


def _preempted() -> list[str]:
    return [
        "# What preemption breaks is no failure: its TERM ends containers and ranks' helpers, too.",
        f'if [ "$rc" -ne 0 ] && [ "$rc" -ne {RESTART} ]; then',
        f"    [[ $(ask --Format=PreemptTime) == *[0-9]* ]] && rc={RESTART}",
        "fi",
    ]


def _chain() -> list[str]:
    return [
        f"# {RESTART}: all ranks have saved, and the next job of the chain resumes.",
        f'[ "$rc" -eq {RESTART} ] || echo "$rc" >"$RUN/job/ended"',
        'exit "$rc"',
    ]


def _requeue(job: Job, job_id: str) -> list[str]:
    assert job.restarts is not None
    most = job.restarts.most
    return [
        f"# {RESTART}: all ranks have saved and are not done. Anything else ends the run.",
        f'if [ "$rc" -ne {RESTART} ]; then',
        '    exit "$rc"',
        f'elif [ "${{SLURM_RESTART_COUNT:-0}}" -ge {most} ]; then',
        f'    say "saved; its {most} restarts are used up: submit again to resume" >&2',
        "# Ranks save on scancel, too; to requeue would bring a cancelled job back to life.",
        "elif ! state=$(ask --format=%T); then",
        '    say "saved, and not requeued without an answer: submit again to resume" >&2',
        'elif [[ "$state" != @(RUNNING|SIGNALING) ]]; then',
        '    say "saved; the job was cancelled, or is requeued (${state:-gone}):" \\',
        '        "submit again if it does not come back by itself" >&2',
        f'elif scontrol requeue "{job_id}"; then',
        "    exit 0",
        "fi",
        f"exit {RESTART}",
    ]
