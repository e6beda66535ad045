"""Archives of compile caches: whole or ignored, kept few, and written by several at once."""

import hashlib
import io
import json
import multiprocessing
import os
import tarfile
from pathlib import Path

import pytest

from benchmarks.compile_caches import measure
from tests.unit.programs import umask
from verl_hpc.errors import ClusterError
from verl_hpc.runtime import cache_archive
from verl_hpc.runtime.cache_archive import (
    check_directory,
    make_node_directory,
    pack,
    remove_oldest,
    unpack,
)

NOTHING = frozenset()
KERNEL = "inductor/3g/c3g.so"


def write(root, **files):
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def read(root):
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*") if p.is_file()}


@pytest.fixture
def node(tmp_path):
    """The caches of a node that has compiled one kernel."""
    return write(tmp_path / "node", **{KERNEL: b"machine code"})


@pytest.fixture
def archive(tmp_path):
    (tmp_path / "shared").mkdir()
    return tmp_path / "shared/qwen2-0.tar"


def test_another_node_gets_what_one_has_compiled(node, archive, tmp_path):
    assert unpack(archive, tmp_path / "other") == NOTHING, "no archive is no trouble"
    names = pack(node, archive, NOTHING)
    os.utime(archive, (1e9, 1e9))
    assert unpack(archive, tmp_path / "other") == names == {KERNEL}
    assert archive.stat().st_mtime > 1e9, "unpacking is a use"
    assert read(tmp_path / "other") == {KERNEL: b"machine code"}
    assert list(archive.parent.iterdir()) == [archive]


def test_what_is_not_content_addressed_is_left(node, archive, tmp_path):
    left = ["torch_extensions/x/x.so", "flashinfer/build.ninja", "inductor/locks/c3g.lock"]
    left += ["triton/KEY/tmp.pid_7_x/k.cubin", "inductor/3g/.7.8.tmp"]
    write(node, **dict.fromkeys(left, b"of this place alone"))
    (node / "vllm").mkdir()
    (node / "vllm/link").symlink_to("/etc/passwd")
    assert pack(node, archive, NOTHING) == {KERNEL}


def test_nothing_is_written_where_nothing_is_new(node, archive):
    names = pack(node, archive, NOTHING)
    before = archive.stat().st_ino
    assert (pack(node, archive, names), archive.stat().st_ino) == (names, before)
    write(node, **{"vllm/x": b"more"})
    assert pack(node, archive, names) == names | {"vllm/x"}
    assert archive.stat().st_ino != before


def test_tritons_groups_name_the_files_beside_them(node, archive, tmp_path):
    group, other = "triton/KEY/__grp__kernel.json", tmp_path / "other"
    paths = {"kernel.cubin": str(node / "triton/KEY/kernel.cubin")}
    text = json.dumps({"child_paths": paths}).encode()
    write(node, **{"triton/KEY/kernel.cubin": b"x", group: text})
    pack(node, archive, NOTHING)
    unpack(archive, other)
    there = json.loads((other / group).read_text())["child_paths"]
    assert there == {"kernel.cubin": str(other / "triton/KEY/kernel.cubin")}


@pytest.mark.parametrize(
    "mask, mode", [(0o077, 0o600), (0o027, 0o640), (0o007, 0o640), (0o000, 0o644)]
)
def test_the_umask_says_who_may_read_it_and_nobody_else_may_write(node, archive, mask, mode):
    with umask(mask):
        pack(node, archive, NOTHING)
    assert archive.stat().st_mode & 0o777 == mode


