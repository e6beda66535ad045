"""Images of programs, entered by bubblewrap, and commands that score what programs leave."""

import fcntl
import os
import re
import shutil
import struct
import subprocess
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.agents.test_programs import LIMITS, finish, finish_all
from verl_hpc.agents.programs import ProgramJob, Programs, Scorer
from verl_hpc.errors import SandboxError

pytestmark = pytest.mark.skipif(
    not (shutil.which("bwrap") and shutil.which("mksquashfs")),
    reason="bubblewrap or squashfs-tools is not installed",
)


def libraries(*programs):
    """What programs need to start, as paths of this machine."""
    listed = subprocess.check_output(["ldd", *programs], text=True)
    return {*programs, *re.findall(r"(/\S+) \(", listed)}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A file system with a shell, and nothing else of this machine."""
    root = tmp_path_factory.mktemp("image") / "root"
    programs = [
        shutil.which(name) for name in ("sh", "cat", "ls", "chroot", "mkdir", "ln", "sleep")
    ]
    for file in libraries(*programs):
        (root / file[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, root / file[1:])
    for place in ("opt/tools/own", "home/of/somebody"):
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        (root / place).write_text("of the image\n")
    (root / "closed").mkdir(mode=0o555)
    (root / "link").symlink_to("opt")
    return root


@pytest.fixture(scope="module")
def images(root):
    """The three kinds of images, and one that is damaged."""
    squashfs = root.parent / "image.sqsh"
    words = ["mksquashfs", root, squashfs, "-quiet", "-no-progress", "-all-root"]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    whole, start = squashfs.read_bytes(), 40960
    # A header, a table of two: a definition file and the system; then what they hold.
    table = b"".join(
        struct.pack("<i?IIIqqqqqqq128s", kind, True, number, 1, 0, at, 1, 1, 0, 0, 0, 0, b"")
        + struct.pack("<iii372x", *more)
        for kind, number, at, more in [(0x4001, 1, 32768, (0, 0, 0)), (0x4004, 2, start, (1, 2, 0))]
    )
    head = struct.pack("<32s10s3s3s16s8q", b"#!/", b"SIF_MAGIC", b"01", b"02", b"", 0, 0, 0, 2,
                       4096, len(table), 32768, len(whole))  # fmt: skip
    apptainers = root.parent / "image.sif"
    apptainers.write_bytes((head.ljust(4096, b"\0") + table).ljust(start, b"\0") + whole)
    damaged = root.parent / "damaged.sif"
    damaged.write_bytes(apptainers.read_bytes()[: start + 100])
    return {"directory": root, "sqsh": squashfs, "sif": apptainers, "damaged": damaged}


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Where directories of a node are made."""
    temporary = tmp_path / "node"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    return temporary


def job_of(image, text, **more):
    words = ["sh", "-c", textwrap.dedent(text)]
    where = "bubblewrap", "none", None, [], LIMITS, str(image)
    return replace(ProgramJob(words, '{"a": 1}', os.devnull, "key", *where), **more)


SEES = """
    cat /link/tools/own own/data $VERL_HPC_ROW; pwd; ls /
    [ "$(ls /usr/share)" ] && [ ! -e /usr/share/new ] && echo mounted
    echo > /opt/tools/own; ls /proc/1/root/ 2>&1; chroot . /bin/true
    while read line; do case $line in CapP*|CapE*) echo $line;; esac; done </proc/self/status
    echo 0.5 > $VERL_HPC_SCORE
"""


@pytest.mark.parametrize("kind", ["directory", "sqsh", "sif"])
def test_a_program_sees_its_image_and_nothing_of_the_node(images, temporary, tmp_path, kind):
    (tmp_path / "own").mkdir()
    (tmp_path / "own/data").write_text("of the agent\n")
    programs = Programs(str(images[kind]))
    # /usr of the image has files, and no place for what is mounted below it.
    given = {"directory": str(tmp_path), "paths": ["/usr/share"]}
    ended = finish(programs.begin(job_of(images[kind], SEES, **given)))
    programs.close()
    assert (ended.ending, ended.status, ended.score) == ("exited", 0, "0.5\n"), ended
    said = ended.output
    assert said.startswith(f'of the image\nof the agent\n{{"a": 1}}{tmp_path}\n')
    assert "mounted" in said and "Permission denied" in said and "Operation not permitted" in said
    assert "Read-only file system" in said and "verl_hpc" not in said
    assert said.count("0000000000000000") == 2, "no capability is left"
    assert not [*temporary.iterdir()]


