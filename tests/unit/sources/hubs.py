"""Caches of hubs, made by hand as their libraries lay them out."""

import shutil
from pathlib import Path

COMMIT, OTHER = "0123456789abcdef" * 2 + "01234567", "f" * 40


def hf_repository(cache: Path, repo: str, commit: str, files: dict[str, bytes], ref="main"):
    """A repository in a cache of Hugging Face's Hub, with one snapshot more."""
    directory = cache / f"models--{repo.replace('/', '--')}"
    snapshot = directory / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (directory / "blobs").mkdir(exist_ok=True)
    for name, data in files.items():
        blob = directory / "blobs" / f"{commit[:4]}-{name}"
        blob.write_bytes(data)
        (snapshot / name).symlink_to(Path("../../blobs") / blob.name)
    if ref:
        (directory / "refs").mkdir(exist_ok=True)
        (directory / "refs" / ref).write_text(commit)
    return snapshot


def hf_model(cache: Path, repo: str, commit: str, model: Path, ref="main"):
    """Add a snapshot of a model's directory to a cache of Hugging Face's Hub."""
    files = {path.name: path.read_bytes() for path in model.iterdir()}
    return hf_repository(cache, repo, commit, files, ref)


def modelscope_repository(root: Path, repo: str, model: Path | None = None, version=None):
    """A model in a cache of ModelScope; `version` is the text of its .mv."""
    directory = root / repo
    directory.mkdir(parents=True)
    if model is not None:
        shutil.copytree(model, directory, dirs_exist_ok=True)
    if version is not None:
        (directory / ".mv").write_text(version)
    return directory
