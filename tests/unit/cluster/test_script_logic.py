"""The rendered script under bash, with a fake srun, squeue and scontrol on PATH."""

import os
import shutil
import signal
import subprocess
import time

import pytest

from tests.unit.cluster.requests import profile, request
from tests.unit.programs import program
from verl_hpc.cluster.job import plan_job
from verl_hpc.cluster.script import render_script
from verl_hpc.runs.logs.read import TIME_FORMAT

FAKES = {
    # The step itself asks for --kill-on-bad-exit; the other srun tidies up.
    "srun": """
printf 'srun %s\\n' "$*" >>"$LOG"
case "$*" in *--kill-on-bad-exit*) ;; *) exit 0 ;; esac
env >"$LOG.environ"
if [ -n "${RANKS:-}" ]; then eval "$RANKS"; fi
[ -n "${MUTE:-}" ] || echo finished >"$VERL_HPC_ATTEMPT/outcome"
exit "${RC:-0}"
""",
    "sleep": """
printf 'sleep %s\\n' "$*" >>"$LOG"
[ "$1" = 30 ] || exec /bin/sleep "$@"
""",
    "squeue": """
printf 'squeue %s\\n' "$*" >>"$LOG"
env >"$LOG.environ.of_squeue"
[ -z "${SQUEUE_STATES:-}" ] || exit 0
if [ "$(grep -c ^squeue "$LOG")" -le "${SILENT:-0}" ]; then
    echo "slurm_load_jobs error: Socket timed out on send/recv operation" >&2
    exit 1
fi
case "$*" in
*--states=R,S*) printf '%s\\n' "${OTHER:-}" | grep . || exit 0 ;;
*PreemptTime) printf '%-20s\\n' "${PREEMPTED:-N/A}" ;;
*) printf '%s\\n' "${STATE:-RUNNING}" ;;
esac
""",
    "scontrol": """
printf 'scontrol %s\\n' "$*" >>"$LOG"
exit "${SCONTROL_RC:-0}"
""",
}


class Batch:
    """A script in a directory of its own, and what it did."""

    def __init__(self, directory, **fields):
        self.directory = directory
        self.run_directory = directory / "runs/run"
        self.script = directory / "job.sbatch"
        asked = request(directory, site=profile(directory, **fields))
        self.script.write_text(render_script(plan_job(asked)))
        self.log = directory / "log"
        fakes = directory / "bin"
        for name, body in FAKES.items():
            program(fakes / name, body)
        self.environ = {
            "PATH": f"{fakes}:{os.environ['PATH']}",
            "LOG": str(self.log),
            "PYTHONPATH": "/elsewhere",
        } | {"SLURM_JOB_ID": "77", "SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "n[0-1]"}

    def start(self, **environ):
        given = {"cwd": self.directory, "env": self.environ | environ, "text": True}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(["bash", self.script], **given, **pipes)

    def run(self, **environ):
        job = self.start(**environ)
        out, err = job.communicate(timeout=240)
        return job.returncode, out, err

    def calls(self, tool):
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line for line in lines if line.startswith(f"{tool} ")]

    def seen_by_ranks(self):
        lines = self.log.with_suffix(".environ").read_text().splitlines()
        return dict(line.partition("=")[::2] for line in lines)


@pytest.fixture
def batch(tmp_path):
    return Batch(tmp_path)


PREEMPTED = "2026-11-21T21:52:16"
AGAIN = "its 8 restarts are used up: submit again"
SILENCE = "saved, and not requeued without an answer: submit again to resume"
NO_WORD = "the ranks left with status 0, but the run is not over"
ENDINGS = [
    ({}, 0, False, None),
    ({"MUTE": "1"}, 1, False, NO_WORD),
    ({"MUTE": "1", "RC": "3"}, 3, False, None),
    ({"MUTE": "1", "RC": "85"}, 0, True, None),
    *(({"RC": str(rc)}, rc, False, None) for rc in (1, 2, 84, 86, 137, 143)),
    ({"RC": "85"}, 0, True, ""),
    # Ranks that a preemption broke start again; some Slurms do not tell of one.
    *(({"RC": rc, "PREEMPTED": PREEMPTED}, 0, True, "") for rc in ("1", "137", "143")),
    ({"PREEMPTED": PREEMPTED}, 0, False, None),
    ({"RC": "143", "PREEMPTED": " "}, 143, False, None),
    *(({"RC": "85", "SLURM_RESTART_COUNT": count}, 0, True, None) for count in "07"),
    *(({"RC": "85", "SLURM_RESTART_COUNT": count}, 85, False, AGAIN) for count in "89"),
    # Ranks may have left before a signal of Slurm's has reached every node.
    ({"RC": "85", "STATE": "SIGNALING"}, 0, True, None),
    *(
        ({"RC": "85", "STATE": state}, 85, False, "cancelled")
        for state in ("COMPLETING", "CANCELLED", " ", "TIMEOUT")
    ),
    ({"RC": "85", "SILENT": "99"}, 85, False, SILENCE),
    # A filter of the user's hides no job.
    ({"RC": "85", "SQUEUE_STATES": "PENDING"}, 0, True, None),
    ({"RC": "85", "SCONTROL_RC": "1"}, 85, True, None),
]
"""Variables of the fakes, the script's status, whether it asks for a requeue, and what it says."""


