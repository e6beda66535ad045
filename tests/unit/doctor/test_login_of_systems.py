"""What doctor says on the login nodes of public systems, held against what is true of a stand-in.

The table is login_of_systems.txt. Each row breaks one thing: the check of its name must have the
state of the cell, and the others what they have where nothing is broken. A failure prints all of
it. What is said in words is in login_in_words.txt for one of the systems.
"""

import argparse
import json
import os
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.unit.cluster.requests import ROOT, RUN, write
from tests.unit.doctor import cluster, table
from tests.unit.doctor.cluster import ACCOUNTS, PARTITION, QOS, WITHOUT_TORCH, Refused
from tests.unit.doctor.table import SYSTEMS
from verl_hpc.cli import doctor
from verl_hpc.cli.main import main
from verl_hpc.cluster.job import plan_job
from verl_hpc.doctor import files, login
from verl_hpc.doctor.slurm import check_submission
from verl_hpc.errors import ConfigError
from verl_hpc.runs.verdict import Verdict
from verl_hpc.slurm import programs

TABLE = Path(__file__).with_name("login_of_systems.txt")
WORDS, SPOKEN = Path(__file__).with_name("login_in_words.txt"), "perlmutter_gpu"
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 1024,
    "intermediate_size": 4096, "num_hidden_layers": 16, "num_attention_heads": 16,
    "num_key_value_heads": 16, "vocab_size": 32000, "max_position_embeddings": 4096,
    "tie_word_embeddings": False, "rms_norm_eps": 1e-5,
}  # fmt: skip
SLURM = ("mpi", "partition", "nodes", "account", "qos", "sbatch", "pyxis", "edf")
"""Checks that ask Slurm."""
SEEN = ("site.check_paths=true",)
BARE = ("site.container={kind: bare}", "site.setup=[]")
"""Ranks in the node's own file system, with the Python that the login node has."""
IMAGE = "site.container={kind: apptainer, program: singularity, image: $PROJECT/a.sif"
CONTAINER = (f"{IMAGE}, mounts: [$PROJECT/data]}}", "site.setup=[]", *SEEN)
ENTERS = ("site.container={kind: bare}", "site.setup=[]", "site.python=enter $PROJECT/a.sif python")
EDF = ("site.container={kind: edf, image: a}", *SEEN)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The directory of a submission."""
    furnish(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    monkeypatch.setenv("PROJECT", str(tmp_path))
    monkeypatch.setenv("LOGNAME", "ann")
    for name in ("SLURM_STEP_ID", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def furnish(directory):
    """A run, its model, an image, data and environment definition files; again after a row."""
    for name in ("data", "home/.edf", "model/hf"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    write(directory / "run.yaml", RUN | {"checkpoint": {"keep": 2}})
    (directory / "model/manifest.json").write_text("{}")
    (directory / "model/hf/config.json").write_text(json.dumps(LLAMA))
    (directory / "a.sif").touch()
    for name in ("a", "verl_hpc"):
        edf = f'image = "{directory}/a.sif"\nmounts = ["{directory}:{directory}"]\n'
        (directory / f"home/.edf/{name}.toml").write_text(edf)


class Case:
    """A system's login node, which a row may break, and the words of the doctor's command line."""

    def __init__(self, system, words, directory, monkeypatch):
        self.cluster = cluster.healthy(system)
        self.words = (*words, "--cluster", str(ROOT / f"slurm/systems/{system}.yaml"))
        self.here, self.patch = directory, monkeypatch
        self.free(1e15)

    def nobody_may(self, mode, path):
        """Root may do everything, and tests run as root in containers."""
        there = files.os.access
        denied = lambda p, m: not (m & mode and str(p) == str(path)) and there(p, m)  # noqa: E731
        self.patch.setattr(files.os, "access", denied)

    def free(self, number):
        disk = SimpleNamespace(free=number)
        self.patch.setattr(files.shutil, "disk_usage", lambda path: disk)

    def verdicts(self):
        """What `doctor` says."""
        # The edges: programs are not here, or would take a process for each question.
        self.patch.setattr(programs.subprocess, "run", self.cluster.run)
        self.patch.setattr(programs.shutil, "which", self.cluster.which)
        try:
            request, has_config = asked(self.words, self.here)
            has_nodes = "--nodes" in self.words
            return list(login.check_login(request, has_config=has_config, has_nodes=has_nodes))
        except ConfigError as error:
            return [Verdict(str(error).partition(":")[0], "refused", str(error))]


@cache
def asked(words, directory):
    """What a command line asks for in a directory, and whether it names a run; read once."""
    del directory
    parser = argparse.ArgumentParser()
    doctor.add_arguments(parser)
    arguments = parser.parse_args(words)
    return doctor._request(arguments, doctor._profile(arguments)), arguments.config is not None


ACCOUNT = ("--account", "ACCOUNT")
CONFIG = (*ACCOUNT, "--config", "run.yaml")


def nothing(case):
    """The words alone make the row."""


def answer(command, text):
    return lambda case: case.cluster.answers.update({command: text})


def change(command, old, new):
    return lambda case: case.cluster.change(command, old, new)


def lose(name):
    return lambda case: case.cluster.lose(name)


def kinds(cores, gpus):
    """Nodes of other numbers, of every kind."""
    return answer("sinfo", f"{cores}|gpu:{gpus}")


def remove(name):
    return lambda case: (case.here / name).unlink()


def edf(text):
    return lambda case: [path.write_text(text) for path in (case.here / "home/.edf").iterdir()]


IN_IMAGE = (*ACCOUNT, *CONTAINER)
IN_EDF = (*ACCOUNT, *EDF)
OWN = (*ACCOUNT, *BARE, "site.python=python")
WRAPPED = (*ACCOUNT, *ENTERS)
OTHER = "PartitionName=other Default=NO State=UP MaxTime=1-00:00:00"
ELSEWHERE = 'image = "me/image:1"\nmounts = ["/scratch:/scratch"]\n'
TEN_MINUTES = "regular|00:10:00\nacc_ehpc|00:10:00\na100multi|00:10:00"
THEIRS = "lab|ACCOUNT|normal\nlab|other|regular,acc_ehpc,a100multi"
# What each row does to the system, and the words of its command line.
STATES = {
    "slurm: sbatch is not on PATH": (ACCOUNT, lose("sbatch")),
    "slurm: scancel is not on PATH": (ACCOUNT, lose("scancel")),
    "mpi: only none and pmi2 are offered":
        (ACCOUNT, answer("srun --mpi=list", "MPI plugin types are...\n\tnone\n\tpmi2")),
    "mpi: srun does not say": (ACCOUNT, answer("srun --mpi=list", Refused("no"))),
    "partition: it is down": (ACCOUNT, change(PARTITION, "=UP", "=DOWN")),
    "partition: at most ten minutes": (ACCOUNT, change(PARTITION, "1-00:00:00", "00:10:00")),
    "partition: fewer nodes than --nodes": ((*ACCOUNT, "--nodes", "65"), nothing),
    "partition: it does not exist": (ACCOUNT, answer(PARTITION, OTHER)),
    "partition: no answer":
        (ACCOUNT, answer(PARTITION, Refused("Unable to contact slurm controller"))),
    "nodes: fewer cores": (ACCOUNT, kinds(16, 8)),
    "nodes: fewer GPUs": (ACCOUNT, kinds(512, 2)),
    "account: of somebody else": (ACCOUNT, change(ACCOUNTS, "ACCOUNT|", "mine|")),
    "account: none is given": ((), nothing),
    "account: no accounting": (ACCOUNT, answer(ACCOUNTS, Refused("no slurmdbd"))),
    "qos: not yours": (ACCOUNT, answer(ACCOUNTS, "lab|ACCOUNT|normal\nlab|other|normal")),
    "qos: of another account of yours": (ACCOUNT, answer(ACCOUNTS, THEIRS)),
    "qos: at most ten minutes": (ACCOUNT, answer(QOS, TEN_MINUTES)),
    "sbatch: Slurm refuses the request":
        (ACCOUNT, answer("sbatch --test-only", Refused("allocation failure: Invalid qos"))),
    "edf: srun does not take --environment": (ACCOUNT, answer("srun --help", "--mpi=type")),
    "container: as shipped, with nothing there": (ACCOUNT, remove("home/.edf/verl_hpc.toml")),
    "container: the image is there": (IN_IMAGE, nothing),
    "container: no image": (IN_IMAGE, remove("a.sif")),
    "container: no image is seen from here":
        ((*ACCOUNT, *CONTAINER[:-1], "site.check_paths=false"), remove("a.sif")),
    "container: an image not to be read":
        (IN_IMAGE, lambda c: c.nobody_may(files.os.R_OK, c.here / "a.sif")),
    "container: a mount is missing": (IN_IMAGE, lambda c: (c.here / "data").rmdir()),
    "container: its program is not here": (IN_IMAGE, lose("singularity")),
    "container: an EDF": (IN_EDF, nothing),
    "container: no EDF": (IN_EDF, remove("home/.edf/a.toml")),
    "container: an EDF that is no TOML": (IN_EDF, edf("image: a")),
    "container: an EDF without its image": (IN_EDF, remove("a.sif")),
    "container: an EDF without a mount": (IN_EDF, edf(ELSEWHERE)),
    "python: as shipped": (ACCOUNT, nothing),
    "python: inside an image": (IN_IMAGE, nothing),
    "python: inside an EDF": (IN_EDF, nothing),
    "python: a step in another environment": ((*OWN, "site.srun_args=[--environment=a]"), nothing),
    "python: PATH of the profile decides": ((*OWN, "site.environment={PATH: /opt/bin}"), nothing),
    "python: setup decides": ((*OWN, "site.setup=[module load x]"), nothing),
    "python: of the login node": (OWN, nothing),
    "python: not there": (OWN, lose("python")),
    "python: a path, and it is not there":
        ((*ACCOUNT, *BARE, *SEEN, "site.python=/opt/venv/bin/python"), nothing),
    "python: a path not seen from here":
        ((*ACCOUNT, "site.container={kind: bare}", "site.python=/opt/venv/bin/python"), nothing),
    "python: without torch": (OWN, answer("python", WITHOUT_TORCH)),
    "python: it cannot import verl_hpc":
        (OWN, answer("python", Refused("ModuleNotFoundError: No module named 'yaml'"))),
    # What the login node's own Python lacks is no matter.
    "python: a wrapper": (WRAPPED, answer("python", WITHOUT_TORCH)),
    "python: a wrapper of one without torch": (WRAPPED, answer("enter", WITHOUT_TORCH)),
    "python: a wrapper that is not there": (WRAPPED, lose("enter")),
    "run directory: nobody may write it": (CONFIG, lambda c: c.nobody_may(files.os.W_OK, c.here)),
    "run directory: the disk is full": (CONFIG, lambda c: c.free(1e9)),
    "run directory: no quota is left": (CONFIG, answer("quota", "disk 999 1000 1000 0 50 0 0 0")),
    "model.path: it is not there": ((*CONFIG, *SEEN, *BARE, "model.path=nowhere"), nothing),
    "model.path: not seen from here": ((*CONFIG, *BARE, "model.path=nowhere"), nothing),
    "model.path: no mount shows it":
        ((*CONFIG, *CONTAINER, "model.path=/elsewhere/model"), nothing),
    "layout: more ways than GPUs":
        ((*CONFIG, "--nodes", "1", "parallel.tensor_parallel=3"), nothing),
}  # fmt: skip
FOLLOWS = {
    "slurm": SLURM,
    # Where there is no such partition, nobody can ask for its nodes.
    "partition": ("nodes",),
    "account: no accounting": ("qos",),
}


def verdicts(system, words, here, monkeypatch, harm=nothing):
    with monkeypatch.context() as patch:
        case = Case(system, words, here, patch)
        harm(case)
        found = case.verdicts()
    if harm is not nothing:
        furnish(here)
    return found


def test_doctor_says_of_every_system_what_is_true_of_it(here, monkeypatch):
    rows = table.parse(TABLE.read_text())
    assert [row.name for row in rows] == list(STATES)
    healthy = cache(lambda *case: table.states(verdicts(*case, here, monkeypatch)))
    cells, words = {}, ""
    for row in rows:
        given, harm = STATES[row.name]
        for heading, system in SYSTEMS.items():
            seen = verdicts(system, given, here, monkeypatch, harm)
            follows = FOLLOWS.get(row.name, FOLLOWS.get(row.check, ()))
            before = healthy(system, given)
            cells[row.name, heading] = table.cell(row, table.states(seen), before, follows)
            if system == SPOKEN:
                words += table.words(row, seen, here)
    text = table.shown(rows, cells)
    assert list(table.wrong(rows, cells)) == [], f"\n{text}"
    table.check_words(WORDS, words)


@pytest.mark.parametrize("system", SYSTEMS.values())
def test_the_command_asks_programs_on_path(here, monkeypatch, capsys, system):
    """The command itself asks the stand-ins, which are files on PATH here."""
    expected = table.states(verdicts(system, ACCOUNT, here, monkeypatch))
    assert "fails" not in expected.values()
    (here / "bin").mkdir()
    cluster.healthy(system).install(here / "bin")
    monkeypatch.setenv("PATH", f"{here / 'bin'}:{os.environ['PATH']}")
    profile = str(ROOT / f"slurm/systems/{system}.yaml")
    status = main(["doctor", "--cluster", profile, *ACCOUNT, "--json"])
    tree = json.loads(capsys.readouterr().out)
    assert {one["check"]: one["state"] for one in tree["verdicts"]} == expected
    assert (status, tree["ok"]) == (0, True)


def test_words_of_another_job_do_not_reach_the_test_of_sbatch(here, monkeypatch):
    """Typed within salloc, or with options of sbatch in the environment, as the job itself."""
    seen = []
    monkeypatch.setenv("SBATCH_RESERVATION", "mine")
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "500")
    request, _ = asked((*ACCOUNT, "--cluster", str(ROOT / "slurm/systems/roihu_gpu.yaml")), here)
    look = lambda _: seen.append(dict(os.environ)) or ""  # noqa: E731
    assert check_submission(plan_job(request), look).state == "ok"
    assert not {"SBATCH_RESERVATION", "SLURM_MEM_PER_NODE"} & set(seen[0])
    assert os.environ["SBATCH_RESERVATION"] == "mine"