def test_any_damage_is_seen_before_a_file_is_written(node, archive, tmp_path):
    pack(node, archive, NOTHING)
    whole = archive.read_bytes()
    cut = [whole[:n] for n in (0, 1, 31, 32, 600, len(whole) // 2, len(whole) - 1)]
    place = whole.index(b"machine code")
    flipped = whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]
    for data in [*cut, flipped, whole + b"\0"]:
        archive.write_bytes(data)
        with pytest.raises(ClusterError, match="it is damaged"):
            unpack(archive, tmp_path / "other")
    assert not (tmp_path / "other").exists()
    pack(node, archive, NOTHING)
    assert archive.read_bytes() == whole, "replaced by the next that has compiled"


def member(name, kind=tarfile.REGTYPE, target=""):
    found = tarfile.TarInfo(name)
    found.type, found.linkname, found.size = kind, target, 1 if kind == tarfile.REGTYPE else 0
    return found


LINKS = (
    (tarfile.SYMTYPE, "/etc/passwd"), (tarfile.LNKTYPE, "/etc/passwd"), (tarfile.CHRTYPE, ""),
    (tarfile.FIFOTYPE, ""), (tarfile.GNUTYPE_SPARSE, ""),
)  # fmt: skip
ELSEWHERE = ("../evil", "/tmp/evil", "inductor/../../evil", "inductor", "flashinfer/evil")
HOSTILE = [*map(member, ELSEWHERE), *(member("inductor/evil", *link) for link in LINKS)]


@pytest.mark.parametrize(
    "hostile", HOSTILE, ids=lambda hostile: f"{hostile.name} {hostile.type.decode()}"
)
def test_members_that_lead_elsewhere(archive, tmp_path, hostile):
    text = io.BytesIO()
    with tarfile.open(fileobj=text, mode="w") as tar:
        tar.addfile(member(KERNEL), io.BytesIO(b"x"))
        tar.addfile(hostile, io.BytesIO(b"x"))
    data = text.getvalue()
    archive.write_bytes(data + hashlib.sha256(data).digest())
    other = tmp_path / "deep/other"
    with pytest.raises((ClusterError, tarfile.TarError)):
        unpack(archive, other)
    assert read(tmp_path / "deep") == {}, "nothing of it, and nothing is left behind"


def test_a_reader_goes_on_with_what_it_has_opened(node, archive, tmp_path, monkeypatch):
    pack(node, archive, NOTHING)
    check = cache_archive._check_digest
    monkeypatch.setattr(cache_archive, "_check_digest", lambda f: check(f) or archive.unlink())
    assert unpack(archive, tmp_path / "other") == {KERNEL}


@pytest.fixture
def full_disk(monkeypatch):
    """Make a function of tarfile fail as on a full disk, after it has begun a file."""

    def fill(name):
        def full(self, member, path, *_, **__):
            if name == "makefile":
                Path(path).write_bytes(b"mach")
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(tarfile.TarFile, name, full)

    return fill


def test_a_disk_that_fills_up_leaves_no_part_of_a_file(node, archive, tmp_path, full_disk):
    pack(node, archive, NOTHING)
    full_disk("makefile")
    with pytest.raises(OSError, match="No space left"):
        unpack(archive, tmp_path / "other")
    assert read(tmp_path / "other") == {}


def test_a_failed_write_leaves_the_archive_before(node, archive, full_disk):
    names = pack(node, archive, NOTHING)
    whole = archive.read_bytes()
    write(node, **{"vllm/x": b"more"})
    full_disk("add")
    with pytest.raises(OSError, match="No space left"):
        pack(node, archive, names)
    assert (archive.read_bytes(), list(archive.parent.iterdir())) == (whole, [archive])


def write_often(root, archive):
    for _ in range(20):
        pack(root, archive, NOTHING)


def test_a_reader_among_two_writers_has_one_of_their_archives(archive, tmp_path):
    """Each has files of its own, all with the same bytes."""
    content = {}
    for who in ("one", "two"):
        names = [f"inductor/{who}{number}.so" for number in range(20)]
        content[who] = dict.fromkeys(names, who.encode() * 10_000)
        write(tmp_path / who, **content[who])
    pack(tmp_path / "one", archive, NOTHING)
    start = multiprocessing.get_context("fork").Process
    writers = [start(target=write_often, args=(tmp_path / w, archive)) for w in content]
    for writer in writers:
        writer.start()
    reads = 0
    while any(writer.is_alive() for writer in writers) or not reads:
        other = tmp_path / f"other{reads}"
        unpack(archive, other)
        assert read(other) in content.values()
        reads += 1
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert list(archive.parent.iterdir()) == [archive]


def test_the_oldest_by_use_are_removed_and_the_newest_stays(tmp_path):
    for age, name in enumerate(["new.tar", "killed.part", "old.tar", "notes.txt"]):
        (tmp_path / name).write_bytes(b"x" * 100)
        os.utime(tmp_path / name, (1e9 - age, 1e9 - age))
    expected = [(300, 4), (299, 3), (100, 2), (0, 2)]
    for most, left in expected:
        remove_oldest(tmp_path, most)
        assert len(list(tmp_path.iterdir())) == left
    assert {path.name for path in tmp_path.iterdir()} == {"new.tar", "notes.txt"}


def test_caches_that_are_too_large_are_not_kept(node, archive, monkeypatch):
    monkeypatch.setattr(cache_archive, "LARGEST", 11)
    archive.write_bytes(b"what an earlier start has kept")
    with pytest.raises(ClusterError, match=r"are kept at most; the next start begins anew"):
        pack(node, archive, NOTHING)
    assert not archive.exists()


def test_a_list_of_tritons_that_is_none_spoils_nothing(node, archive, tmp_path):
    write(node, **{"triton/KEY/__grp__kernel.json": b"[]", "inductor/a.so": b"x"})
    pack(node, archive, NOTHING)
    with pytest.raises(ClusterError, match="no list of Triton's files"):
        unpack(archive, tmp_path / "other")
    assert not list((tmp_path / "other").rglob("*.so"))


def test_a_directory_into_which_anybody_may_write(tmp_path):
    check_directory(tmp_path)
    tmp_path.chmod(0o1777)
    with pytest.raises(ClusterError, match=r"anybody may write into .*; `chmod o-w"):
        check_directory(tmp_path)


def test_the_directory_of_a_node_is_made_and_nobody_elses(tmp_path, monkeypatch):
    """On a node that others use, too, anybody can guess its name and be first."""
    name = {"VERL_HPC_CACHE": str(tmp_path / "scratch/verl_hpc-7")}
    make_node_directory(name)
    make_node_directory(name)
    assert Path(name["VERL_HPC_CACHE"]).stat().st_mode & 0o777 == 0o700
    other = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: other)
    with pytest.raises(ClusterError, match=r"belongs to user .*another node_scratch"):
        make_node_directory(name)
    (tmp_path / "file").touch()
    with pytest.raises(ClusterError, match="cannot be made .*set node_scratch"):
        make_node_directory({"VERL_HPC_CACHE": str(tmp_path / "file/x")})
    make_node_directory({})


@pytest.mark.slow
def test_a_start_with_an_archive_compiles_nothing(tmp_path):
    found = measure(tmp_path)
    assert found["cold"]["compiled"] > 0
    assert (found["kept"]["compiled"], found["kept"]["found"]) == (0, found["cold"]["compiled"])
    assert found["kept"]["new files"] == 0