@pytest.mark.parametrize(("environ", "status", "requeued", "said"), ENDINGS)
def test_how_a_job_ends(batch, environ, status, requeued, said):
    ended, _, err = batch.run(**environ)
    assert ended == status
    assert batch.calls("scontrol") == ["scontrol requeue 77"] * requeued
    assert err == "" if said == "" else (said or "") in err
    assert ("cancelled" in err) is (said == "cancelled")
    assert environ or not batch.calls("squeue")


def test_the_word_of_an_earlier_start_does_not_count(batch):
    assert (batch.run()[0], batch.run(MUTE="1")[0]) == (0, 1)


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"restarts": {"most": 0}}, 85),
        ({"setup": ["true"]}, 0),
        # Failures inside substitutions are none of the setup's.
        ({"setup": ["BASE=$(false; echo /x)", "A=$(echo $(exit 3))", "if ! false; then :; fi"]}, 0),
    ],
)
def test_a_profile_has_a_word_in_how_a_job_ends(tmp_path, fields, status):
    batch = Batch(tmp_path, **fields)
    ended, _, err = batch.run(RC="85")
    assert ended == status
    assert batch.calls("scontrol") == ["scontrol requeue 77"] * (status == 0)
    assert "setup" not in err


@pytest.mark.parametrize("environ", [{"RC": "85"}, {"RC": "143", "PREEMPTED": PREEMPTED}])
def test_a_slurm_that_answers_late(batch, environ):
    """The controller is away just when the ranks have left."""
    assert batch.run(SILENT="3", **environ)[0] == 0
    assert (batch.calls("scontrol"), len(batch.calls("sleep"))) == (["scontrol requeue 77"], 3)


def test_the_cluster_that_the_submitter_asked_is_not_the_jobs(batch):
    assert batch.run(RC="85", SLURM_CLUSTERS="c2", SLURM_JWT="x", SLURM_CONF="/etc/x")[0] == 0
    seen = (batch.directory / "log.environ.of_squeue").read_text().splitlines()
    assert "SLURM_CONF=/etc/x" in seen
    for line in (*seen, *batch.seen_by_ranks()):
        assert not line.startswith(("SLURM_CLUSTERS", "SLURM_JWT"))


def test_term_waits_for_the_ranks(batch):
    """Slurm gives the shell TERM after a preemption's grace; the ranks are still saving."""
    marker = batch.directory / "up"
    job = batch.start(RC="85", RANKS=f"touch {marker}; sleep 1.5")
    while not marker.exists():
        time.sleep(0.02)
    job.send_signal(signal.SIGTERM)
    out, err = job.communicate(timeout=240)
    assert job.returncode == 0, (out, err)
    assert batch.calls("scontrol") == ["scontrol requeue 77"]


def test_ranks_do_not_inherit_a_deaf_ear(batch):
    """A trapped signal is reset in children, an ignored one would not be."""
    batch.run(RANKS="grep SigIgn /proc/self/status >$LOG.ignored")
    ignored = int((batch.directory / "log.ignored").read_text().split()[1], 16)
    assert not ignored & (1 << (signal.SIGTERM - 1))


# Directories


