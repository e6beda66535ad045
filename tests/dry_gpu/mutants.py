"""Faults in verl_hpc's sources that the dry tier must notice, and a way to put one in."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import verl_hpc


@dataclass(frozen=True)
class Mutant:
    """A change of one place in a function."""

    module: str
    """Name below verl_hpc."""
    old: str
    new: str
    test: str
    """Module and function of the test that must fail, by `module.function`."""
    says: str
    """Pattern of its failure."""


def changed_text(mutant: Mutant) -> str:
    """Source of the module with the fault, of which the right place is there once."""
    file = Path(verl_hpc.__file__).parent / f"{mutant.module.replace('.', '/')}.py"
    text = file.read_text()
    assert text.count(mutant.old) == 1, f"{mutant.module}: not once: {mutant.old}"
    return text.replace(mutant.old, mutant.new)


def put_in(mutant: Mutant) -> None:
    """Change the code of the functions of this process, wherever they were imported to."""
    module = importlib.import_module(f"verl_hpc.{mutant.module}")
    changed = compile(changed_text(mutant), module.__file__ or "", "exec")
    codes = {code.co_qualname: code for code in _codes(changed)}
    for function in _functions(module):
        code = codes.get(function.__qualname__)  # none of what a dataclass adds
        if code is not None and code != function.__code__:
            function.__code__ = code


def _codes(code: CodeType) -> Iterator[CodeType]:
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield inner
            yield from _codes(inner)


def _functions(holder: ModuleType | type) -> Iterator[FunctionType]:
    """Yield the functions and methods that are defined in a module."""
    name = holder.__name__ if isinstance(holder, ModuleType) else holder.__module__
    for value in vars(holder).values():
        plain = _unwrapped(value)
        if isinstance(plain, FunctionType) and plain.__module__ == name:
            yield plain
        elif isinstance(plain, type) and plain.__module__ == name:
            yield from _functions(plain)


def _unwrapped(value: Any) -> Any:
    if isinstance(value, property):
        return value.fget
    if isinstance(value, cached_property):
        return value.func
    return getattr(value, "__wrapped__", value)


DENSE, VALUES = "test_training.test_dense_model", "test_training.test_value_head"
REFIT, ADAPTERS = "test_refit.test_dense_model", "test_refit.test_adapters"
MUTANTS = {
    "bounds of rows stay on the host": Mutant(
        "engines.shared.packing",
        "return to_device(ends, self.tokens.device)",
        "return ends",
        DENSE,
        "cpu",
    ),
    "bounds of rows in int64": Mutant(
        "engines.shared.packing",
        "dtype=torch.int32).cumsum(0, dtype=torch.int32)",
        "dtype=torch.int32).cumsum(0)",
        DENSE,
        "int64",
    ),
    "a longest sequence that is too short": Mutant(
        "engines.megatron.passes",
        "max_seqlen_q=max(row.lengths)",
        "max_seqlen_q=min(row.lengths) - 1",
        DENSE,
        "a sequence is longer",
    ),
    "the device is waited for in each row": Mutant(
        "engines.shared.packing",
        "tensor.to(device, non_blocking=True)",
        "tensor.to(device)",
        DENSE,
        "copy from the host: packing.to_device",
    ),
    "metrics are read one by one": Mutant(
        "engines.shared.outputs",
        "torch.stack([value.double() for _, value in flat]).tolist()",
        "[value.item() for _, value in flat]",
        DENSE,
        "item: outputs",
    ),
    "logits in float32": Mutant(
        "engines.megatron.passes",
        '{"fp32_output": False} if config.bf16 else {}',
        "{}",
        DENSE,
        "log_probs: ",
    ),
    "inputs of layers stay on the device": Mutant(
        "engines.megatron.host_activations",
        "        if not is_hidden or _memory(tensor) in self._weights:\n",
        "        if True:\n",
        "test_training.test_activations_on_the_host",
        r"\[0, 0\] == \(\[83886080\] \* 2",
    ),
    "inputs of layers are not looked for": Mutant(
        "engines.megatron.passes",
        "self._saving = HostActivations(weights, config.hidden_size).saving",
        "HostActivations(weights, config.hidden_size)",
        "test_training.test_activations_on_the_host",
        r"\[0, 0\] == \(\[83886080\] \* 2",
    ),
    "a host's collective over NCCL": Mutant(
        "engines.shared.groups",
        'self.replicas_gloo = _there(groups.mine(data.groups("dp"), "gloo"))',
        'self.replicas_gloo = _there(groups.mine(data.groups("dp")))',
        VALUES,
        "tensors are elsewhere",
    ),
    "weights are a copy of the parameters": Mutant(
        "engines.megatron.engine",
        "name: parameter.detach() for name, parameter",
        "name: parameter.detach().clone() for name, parameter",
        DENSE,
        r"\('', 6\.9",  # GB on the device before any step: 1.6 more than planned
    ),
    "the norms of queries and keys left out": Mutant(
        "engines.megatron.spec",
        "qk_layernorm=arch.qk_norm or latent,",
        "qk_layernorm=latent,",
        DENSE,
        "other parameters",
    ),
    "received weights are unpacked before they are there": Mutant(
        "transfer.exchange",
        "    for request in requests:\n        request.wait()\n",
        "",
        REFIT,
        "not done with",
    ),
    "own weights are copied on a stream of their own": Mutant(
        "transfer.execute",
        "            for to, frm in copy.copies:\n                to.copy_(frm)\n\n\ndef",
        "            with torch.cuda.stream(torch.cuda.Stream()):\n"
        "                for to, frm in copy.copies:\n                    to.copy_(frm)\n\n\ndef",
        REFIT,
        "not done with",
    ),
    "the base travels in every step": Mutant(
        "trainer.sync",
        "self._weights, receives = [], {}",
        "receives = {}",
        ADAPTERS,
        "'item: sums.compare': 2",
    ),
    "whole weights are merged at a time": Mutant(
        "trainer.arrival",
        "MERGED_ELEMENTS // into.shape[1]",
        "len(into)",
        ADAPTERS,
        "most in a refit",
    ),
}
"""Faults by name."""
