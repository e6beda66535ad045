"""The same job inside a container that hides the machine's root file system."""

import shutil
import sys
from pathlib import Path

import pytest

NODE_SCRATCH = "/tmp"
"""What the profile says."""


@pytest.fixture
def image(tmp_path):
    """A root file system with places for what is mounted, and nothing else: like an image whose
    Python is on a shared file system."""
    root = tmp_path / "image"
    (root / "proc").mkdir(parents=True)
    for name in ("dev", "sys", NODE_SCRATCH[1:]):
        (root / name).mkdir(parents=True)
    for path in (*mounted(), tmp_path):
        (root / path.relative_to("/")).mkdir(parents=True, exist_ok=True)
    for name in ("bin", "lib", "lib64"):
        if (Path("/") / name).is_symlink():  # into /usr
            (root / name).symlink_to((Path("/") / name).readlink())
    return root


def mounted():
    """The system's programs, and this environment with the interpreter that it was made from."""
    prefixes = {Path(sys.prefix), Path(sys.base_prefix)}
    inside = {p for p in prefixes if any(p != q and p.is_relative_to(q) for q in prefixes)}
    return [Path("/usr"), Path("/etc"), *sorted(prefixes - inside)]


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_ranks_in_a_container_are_requeued_from_outside(run, image, undisturbed):
    """They cannot see scontrol's configuration, and need not."""
    reward = run.config.with_name("reward.py")
    look = 'Path(__file__).with_name("seen").write_text(" ".join(os.listdir("/")))'
    reward.write_text(f"import os\n{reward.read_text()}\n{look}\n")
    mounts = ",".join(f"{path}:{path}:ro" for path in mounted())
    run.submit(
        "site.container.kind=bwrap",
        f"site.container.image={image}",
        f"site.container.mounts=[{mounts}]",
    )
    run.wait_for_step(1)
    run.signal("USR2")
    run.finish()
    seen = reward.with_name("seen").read_text().split()
    assert sorted(seen) == sorted(path.name for path in image.iterdir())
    assert Path("/srv").exists() and "srv" not in seen
    assert (run.restarts, run.attempts) == (1, 2)
    run.assert_equals(undisturbed)