def test_every_start_has_its_own_logs(batch):
    attempts = batch.run_directory / "job/attempts"
    for count in range(3):
        status, out, _ = batch.run()
        assert status == 0
        said_at, _, text = out.partition(" ")
        assert text == f"attempt {count}: job 77 on n[0-1]\n"
        assert time.strptime(said_at, TIME_FORMAT)
        assert (attempts / "latest").readlink().name == str(count)
        assert batch.seen_by_ranks()["VERL_HPC_ATTEMPT"] == str(attempts / str(count))
    assert sorted(path.name for path in attempts.iterdir()) == ["0", "1", "2", "latest"]
    last = [call for call in batch.calls("srun") if "--output" in call][-1]
    assert f"--output={attempts}/2/%N.log" in last
    # A start takes no directory of another.
    shutil.rmtree(attempts / "0")
    assert "attempt 3: job 77" in batch.run()[1]
    assert (attempts / "2/outcome").exists()
    jobs = [batch.start() for _ in range(4)]
    told = {job.communicate(timeout=240)[0].split()[2] for job in jobs}
    assert told == {"4:", "5:", "6:", "7:"}


@pytest.mark.parametrize("lives", [True, False])
def test_a_second_job_of_a_run_hides_nothing_of_the_first(batch, lives):
    assert batch.run()[0] == 0
    (batch.run_directory / "lock.json").write_text('{"token": "a", "job_id": "76", "pid": 3}')
    status, _, err = batch.run(OTHER="76" if lives else "")
    job = batch.run_directory / "job"
    if lives:
        assert status == 1
        assert "job 76 is running this run already: nothing to do" in err
        assert (job / "attempts/latest").readlink().name == "0"
        assert (job / "attempts/0/outcome").exists()
    else:
        assert (status, (job / "attempts/latest").readlink().name) == (0, "1")


def test_a_run_directory_that_cannot_be_made(batch):
    (batch.directory / "runs").write_text("in the way")
    status, _, err = batch.run()
    assert status == 1
    assert "runs" in err
    assert not batch.calls("srun")


# What ranks get


QUOTED = {"A": "one", "B": "$A two", "C": "${B}!", "D": "a'b\"c"}


@pytest.mark.parametrize(
    ("fields", "environ", "expected"),
    [
        ({"environment": QUOTED}, {}, {"B": "one two", "C": "one two!", "D": "a'b\"c"}),
        ({}, {}, {"VERL_HPC_CACHE": "/tmp/verl_hpc-77", "VERL_HPC_GPUS_PER_NODE": "4"}),
        ({"setup": ["BASE=/opt/x"], "environment": {"X": "$BASE/y"}}, {}, {"X": "/opt/x/y"}),
        ({}, {"TMPDIR": "/nowhere"}, {"TMPDIR": "/tmp"}),
        ({"pass_environment": ["TOKEN"]}, {"TOKEN": "hunter2"}, {"TOKEN": "hunter2"}),
        ({"pass_environment": ["SLURM_JWT"]}, {"SLURM_JWT": "x", "SLURM_CLUSTERS": "c2"},
         {"SLURM_JWT": "x", "SLURM_CLUSTERS": None}),
    ],
)  # fmt: skip
def test_the_environment_of_the_ranks(tmp_path, fields, environ, expected):
    batch = Batch(tmp_path, **fields)
    assert batch.run(**environ)[0] == 0
    seen = batch.seen_by_ranks()
    expected = expected | {"PYTHONPATH": f"{batch.run_directory}/job/code:/elsewhere"}
    assert {name: seen.get(name) for name in expected} == expected


@pytest.mark.parametrize("can_be_made", [True, False])
def test_the_directory_of_kept_caches_is_made_if_it_can_be(tmp_path, can_be_made):
    batch = Batch(tmp_path, caches="$PROJECT/a b/caches", umask="027")
    project = tmp_path / "project"
    if not can_be_made:
        project.write_text("in the way")
    status, out, err = batch.run(PROJECT=str(project))
    assert status == 0, "a run does not end for want of a cache"
    kept = project / "a b/caches"
    assert batch.seen_by_ranks()["VERL_HPC_KEPT_CACHES"] == str(kept)
    if can_be_made:
        assert kept.stat().st_mode & 0o777 == 0o750
    assert ("compile caches are not kept" in out + err) is not can_be_made