def test_an_image_is_unpacked_once_a_node_and_goes_with_its_last_holder(
    images, temporary, tmp_path, monkeypatch
):
    unsquashfs = shutil.which("unsquashfs")
    counted, own = tmp_path / "unsquashfs", tmp_path / "calls"
    counted.write_text(f'#!/bin/sh\necho call >> {own}\nexec {unsquashfs} "$@"\n')
    counted.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    ranks = [Programs(str(images["sif"])) for _ in range(2)]
    jobs = [job_of(images["sif"], "cat /opt/tools/own") for _ in range(6)]
    under_way = [rank.begin(job) for job in jobs for rank in ranks]
    assert {ended.output for ended in finish_all(under_way)} == {"of the image\n"}
    assert own.read_text() == "call\n"
    unpacked = [*temporary.glob("verl_hpc-image-*")]
    ranks[0].close()
    assert [*temporary.glob("verl_hpc-image-*")] == unpacked and len(unpacked) == 1
    ranks[1].close()
    assert not [*temporary.iterdir()]


def test_what_killed_processes_leave_the_next_one_removes(images, temporary):
    killed = Programs(str(images["sqsh"]))
    finish(killed.begin(job_of(images["sqsh"], "true")))
    killed._helper.process.kill()
    killed._helper.process.wait()
    os.close(killed._held.descriptor)  # as if this process were gone, too
    assert len([*temporary.iterdir()]) == 2
    others = temporary / "verl_hpc-of-others"
    others.mkdir()
    held = os.open(others, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_SH)
    programs = Programs()
    assert finish(programs.begin(replace(job_of("", "true"), image=None))).status == 0
    assert {*temporary.iterdir()} == {others, Path(programs.directory)}
    programs.close()
    os.close(held)


def test_images_that_cannot_be_entered_are_named(images, temporary, monkeypatch):
    programs = Programs(str(images["damaged"]))
    with pytest.raises(SandboxError, match="unsquashfs: .*failed"):
        finish(programs.begin(job_of(images["damaged"], "true")))
    programs.close()
    monkeypatch.setenv("PATH", "/nothing")
    programs = Programs(str(images["sif"]))
    with pytest.raises(SandboxError, match="install squashfs-tools, or name a directory"):
        finish(programs.begin(job_of(images["sif"], "true")))
    programs.close()
    assert not [*temporary.iterdir()]


# What a program leaves, and what scores it.

LEAVES = """
    mkdir -p of/mine; echo right > of/mine/answer; ln -s of link; : > empty
    echo 1 > $VERL_HPC_SCORE; echo forged > $VERL_HPC_ROW
    ls {hidden} 2>&1; (sleep 600; echo late > of/mine/answer) & exit {status}
"""
SCORES = """
    read answer < $HOME/link/mine/answer; read truth < truth; read row < $VERL_HPC_ROW
    ls $VERL_HPC_SCORE 2>/dev/null
    [ "$answer $row" = "$truth right" ] && echo 0.25 > $VERL_HPC_SCORE; exit {status}
"""


@pytest.mark.parametrize("with_image", [True, False])
def test_a_command_scores_what_a_program_has_left_and_cannot_have_forged(
    images, temporary, tmp_path, with_image
):
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "truth").write_text("right\n")
    image = str(images["directory"]) if with_image else None

    def scored(status=0, by_score=0):
        command = ["sh", "-c", SCORES.format(status=by_score)]
        leaves = LEAVES.format(hidden=hidden, status=status)
        scorer = Scorer(command, "right\n", str(hidden))
        job = replace(job_of("", leaves), image=image, scorer=scorer)
        return finish(programs.begin(job))

    programs = Programs(image)
    ended = scored()
    assert (ended.status, ended.score, ended.message) == (0, "0.25\n", ""), ended
    assert "No such file" in ended.output
    failed = scored(status=3)
    assert (failed.status, failed.score) == (3, None)
    failed = scored(by_score=4)
    assert (failed.status, failed.score, failed.message) == (4, None, "program.score: status 4")
    programs.close()
    assert not [*temporary.iterdir()]


def test_a_home_that_cannot_be_kept_is_named(temporary):
    scorer = Scorer(["true"], "", None)
    programs = Programs()
    job = job_of("", "for i in 1 2 3 4; do truncate -s 7M $i; done")
    ended = finish(programs.begin(replace(job, image=None, scorer=scorer)))
    programs.close()
    assert "cannot be kept for program.score: [Errno 27] File too large" in ended.message


ASKS_FOR_ALL = """
import os
print(len(os.sched_getaffinity(0)))
try:
    os.sched_setaffinity(0, {mine})
except OSError:
    pass
print(len(os.sched_getaffinity(0)))
"""


@pytest.mark.parametrize("sandbox", ["bubblewrap", "none"])
def test_processors(temporary, sandbox):
    programs = Programs()
    limits, mine = replace(LIMITS, cpus=1), len(os.sched_getaffinity(0))
    text = ASKS_FOR_ALL.format(mine=os.sched_getaffinity(0))
    job = job_of("", 'exec python -Sc "$0"')
    words = [*job.command, text]
    job = replace(job, command=words, image=None, sandbox=sandbox, limits=limits)
    # Without a filter of system calls a program may ask for more.
    after = "1" if sandbox == "bubblewrap" else str(mine)
    assert finish(programs.begin(job)).output == f"1\n{after}\n"
    programs.close()
