"""Bring a model of a hub into its cache: only the files that a run reads, and all of them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from verl_hpc.errors import ModelError
from verl_hpc.layout.safetensors import safetensors_shard_map
from verl_hpc.sources.cache import HubName, hf_cache, modelscope_caches, parse_name

INDEX = "model.safetensors.index.json"
_SMALL = ("*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken")
_WEIGHTS = ("model.safetensors", "model-*.safetensors", "adapter_model.safetensors")
_OTHER_WEIGHTS = ("pytorch_model*.bin", "*.gguf", "*.pth")


@dataclass(frozen=True)
class Fetched:
    """A model that is whole on disk."""

    directory: Path
    num_bytes: int
    num_tensors: int
    """0 where the repository has no weights, a tokenizer's for example."""


def fetch(text: str) -> Fetched:
    """Download what is missing of a model, and check that every file of its weights is whole.

    An interrupted download is resumed.

    Args:
        text: ORG/NAME, ORG/NAME@REVISION, either with `hf:` or `modelscope:` before it.

    Raises:
        ModelError: not a name, no such repository or access to it, no network, no room, or no
            weights that can be read.
    """
    name = parse_name(text)
    if name is None:
        raise ModelError(
            f"{text}: not the name of a model; give ORG/NAME, ORG/NAME@REVISION, or "
            "modelscope:ORG/NAME (docs/models.md has the families that are supported; older names "
            "of the hub, such as gpt2 of openai-community/gpt2, are given with their ORG)"
        )
    directory = _from_modelscope(name) if name.hub == "modelscope" else _from_hf(name)
    return _checked(directory)


def _checked(directory: Path) -> Fetched:
    has_weights = any(directory.glob("*.safetensors")) or (directory / INDEX).is_file()
    tensors = safetensors_shard_map(directory).tensors if has_weights else {}
    files = [file for file in directory.iterdir() if file.is_file()]
    return Fetched(directory, sum(file.stat().st_size for file in files), len(tensors))


def _from_hf(name: HubName) -> Path:
    try:
        from huggingface_hub import HfApi, snapshot_download
    except ImportError:
        raise ModelError(
            f"{name}: fetching needs the package huggingface_hub; install it here, or bring the "
            "model's directory by other means and give its path"
        ) from None
    with _readable_errors(name):
        info = HfApi().model_info(name.repo, revision=name.revision)
        files = wanted_files(name, [file.rfilename for file in info.siblings or []])
        # A branch's or a tag's name is recorded with the commit that it is now.
        revision = name.revision or "main"
        directory = snapshot_download(
            name.repo, revision=revision, cache_dir=hf_cache(), allow_patterns=files
        )
    return Path(directory)


def wanted_files(name: HubName, files: Iterable[str]) -> list[str]:
    """Files of a repository that a run reads: none below a folder, and no second copy of weights.

    Args:
        name: for messages.
        files: all files of the repository.

    Raises:
        ModelError: weights only in other formats, or nothing that a run would read.
    """
    top = [file for file in files if "/" not in file]
    weights, others, small = (
        sorted(file for file in top if any(fnmatch(file, pattern) for pattern in patterns))
        for patterns in (_WEIGHTS, _OTHER_WEIGHTS, _SMALL)
    )
    if others and not weights:
        raise ModelError(
            f"{name}: no safetensors in it, only {', '.join(others[:3])}; convert it with "
            "transformers' save_pretrained, and give the directory's path"
        )
    if not small and not weights:
        raise ModelError(f"{name}: no file in it that a run would read")
    return sorted({*small, *weights})


@contextmanager
def _readable_errors(name: HubName) -> Iterator[None]:
    """Turn the library's errors into ones that say what to do and never contain a token."""
    from huggingface_hub import constants, errors

    if constants.HF_HUB_OFFLINE:
        raise ModelError(
            f"{name}: HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set, which forbids the network; "
            "unset it for this command"
        )
    try:
        yield
    except errors.GatedRepoError:
        raise ModelError(
            f"{name}: its publisher has to let you in: accept the terms on the model's page, and "
            "export HF_TOKEN (or run `hf auth login`) before you fetch"
        ) from None
    except errors.RevisionNotFoundError:
        raise ModelError(f"{name}: the repository has no such branch, tag or commit") from None
    except errors.RepositoryNotFoundError:
        raise ModelError(
            f"{name}: no such repository, or it is private: correct the name, or export HF_TOKEN"
        ) from None
    except (errors.HfHubHTTPError, errors.LocalEntryNotFoundError) as error:
        raise _no_answer(name, constants.ENDPOINT, error) from None
    except Exception as error:  # the client's library has errors of its own for networks
        if type(error).__module__.startswith(("httpx", "httpcore", "requests")):
            raise _no_answer(name, constants.ENDPOINT, error) from None
        if isinstance(error, OSError):
            raise ModelError(
                f"{name}: cannot be written into {hf_cache()} ({error.strerror}); make room, or "
                "set HF_HOME to a larger file system, here and in jobs"
            ) from None
        raise


def _no_answer(name: HubName, endpoint: str, error: Exception) -> ModelError:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return ModelError(
        f"{name}: {endpoint} does not give it: {lines[0][:300]}. Fetch on a node with network; "
        "what has arrived is kept; run the same command again to continue"
    )


def _from_modelscope(name: HubName) -> Path:
    try:
        from modelscope import snapshot_download  # type: ignore[import-not-found]
    except ImportError:
        raise ModelError(
            f"{name}: fetching needs the package modelscope, which is not installed; install it "
            f"here, or fetch {name.repo} from Hugging Face"
        ) from None
    patterns = [*_SMALL, "*.safetensors"]
    options: dict[str, Any] = {"revision": name.revision} if name.revision else {}
    try:
        path = snapshot_download(name.repo, allow_file_pattern=patterns, **options)
    except Exception as error:  # the package raises errors of many libraries
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
        raise ModelError(f"{name}: ModelScope does not give it: {reason}") from None
    if not any(Path(path).is_relative_to(root) for root in modelscope_caches()):
        raise ModelError(
            f"{name}: was put into {path}, where runs do not look; give that path as the model's, "
            f"or set MODELSCOPE_CACHE (now {os.environ.get('MODELSCOPE_CACHE', 'not set')})"
        )
    return Path(path)
