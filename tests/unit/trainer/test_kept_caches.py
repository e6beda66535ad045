"""Compile caches that a start finds and leaves; trouble with them ends no run."""

import os
from dataclasses import replace

import pytest

from tests.unit.config.trees import parse
from tests.unit.layout.models import architecture
from verl_hpc.placement.layouts import run_layouts
from verl_hpc.runtime import cache_archive
from verl_hpc.testing.local_run import local_session
from verl_hpc.trainer import kept_caches
from verl_hpc.trainer.kept_caches import open_caches

MODEL = architecture(vocab_size=128, max_positions=1024)
KERNEL = "inductor/3g/c3g.so"


@pytest.fixture
def start(tmp_path, monkeypatch):
    """The first rank of each node of a job, on a node with empty caches of its own."""
    monkeypatch.setenv("VERL_HPC_KEPT_CACHES", str(tmp_path / "kept"))
    num_started = 0

    def start(node=0, num_nodes=1, per_node=1, arch=MODEL, **changes):
        nonlocal num_started
        num_started += 1
        local = tmp_path / f"local{num_started}"
        monkeypatch.setenv("VERL_HPC_CACHE", str(local))
        size = num_nodes * per_node
        node_of = tuple(rank // per_node for rank in range(size))
        session = local_session()
        world = replace(session.world, node=node, node_of=node_of)
        layouts = run_layouts(parse(**changes), arch, size, ranks_per_node=per_node)
        caches = open_caches(replace(session, world=world), arch, layouts)
        caches.unpack()
        return caches, local

    return start


def compile_one(caches, local, name=KERNEL):
    """Compile a kernel, and keep what there is."""
    path = local / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"machine code")
    caches.pack()


def mine(tmp_path):
    return tmp_path / "kept" / f"verl_hpc-{os.getuid()}"


def archives(tmp_path):
    return sorted(path.name for path in mine(tmp_path).iterdir())


def test_none_are_kept_where_the_site_wants_none(monkeypatch):
    layouts = run_layouts(parse(), MODEL, 1)
    monkeypatch.setenv("VERL_HPC_CACHE", "/tmp/job")
    assert open_caches(local_session(), MODEL, layouts) is None


def test_the_next_start_finds_what_this_one_compiled(start, tmp_path):
    compile_one(*start())
    again, other = start()
    assert (other / KERNEL).read_bytes() == b"machine code"
    (name,) = archives(tmp_path)
    assert name.startswith("llama-")
    assert again.unpack() == f"files of compile caches: 1, from {mine(tmp_path) / name}"


def test_a_group_that_may_write_files_of_a_run_may_write_no_archive(start, tmp_path):
    before = os.umask(0o002)
    try:
        compile_one(*start())
    finally:
        os.umask(before)
    assert mine(tmp_path).stat().st_mode & 0o777 == 0o755
    assert [path.stat().st_mode & 0o777 for path in mine(tmp_path).iterdir()] == [0o644]


def test_it_is_due_after_fewer_and_fewer_steps(start):
    caches, _ = start()
    assert [step for step in range(1, 100) if caches.is_due()] == [1, 2, 4, 8, 16, 32, 64]


OTHER_WORK = [
    {"arch": replace(MODEL, hidden_size=2 * MODEL.hidden_size)},
    {"per_node": 2, "parallel__tensor_parallel": 2, "rollout__tensor_parallel": 2},
]


@pytest.mark.parametrize("changes", OTHER_WORK)
def test_another_model_or_layout_has_another_archive(start, tmp_path, changes):
    compile_one(*start())
    other, local = start(**changes)
    assert not (local / KERNEL).exists()
    compile_one(other, local)
    assert len(archives(tmp_path)) == 2


@pytest.mark.parametrize("name", ["_version", "_processor", "_gpu"])
def test_another_environment_or_device_has_another_archive(start, monkeypatch, name):
    compile_one(*start())
    monkeypatch.setattr(kept_caches, name, lambda _=None: "another")
    _, local = start()
    assert not (local / KERNEL).exists()


PIPELINES = {"parallel__pipeline_parallel": 2, "parallel__tensor_parallel": 2}


@pytest.mark.parametrize("changes, num_archives", [({}, 1), (PIPELINES, 2)])
def test_one_of_the_nodes_with_the_same_work_writes(start, tmp_path, changes, num_archives):
    """Four nodes of data-parallel ranks; or the two stages of two pipelines."""
    for node in range(4):
        compile_one(*start(node, 4, per_node=2, **changes), f"inductor/of_node{node}.so")
    assert len(archives(tmp_path)) == num_archives
    _, local = start(3, 4, per_node=2, **changes)
    assert len(list((local / "inductor").iterdir())) == 1


def make_trouble(kind, archive, monkeypatch):
    if kind == "damaged":
        archive.write_bytes(archive.read_bytes()[:100])
    elif kind == "open to all":
        archive.parent.chmod(0o777)
    elif kind == "another's":
        other = os.getuid() + 1
        monkeypatch.setattr(os, "getuid", lambda: other)
        archive = archive.parent.with_name(f"verl_hpc-{other}") / archive.name
        archive.parent.mkdir()
    elif kind == "no directory":
        archive.unlink()
        archive.parent.rmdir()
        archive.parent.write_text("in the way")
    else:
        monkeypatch.setattr(cache_archive.tempfile, "mkdtemp", _no_room)
    return archive


@pytest.mark.parametrize(
    "trouble", ["damaged", "open to all", "another's", "no directory", "no room"]
)
def test_trouble_is_a_line_and_the_run_goes_on(start, tmp_path, monkeypatch, caplog, trouble):
    compile_one(*start())
    (name,) = archives(tmp_path)
    archive = make_trouble(trouble, mine(tmp_path) / name, monkeypatch)
    caplog.set_level("WARNING")
    caches, local = start()
    assert f"compile caches: {archive} is not used: " in caplog.text
    assert not (local / KERNEL).exists()
    compile_one(caches, local)
    if trouble in ("damaged", "no room"):
        monkeypatch.undo()
        assert cache_archive.unpack(archive, tmp_path / "replaced") == {KERNEL}
    else:
        assert f"{archive} is not written: " in caplog.text


def _no_room(**_):
    raise OSError(28, "No space left on device")
