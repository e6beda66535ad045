"""Lets the pinned Megatron-core run without a GPU; does nothing on a GPU.

Megatron-core names its device ("cuda", `torch.cuda.current_device()`) in factory calls and compares
`param.type()` with CUDA type names. Patching torch itself would affect vLLM in the same process, so
an import hook compiles `megatron.core.*` from source with those tokens rewritten; line numbers
stay. Every rule is necessary, tested by removing it alone (see docs/cpu.md), except those of
`products` and `data_parallel`, which make a step faster.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import re
import sys
from collections.abc import Sequence
from types import CodeType, ModuleType

from verl_hpc.errors import ClusterError
from verl_hpc.runtime.versions import check_version

_Q = r"""(['"])"""
_RULES = [
    # torch.cpu mirrors these calls; torch.cpu.current_device() is the string "cpu".
    (r"torch\.cuda\.(current_device|synchronize|current_stream|stream|Stream)\b", r"torch.cpu.\1"),
    (r"device\s*=\s*" + _Q + r"cuda(?::0)?\1", "device='cpu'"),
    (r"torch\.device\(" + _Q + r"cuda\1\)", "torch.device('cpu')"),
    (_Q + r"torch\.cuda\.(Float|Half|BFloat16)Tensor\1", r"'torch.\2Tensor'"),
    (r"\.cuda\((?:non_blocking=True|torch\.cpu\.current_device\(\))?\)", ".cpu()"),
    (r"pin_memory\s*=\s*True", "pin_memory=False"),
    (r"\.cpu\(\)\.pin_memory\(\)", ".cpu().clone()"),
    (r"torch\.cuda\.(manual_seed|get_rng_state|set_rng_state)\b", r"torch.\1"),
]
"""Patterns and their replacements, in every module."""
_FROM_MEMORY = """
from verl_hpc.engines.megatron import data_parallel
dist_all_gather_func = data_parallel.all_gather
dist_reduce_scatter_func = data_parallel.reduce_scatter
"""
_RULES_OF_MODULE = {
    # The jit fuser is torch.compile, which wants a C++ tool chain at run time; importing
    # megatron.core applies it before its own switch can be turned.
    "megatron.core.jit": [(r"(?m)^enable_jit_fuser\(\)", "disable_jit_fuser()")],
    # Not to run at all, but to run faster.
    "megatron.core.tensor_parallel.layers": [
        (r"torch\.matmul\((total_input|input), weight\.t", r"products.matmul(\1, weight.t"),
        (r"grad_output\.matmul\(weight\)", "products.matmul(grad_output, weight)"),
        (r"\Z", "\nfrom verl_hpc.engines.megatron import products\n"),
    ],
    # Shares of different sizes, which NCCL gathers and gloo does not: experts that are split in
    # both ways.
    "megatron.core.tensor_parallel.mappings": [
        (r"torch\.distributed\.(all_gather\(output_tensor_list, input_), group=", r"uneven.\1, "),
        (
            r"torch\.distributed\.(reduce_scatter\(output, input_tensor_list), group=",
            r"uneven.\1, ",
        ),
        (r"\Z", "\nfrom verl_hpc.engines.megatron import uneven\n"),
    ],
    # Numbers of tokens become lists only on their way from a GPU.
    "megatron.core.transformer.moe.moe_utils": [
        (r"if torch\.is_tensor\(tensor\) and tensor\.is_cuda:", "if torch.is_tensor(tensor):"),
        (r"tensor\.record_stream\(torch\.cpu\.current_stream\(\)\)", "pass"),
    ],
    # torch.cpu's streams record no events.
    "megatron.core.transformer.moe.token_dispatcher": [
        (r"self\.d2h_event\.synchronize\(\)", "pass")
    ],
    "megatron.core.distributed.param_and_grad_buffer": [(r"\Z", _FROM_MEMORY)],
}


class _Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType | None:
        path = self.get_filename(fullname)
        text = importlib.util.decode_source(self.get_data(path))
        rewritten = text
        for pattern, replacement in _RULES + _RULES_OF_MODULE.get(fullname, []):
            rewritten = re.sub(pattern, replacement, rewritten)
        if rewritten == text:
            return super().get_code(fullname)  # untouched: the cached bytecode is right
        return self.source_to_code(rewritten.encode(), path)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith("megatron.core"):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


def install() -> None:
    """Import Megatron-core, without a GPU through the hook; before its first import.

    Raises:
        ClusterError: Megatron-core was imported before, or is another version than was checked.
    """
    import torch

    if any(isinstance(f, _Finder) for f in sys.meta_path):
        return
    if torch.cuda.is_available():
        _check()
        return
    if "megatron.core" in sys.modules:
        raise ClusterError(
            "megatron.core was imported before it was fitted to ranks without a GPU; put `import "
            "verl_hpc.engines.megatron` before its first import"
        )
    sys.meta_path.insert(0, _Finder())
    _check()
    _fork_cpu_generator()


def _check() -> None:
    """Import Megatron-core alone, and compare its version."""
    import megatron.core

    check_version("megatron-core", megatron.core.__version__, "0.16.1")


def _fork_cpu_generator() -> None:
    """Make the per-rank random-number tracker fork the CPU generator."""
    import megatron.core.tensor_parallel.random as random
    import torch

    def get_state(
        device: str = "cpu", clone: bool = False, graph_safe: bool = False
    ) -> torch.Tensor:
        del device, clone, graph_safe
        return torch.get_rng_state()

    def set_state(state: torch.Tensor, device: int = -1, graph_safe: bool = False) -> None:
        del device, graph_safe
        torch.set_rng_state(state)

    random._get_cuda_rng_state = get_state
    random._set_cuda_rng_state = set_state