@pytest.mark.parametrize(
    "bad", ["module load nosuchmodule", "false", "cd nowhere", "load", "exit 3"]
)
def test_setup_that_fails_ends_the_job_and_is_named(tmp_path, bad):
    function = "load() { grep -q x /dev/null; }"
    batch = Batch(tmp_path, setup=["BASE=/opt/x", function, bad, "touch reached"])
    status, _, err = batch.run()
    assert status != 0
    assert err.count("setup of the site profile ended the job with status ") == 1
    assert bad in err, "the line of the profile, whatever failed inside its function"
    assert not batch.calls("srun")
    assert not (tmp_path / "reached").exists()


def test_setup_comes_first_and_has_the_users_shell(tmp_path):
    batch = Batch(tmp_path, setup=["echo no[1] match?", 'umask >"$LOG.umask"', "IMAGE_OF=/x"])
    status, out, _ = batch.run()
    assert status == 0
    assert out.startswith("no[1] match?\n"), "words without a match stay"
    mine = subprocess.check_output(["bash", "-c", "umask"], text=True)
    assert (tmp_path / "log.umask").read_text() == mine


NEEDS = "needs it, and it is not set on this node"
APPTAINER = {"kind": "apptainer", "image": "$IMAGES/a.sif"}


def test_ranks_take_a_tmpdir_that_is_there_for_scratch(tmp_path):
    batch = Batch(tmp_path, node_scratch="$TMPDIR")
    (tmp_path / "scratch").mkdir()
    batch.run(TMPDIR=f"{tmp_path}/scratch")
    seen = batch.seen_by_ranks()
    kept = seen["TMPDIR"], seen["VERL_HPC_CACHE"]
    assert kept == (f"{tmp_path}/scratch", f"{tmp_path}/scratch/verl_hpc-77")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        # A TMPDIR of another node is left.
        ({"node_scratch": "$TMPDIR"}, f"node_scratch of the site profile {NEEDS}"),
        ({"pass_environment": ["HF_TOKEN"]}, "HF_TOKEN: export it before you submit"),
        ({"node_scratch": "$LOCAL/x"}, f"LOCAL: node_scratch of the site profile {NEEDS}"),
        ({"container": APPTAINER}, "IMAGES: container.image of the site profile needs it"),
    ],
)
def test_what_has_a_variable_that_is_not_set_here(tmp_path, fields, words):
    batch = Batch(tmp_path, **fields)
    status, _, err = batch.run(TMPDIR="/nowhere")
    assert status != 0 and words in err
    assert not batch.calls("srun")


@pytest.mark.parametrize(("fields", "mode"), [({}, 0o700), ({"umask": "027"}, 0o750)])
def test_who_may_read_a_runs_files(tmp_path, fields, mode):
    batch = Batch(tmp_path, **fields)
    assert batch.run()[0] == 0
    assert (batch.run_directory / "job/attempts/0").stat().st_mode & 0o777 == mode


def test_the_jobs_caches_are_removed_from_every_node(batch):
    batch.run(RC="1")
    (tidy,) = [call for call in batch.calls("srun") if "rm -rf" in call]
    words = "--export=ALL --nodes=2 --ntasks=2 --ntasks-per-node=1 rm -rf /tmp/verl_hpc-77"
    assert tidy == f"srun {words}"


# Chains


@pytest.fixture
def link(tmp_path):
    return Batch(tmp_path, restarts={"by": "chain", "most": 2})


def test_a_link_that_saves_leaves_the_rest_to_the_next(link):
    assert link.run(RC="85")[0] == 85
    assert not link.calls("scontrol")
    assert not (link.run_directory / "job/ended").exists()
    assert link.run(RC="85")[0] == 85
    assert len([call for call in link.calls("srun") if "--label" in call]) == 2
    assert link.run(RC="143", PREEMPTED=PREEMPTED)[0] == 85, "a preemption killed it"
    assert not (link.run_directory / "job/ended").exists()


@pytest.mark.parametrize(
    ("environ", "ended"),
    [({"RC": "0"}, 0), ({"RC": "1"}, 1), ({"RC": "137"}, 137), ({"MUTE": "1"}, 1)],
)
def test_after_the_end_later_links_do_nothing(link, environ, ended):
    """A link that says nothing ends the chain as a failure."""
    assert link.run(**environ)[0] == ended
    assert (link.run_directory / "job/ended").read_text() == f"{ended}\n"
    link.log.unlink()
    status, out, _ = link.run()
    assert status == 0
    assert f"ended with status {ended}" in out
    assert not link.calls("srun")
