"""Runs on sites with PBS, or with mpiexec and a list of hosts: launch/mpiexec.sh, grpo_8b.pbs.

MPICH's mpiexec is real. It forks the ranks of all hosts of a file, or reaches each host by a stub
of ssh, which gives this machine another host name. PBS is a stub, and so is every mpiexec of
another MPI library, which cannot be beside ours: it notes what it is asked for, in the words that
the real ones took when they were tried by hand.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from tests.jobs.launch import MPIEXEC, wait_until, write_config
from tests.pbs_stub import Pbs
from tests.unit.cluster.shellcheck import shellcheck
from verl_hpc.cli.main import main
from verl_hpc.metrics.log import read_metrics
from verl_hpc.runs.lock import FILE as LOCK
from verl_hpc.runs.lock import RunLock

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "launch/mpiexec.sh"
PBS_SCRIPT = ROOT / "launch/grpo_8b.pbs"
PAGE = ROOT / "docs/mpiexec_sites.md"
RESTART = 85
VERSIONS = {
    "mpich": "HYDRA build details:\n    Version:   5.0.2",
    "intel": "Intel(R) MPI Library for Linux* OS, Version 2021.19.0 Build 20260929",
    "openmpi": "mpiexec (Open MPI) 5.0.11",
    "pals": "PALS 1.4",
}
WORDS = {
    "mpich": "-f ATTEMPT/hosts -ppn 2",
    "intel": "-f ATTEMPT/hosts -ppn 2",
    "openmpi": "--hostfile ATTEMPT/hosts --map-by ppr:2:node --bind-to none",
    "pals": "--hostfile ATTEMPT/hosts --ppn 2 --cpu-bind none",
}


WAITS = """sleep 600 &
trap 'echo TERM; kill $!' TERM
trap 'echo USR2; kill $!' USR2
touch $0.up
wait"""
"""A stub of mpiexec waits so for a signal."""


class Site:
    """A directory with a host file and stubs of mpiexec and of Python, for starts without ranks."""

    def __init__(self, directory):
        self.directory, self.run = directory, directory / "run"
        self.attempt = self.run / "job/attempts/0"
        self.hosts = directory / "hosts"
        self.hosts.write_text("n1\nn1\n# spare: n3\n\nn0\nn0\n")
        self.mpiexec("restart", RESTART)
        # Only where the run directory is asks the interpreter; that of a test is known.
        self.write("python", f"cat >/dev/null; echo {self.run}")
        self.programs = {name.upper(): str(directory / name) for name in ("mpiexec", "python")}
        self.environ = {"PATH": os.environ["PATH"], "HOSTFILE": str(self.hosts), **self.programs}

    def write(self, name, text):
        (self.directory / name).unlink(missing_ok=True)  # the old one may run
        (self.directory / name).write_text(f"#!/bin/bash\n{text}\n")
        (self.directory / name).chmod(0o755)

    def mpiexec(self, outcome, status, version=VERSIONS["mpich"], before=""):
        """An mpiexec whose ranks leave so, after `before`."""
        said = outcome and f'echo {outcome} >"$VERL_HPC_ATTEMPT/outcome"'
        self.write(
            "mpiexec",
            f"""if [ "$1" = --version ]; then echo "{version}"; exit; fi
