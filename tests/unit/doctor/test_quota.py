"""Quotas, from what the tools print. Here is neither Lustre nor a kernel with quotas: stand-ins."""

import math
import os

import pytest

from tests.unit.programs import program
from verl_hpc.doctor import quota as module
from verl_hpc.doctor.quota import Quota, parse_quotas, read_quotas
from verl_hpc.errors import ClusterError

GB = 10**6  # KiB
LFS = "     /scratch  {used} 0 {limit} - {files} 0 {most} -\n"
QUOTA = """Disk quotas for user alice (uid 1000):
     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace
 server:/export/home  3072*   1000   20000 1790000000       4       0       0       0
"""


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """`tools("lustre", lfs=script)`: this kind of file system, these programs alone on PATH."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))

    def put(kind, **scripts):
        for name, script in {"stat": f"echo {kind}", **scripts}.items():
            program(tmp_path / "bin" / name, script)

    return put


def lfs(project=0, used=10 * GB, limit=50 * GB, files=7, most=0):
    """Limits of the project, or else of the user."""
    limited = "-p" if project else "-u"
    row = LFS.format(used=used, limit=limit, files=files, most=most)
    other = LFS.format(used=used, limit=0, files=files, most=0)
    return f"""
if [ "$1" = project ]; then echo "  {project} P $3"
elif [ "$3" = {limited} ]; then echo '{row}'
else echo '{other}'; fi"""


def test_lustre(tools, tmp_path):
    tools("lustre", lfs=lfs())
    (quota,) = read_quotas(tmp_path)
    assert quota == Quota(f"user {os.getuid()}", 10 * GB * 1024, 50 * GB * 1024, 7, None)
    assert (quota.free_bytes, quota.free_files) == (40 * GB * 1024, math.inf)


def test_a_project_of_lustre(tools, tmp_path):
    tools("lustre", lfs=lfs(project=1001, most=20))
    (quota,) = read_quotas(tmp_path)
    assert (quota.whose, quota.free_files) == ("project 1001", 13)


def test_a_file_system_with_quota_tools(tools, tmp_path):
    tools("nfs", quota=f"[ $1 = --user ] && echo '{QUOTA}'; exit 1")
    (quota,) = read_quotas(tmp_path)
    assert (quota.used_bytes, quota.limit_bytes) == (3072 * 1024, 20000 * 1024)
    assert (quota.used_files, quota.limit_files) == (4, None)


def test_no_quota_is_none(tools, tmp_path):
    tools("ext2/ext3", quota="echo 'Disk quotas for user root (uid 0): none'")
    assert read_quotas(tmp_path) == []


def test_rows():
    """One that is wrapped, one of a soft limit alone, and words."""
    for text, limits in (
        ("/a/very/long/name\n   2048 0 4096 - 1 0 0 -", [4096 * 1024]),
        ("/s [2048] 1024 0 - 1 0 0 -", [1024 * 1024]),
        ("Some errors happened when getting quota info.", []),
    ):
        assert [quota.limit_bytes for quota in parse_quotas(text, "user")] == limits


@pytest.mark.parametrize(
    ("kind", "scripts", "words"),
    [
        ("lustre", {}, "lfs is not on PATH"),
        ("nfs", {"quota": "echo 'cannot connect' >&2; exit 2"}, "cannot connect"),
        ("lustre", {"lfs": "exit 3"}, "exit status 3"),
    ],
)
def test_tools_that_do_not_tell(tools, tmp_path, kind, scripts, words):
    tools(kind, **scripts)
    with pytest.raises(ClusterError, match=words):
        read_quotas(tmp_path)


def test_a_tool_that_hangs(tools, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_TIMEOUT_S", 0.2)
    tools("nfs", quota="exec /bin/sleep 9")
    with pytest.raises(ClusterError, match="quota did not answer"):
        read_quotas(tmp_path)
