"""Import Transformer Engine's own Python, over the kernels of `te_kernels`.

The package `transformer_engine` of the index is Python alone; with NVTE_PROJECT_BUILDING it does
not look for its compiled parts. Names and shapes of parameters, arguments, the choice of attention
and what is saved for the backward pass are its own.
"""

from __future__ import annotations

import os
import re
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # before there is a Triton that is none

from tests.dry_gpu import te_kernels

_TRITON = ("triton", "triton.language", "triton.language.core", "triton.language.standard")


def install(directory: Path) -> None:
    """Make `transformer_engine.pytorch` importable.

    Args:
        directory: holds the package, put there by `launch/install.sh VENV dry_gpu`.
    """
    package = directory / "transformer_engine"
    assert package.is_dir(), f"{package} is not there; make dry-gpu installs it"
    os.environ["NVTE_PROJECT_BUILDING"] = "1"
    sys.path.append(str(directory))
    text = "".join(file.read_text() for file in (package / "pytorch").rglob("*.py"))
    names = sorted(set(re.findall(r"\btex\.([A-Za-z]\w+)", text)))
    sys.modules["transformer_engine_torch"] = te_kernels.module(names)
    before = {name: sys.modules.get(name) for name in _TRITON}
    sys.modules.update({name: _Hollow(name) for name in _TRITON})
    # It asks for onnxscript, which nothing here needs.
    name = "transformer_engine.pytorch.onnx_extensions"
    sys.modules[name] = _Hollow(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it misses its compiled part
        import transformer_engine.common as common

        common.load_framework_extension = lambda *_: None
        import transformer_engine.pytorch  # noqa: F401
        from transformer_engine.pytorch.triton import permutation

    for name, kernel in te_kernels.PERMUTATIONS.items():
        setattr(permutation, name, te_kernels.counted(kernel))
    for name, was in before.items():
        del sys.modules[name]
        if was is not None:
            sys.modules[name] = was
    _take_fake_tensors()


def _take_fake_tensors() -> None:
    """Attention is chosen by the very class of its inputs."""
    from transformer_engine.pytorch.attention.dot_product_attention import utils

    init = utils.AttentionParams.__init__

    def of_tensors(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        if self.qkv_type.__name__ == "FakeTensor":
            self.qkv_type = torch.Tensor

    utils.AttentionParams.__init__ = of_tensors


class _Hollow(types.ModuleType):
    """A module of which everything is imported and nothing is run."""

    __version__ = "3.7.1"

    def __getattr__(self, name: str) -> Any:
        return _member(f"{self.__name__}.{name}")

    def __call__(self, *args: Any, **_: Any) -> Any:
        """A decorator leaves a function as it is, with arguments or without."""
        return args[0] if args and callable(args[0]) else self


def _member(name: str) -> _Hollow:
    if name.rpartition(".")[2].startswith("__"):
        raise AttributeError(name)
    return _Hollow(name)