printf '%s\\n' "$@" >{self.directory}/words
env >{self.directory}/environ
{before}
{said}
exit {status}""",
        )

    def start(self, *words, **environ):
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        command, environ = [SCRIPT, "run.yaml", *words], self.environ | environ
        return subprocess.Popen(command, cwd=self.directory, env=environ, **pipes)

    def launch(self, *words, **environ):
        job = self.start(*words, **environ)
        output, _ = job.communicate(timeout=60)
        return job.returncode, output

    def words(self):
        return (self.directory / "words").read_text().splitlines()

    def pbs_script(self, **settings):
        path = self.directory / "run.pbs"
        return pbs_script(path, "run.yaml", **settings, **self.programs)

    def refuses(self, message, *words, **environ):
        """A start that ends before any rank does, and what it says."""
        status, output = self.launch(*words, **environ)
        assert status != 0
        assert message in output
        assert not (self.directory / "words").exists()
        return output


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


def pbs_script(path, config, hosts=2, walltime="00:00:01", **exports):
    """launch/grpo_8b.pbs as a user edits it, for hosts with a rank each. In a second of time a run
    may begin no step that would not end before, and begins one all the same."""
    exported = "\n".join(f"export {name}='{value}'" for name, value in exports.items())
    text = PBS_SCRIPT.read_text()
    for begin, line in {
        "#PBS -l select=": f"#PBS -l select={hosts}:ncpus=1:mpiprocs=1",
        "#PBS -l walltime=": f"#PBS -l walltime={walltime}",
        "SCRIPT=": f"SCRIPT={path}",
        "CONFIG=": f"CONFIG={config}",
        "export VERL_HPC_GPUS_PER_NODE=": exported,
    }.items():
        text, count = re.subn(f"(?m)^{begin}.*", lambda _, line=line: line, text)
        assert count == 1, begin
    path.write_text(text)
    return path


@pytest.fixture
def pbs(tmp_path):
    return Pbs(tmp_path / "pbs", os.environ["PATH"])


def test_the_page_has_the_scripts_variables_and_leads_somewhere():
    page = PAGE.read_text()
    names = re.findall(r"^#   ([A-Z_]+)  ", SCRIPT.read_text(), re.M)
    assert re.findall(r"^\| `([A-Z_]+)` \|", page, re.M) == names
    for file in re.findall(r"\]\(([\w.]+)", page):
        assert (PAGE.parent / file).exists()
    for file in re.findall(r"`((?:launch|tests)/[\w./]+)`", page):
        assert (ROOT / file).exists()


@pytest.mark.parametrize("script", [SCRIPT, PBS_SCRIPT], ids=lambda path: path.name)
def test_scripts_are_clean(script):
    assert shellcheck(script) == ""


def test_a_job_of_pbs_saves_before_its_limit_and_submits_itself_until_the_run_is_over(
    tree, tmp_path, pbs, capsys
):
    """One rank without a critic, since each start takes seconds for each rank that it has."""
    small = {"steps": 2, "parallel": {}, "roles": {}, "algorithm": {}}
    config = write_config(tmp_path / "config.yaml", tree | small)
    run = tmp_path / "run"
    programs = {"PYTHON": sys.executable, "MPIEXEC": f"{MPIEXEC} -launcher fork"}
    pbs.qsub(pbs_script(tmp_path / "run.pbs", config, hosts=1, **programs), ROOT)
    ends = []
    while pbs.queued():
        ends.append(pbs.start().finish())
    assert [status for status, _ in ends] == [0, 0], ends
    assert "saved; job 1.stub goes on" in ends[0][1]
    assert "the run is over: finished" in ends[1][1]
    assert [row["step"] for row in read_metrics(run)] == [1, 2]
    for number, step in enumerate((1, 2)):
        attempt = run / f"job/attempts/{number}"
        files = {f"{os.uname().nodename}.rank0.log", "hosts", "mpiexec.log", "outcome"}
        assert {path.name for path in attempt.iterdir()} == files
        assert (attempt / "hosts").read_text() == "n0\n"
        assert main(["logs", str(run), "--rank", "0", "--attempt", str(number)]) == 0
        out = capsys.readouterr().out
        assert out.startswith(f"{os.uname().nodename} 0: 20")
        left = f"left after step {step}, which is saved: the allocation ends before another step"
        assert (left in out) == (step == 1)


def test_a_job_that_is_deleted_saves_and_does_not_come_back(site, pbs):
    site.mpiexec("restart", RESTART, before=WAITS)
    pbs.qsub(site.pbs_script(), ROOT)
    job = pbs.start()
    assert wait_until((site.directory / "mpiexec.up").exists, job.process, 60)
    status, output = job.terminate()
    assert status == RESTART
    assert "the job was told to leave" in output
    assert pbs.queued() == []


def test_restarts_are_bounded(site, pbs):
    script = site.pbs_script()
    script.write_text(script.read_text().replace("RESTARTS=8", "RESTARTS=2", 1))
    pbs.qsub(script, ROOT)
    ends = []
    while pbs.queued():
        ends.append(pbs.start().finish(60))
    assert [status for status, _ in ends] == [0, 0, RESTART]
    assert "its 2 restarts are used up" in ends[-1][1]


@pytest.mark.parametrize("outcome, status", [("finished", 0), ("", 3)])
def test_a_run_that_is_over_or_has_failed_is_not_submitted_again(site, pbs, outcome, status):
    site.mpiexec(outcome, status)
    pbs.qsub(site.pbs_script(), ROOT)
    assert (pbs.start().finish(60)[0], pbs.queued()) == (status, [])


@pytest.mark.parametrize("qstat", ["answers", "is not on the node"])
def test_the_end_of_the_allocation_is_the_start_and_the_walltime(site, pbs, qstat):
    pbs.qsub(site.pbs_script(walltime="01:02:03"), ROOT)
    if qstat == "answers":  # as if the limit had been given on qsub's command line
        site.pbs_script(walltime="09:00:00")
    else:
        (pbs.bin / "qstat").unlink()
    earliest = int(time.time())
    pbs.start().finish(60)
    latest = int(time.time())
    environ = (site.directory / "environ").read_text()
    (end,) = re.findall(r"^VERL_HPC_END_TIME=(\d+)$", environ, re.M)
    assert earliest <= int(end) - (3600 + 2 * 60 + 3) <= latest


@pytest.mark.parametrize("wrong", ["directory", "SCRIPT", "walltime"])
def test_a_job_that_could_not_submit_itself_again_or_has_no_limit_does_not_start(site, pbs, wrong):
    script = site.pbs_script()
    pbs.qsub(script, site.directory if wrong == "directory" else ROOT)
    messages = [f"SCRIPT={script}", "qsub from the checkout"]
    if wrong == "SCRIPT":  # the file has another name by now
        script.rename(site.directory / "other.pbs")
    elif wrong == "walltime":
        script.write_text(script.read_text().replace("#PBS -l walltime", "# walltime"))
        (pbs.bin / "qstat").unlink()
        messages = ["no walltime in qstat -f"]
    status, output = pbs.start().finish(60)
    assert status == 1
    assert all(message in output for message in messages), output
    assert not site.run.exists()


@pytest.mark.parametrize("kind", WORDS)
def test_each_kind_of_mpiexec_is_asked_in_its_own_words(site, kind):
    site.mpiexec("finished", 0, version=VERSIONS[kind])
    status, output = site.launch("seed=1", MPIEXEC=f"{site.environ['MPIEXEC']} -mine 2")
    assert status == 0, output
    words = site.words()
    options = WORDS[kind].replace("ATTEMPT", str(site.attempt)).split()
    assert words[: 2 + len(options)] == ["-n", "4", *options]
    command = words.index("bash")
    assert words[command - 2 : command] == ["-mine", "2"]
    train = f"{site.environ['PYTHON']} -m verl_hpc train --config run.yaml seed=1"
    assert words[-7:] == train.split()
    slots = " slots=2" if kind == "openmpi" else ""
    assert (site.attempt / "hosts").read_text() == f"n1{slots}\nn0{slots}\n"


def test_open_mpi_is_told_which_variables_travel(site):
    site.mpiexec("finished", 0, version=VERSIONS["openmpi"])
    site.launch(VERL_HPC_GPUS_PER_NODE="2", PBS_JOBID="1.s", NCCL_DEBUG="INFO", HOSTNAME="n1")
    words = site.words()
    told = {after for word, after in pairwise(words) if word == "-x"}
    assert {"PATH", "VERL_HPC_ATTEMPT", "VERL_HPC_GPUS_PER_NODE", "NCCL_DEBUG"} <= told
    assert not told & {"PBS_JOBID", "HOSTNAME", "PWD"}


@pytest.mark.parametrize("kind", ["mpich", "openmpi"])
def test_term_is_handed_on_as_what_makes_ranks_save(site, kind):
    site.mpiexec("restart", RESTART, VERSIONS[kind], before=WAITS)
    job = site.start()
    assert wait_until((site.directory / "mpiexec.up").exists, job, 60)
    job.send_signal(signal.SIGTERM)
    output, _ = job.communicate(timeout=60)
    assert job.returncode == RESTART, output
    said = (site.attempt / "mpiexec.log").read_text()
    assert said.split()[0] == {"mpich": "TERM", "openmpi": "USR2"}[kind]


@pytest.mark.parametrize(
    "outcome, left, status",
    [
        ("finished", 0, 0),
        ("stopped", 0, 0),
        ("restart", RESTART, RESTART),
        ("", 0, 1),  # rank 0 has not said that the run is over
        ("", RESTART, 1),  # MPICH makes 85 of one rank's 1 and another's 85
        ("finished", RESTART, 1),
        ("", 137, 137),
    ],
)
def test_the_status_tells_what_to_do_next(site, outcome, left, status):
    site.mpiexec(outcome, left, before="echo what mpiexec says")
    left_with, output = site.launch()
    assert left_with == status
    assert ("what mpiexec says" in output) == (status not in (0, RESTART))


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"HOSTFILE": "/none"}, "HOSTFILE=/none: cannot be read"),
        ({"HOSTFILE": ""}, "HOSTFILE=: cannot be read"),
        ({"HOSTFILE": "/dev/null"}, "HOSTFILE=/dev/null: names no host"),
        ({"PPN": "x"}, "PPN=x: every host has the same number of ranks"),
        ({"MPIEXEC": "/none"}, "set MPIEXEC_KIND to mpich, intel, openmpi or pals"),
        ({"MPIEXEC_KIND": "mpi"}, "MPIEXEC_KIND=mpi: "),
        ({"PYTHON": sys.executable}, "ConfigError: run.yaml"),
        ({"PYTHON": "/none/python"}, "PYTHON=/none/python: '/none/python' cannot be started"),
        ({"VERL_HPC_GPUS_PER_NODE": "x", "PPN": "2"}, "VERL_HPC_GPUS_PER_NODE=x: "),
        ({"VERL_HPC_END_TIME": "12:00"}, "VERL_HPC_END_TIME=12:00: "),
    ],
)
def test_what_cannot_be_started_is_refused_before_anything_is(site, changes, message):
    site.refuses(message, **changes)


def test_hosts_of_several_sizes_are_refused_unless_told_one(site):
    site.hosts.write_text("n0\nn0\nn1\n")
    site.refuses("PPN=1 or 2: ")
    assert (site.launch(PPN="8")[0], site.words()[:2]) == (RESTART, ["-n", "16"])


def test_a_line_that_is_no_host_is_refused(site):
    for line in ("n0:8", "n0 slots=8", "n0\r", "n0,n1", "n[0-1]", "\ufeffn0", "me@n0", "n0 # old"):
        site.hosts.write_text(f"n1\n{line}\n", newline="")
        site.refuses("write one host a line, and set PPN to the ranks of each")
        assert not site.run.exists(), line


def test_hosts_may_have_blanks_and_comments_and_come_from_a_pipe(site):
    site.hosts.write_text(" n1 \n\t# spare: n3\nn0\t")
    assert site.launch()[0] == RESTART
    assert (site.attempt / "hosts").read_text() == "n1\nn0\n"
    shown = f"HOSTFILE=<(printf 'n0\\nn0\\n') {SCRIPT} run.yaml"
    subprocess.run(["bash", "-c", shown], cwd=site.directory, env=site.environ, check=False)
    assert site.words()[:2] == ["-n", "2"]


def test_gpus_are_not_left_idle_unless_ppn_says_so(site):
    site.refuses("VERL_HPC_GPUS_PER_NODE=8: ", VERL_HPC_GPUS_PER_NODE="8")
    assert not site.run.exists()
    assert site.launch(VERL_HPC_GPUS_PER_NODE="8", PPN="2")[0] == RESTART
    assert site.launch(VERL_HPC_GPUS_PER_NODE="0")[0] == RESTART


def test_paths_begin_where_it_is_started(site):
    status, output = site.launch(HOSTFILE="hosts", PYTHON="./python", MPIEXEC="./mpiexec")
    assert status == RESTART, output
    assert site.words()[-6:] == ["./python", "-m", "verl_hpc", "train", "--config", "run.yaml"]
    environ = (site.directory / "environ").read_text().splitlines()
    assert {f"PWD={site.directory}", f"PYTHONPATH={ROOT}"} <= {*environ}


def test_each_start_has_its_own_logs_also_after_some_were_deleted(site):
    assert site.launch()[0] == RESTART
    site.mpiexec("", 0)
    assert site.launch()[0] == 1, "the outcome before is forgotten"
    for number in (7, 10):
        (site.run / f"job/attempts/{number}").mkdir()
    shutil.rmtree(site.run / "job/attempts/0")
    (site.run / "job/attempts/1").rename(site.run / "job/attempts/50.old")
    assert site.launch()[0] == 1
    assert (site.run / "job/attempts/latest").resolve() == site.run / "job/attempts/11"


@contextmanager
def held_elsewhere(run):
    """A run directory that a process of another machine holds, and says so all the time."""
    run.mkdir(exist_ok=True)
    with RunLock(run):
        holder = json.loads((run / LOCK).read_text())
    (run / LOCK).write_text(json.dumps(holder | {"host": "far", "boot": "another", "pid": 7}))
    over = threading.Event()

    def renew():
        while not over.wait(0.01):
            os.utime(run / LOCK)

    thread = threading.Thread(target=renew)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        (run / LOCK).unlink()


def test_a_run_that_is_under_way_refuses_a_second_start_and_loses_nothing(site):
    shutil.copy(ROOT / "configs/run/grpo_8b.yaml", site.directory / "run.yaml")
    words = [f"directory={site.directory}", "name=run"]
    assert site.launch(*words)[0] == RESTART
    (site.directory / "words").unlink()
    before = sorted(site.run.rglob("*"))
    with held_elsewhere(site.run):
        site.refuses("in use by process 7 on far", *words, PYTHON=sys.executable)
    assert sorted(site.run.rglob("*")) == before


def test_a_start_that_is_just_ending_keeps_its_outcome(site):
    held = f"touch {site.directory}/up; until [ -e {site.directory}/go ]; do sleep 0.01; done"
    site.mpiexec("", 0, before=f'echo finished >"$VERL_HPC_ATTEMPT/outcome"; {held}')
    first = site.start()
    assert wait_until((site.directory / "up").exists, first, 60)
    site.mpiexec("", 3)
    assert site.launch()[0] == 3
    (site.directory / "go").touch()
    output, _ = first.communicate(timeout=60)
    assert first.returncode == 0, output


def test_starts_at_the_same_moment_share_no_directory(site):
    together = 6
    site.write(
        "python",
        f"""cat >/dev/null
touch {site.directory}/here.$$
until here=({site.directory}/here.*); [ "${{#here[@]}}" = {together} ]; do :; done
echo {site.run}""",
    )
    ends = [job.communicate(timeout=60)[0] for job in [site.start() for _ in range(together)]]
    went_on = [output for output in ends if "ranks of each host" in output]
    refused = [output for output in ends if "another start of this run" in output]
    attempts = [path for path in (site.run / "job/attempts").iterdir() if not path.is_symlink()]
    assert len(went_on) == len(attempts)
    assert len(went_on) + len(refused) == together


RANK = """while [ "$1" != bash ]; do shift; done
PMI_RANK=0 "$@" || exit"""
"""What a stub of mpiexec does that starts one rank."""


def test_caches_are_below_a_directory_of_the_users_own(site):
    site.mpiexec("finished", 0, before=RANK)
    status, output = site.launch(TMPDIR=str(site.directory))
    assert status == 0, output
    cache = site.directory / f"verl_hpc-{os.getuid()}"
    assert cache.stat().st_mode & 0o777 == 0o700
    assert site.launch(TMPDIR=str(site.directory))[0] == 0


@pytest.mark.parametrize("kind", ["another user's", "link"])
def test_caches_of_somebody_else_are_not_run(site, kind):
    cache = site.directory / "cache"
    if kind == "link":
        (site.directory / "mine").mkdir()
        cache.symlink_to("mine")
    elif os.geteuid() == 0:
        cache.mkdir()
        os.chown(cache, 65534, 65534)
    else:
        cache = Path("/")
    site.mpiexec("finished", 0, before=RANK)
    status, output = site.launch(VERL_HPC_CACHE=str(cache))
    assert status != 0
    assert f"{os.uname().nodename}: VERL_HPC_CACHE={cache}: " in output
    assert "set VERL_HPC_CACHE to a directory" in output
    assert list(site.attempt.glob("*.rank0.log")) == []


@pytest.mark.parametrize("fault", ["VERL_HPC_CACHE=link", "VERL_HPC_ATTEMPT=/none"])
def test_a_host_that_cannot_start_its_rank_ends_those_of_others(site, fault):
    """MPICH waits forever for a rank that exits before MPI_Init."""
    site.write("python", f'[ "$1" != - ] || {{ cat >/dev/null; exec echo {site.run}; }}\nsleep 600')
    (site.directory / "cache").mkdir()
    (site.directory / "link").symlink_to("cache")
    # The shell of a rank reads this file.
    (site.directory / "of_the_host").write_text(f'[ -z "${{PMI_RANK#0}}" ] || export {fault}\n')
    site.hosts.write_text("n0\nn1\n")
    status, output = site.launch(
        MPIEXEC=f"{MPIEXEC} -launcher fork",
        BASH_ENV=str(site.directory / "of_the_host"),
        VERL_HPC_CACHE=str(site.directory / "cache"),
    )
    assert status != 0
    assert f"{os.uname().nodename}: {fault.partition('=')[0]}=" in output
