"""The kernels in use and their description; GPUs and Transformer Engine are stand-ins."""

import re
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from tests.unit.layout.models import moe
from verl_hpc.config.model import Fp8Config, ModelConfig, OptimizerConfig
from verl_hpc.engines.megatron import precision
from verl_hpc.engines.megatron.engine import MegatronEngine
from verl_hpc.errors import ClusterError
from verl_hpc.trainer import build, facts

BF16 = ModelConfig(path="x")


EXTENSION = "megatron.core.extensions.transformer_engine"


class WithCopies:
    """A layer of Transformer Engine's, which keeps copies in FP8."""

    def __init__(self):
        self._fp8_workspaces = {}


@pytest.fixture
def machine(monkeypatch):
    """`machine(gpu=, installed=, usable=)` pretends to be one."""

    def make(gpu=True, installed=True, usable=True, broken=None, lacks=""):
        monkeypatch.setattr(precision.torch.cuda, "is_available", lambda: gpu)
        monkeypatch.setattr(precision.importlib.util, "find_spec", lambda _: installed or None)
        monkeypatch.setattr(f"{EXTENSION}.HAVE_TE", usable)
        package = ModuleType("transformer_engine")
        package.__path__ = []
        monkeypatch.setitem(sys.modules, "transformer_engine", package)
        module = None if broken else ModuleType("transformer_engine.pytorch")
        monkeypatch.setitem(sys.modules, "transformer_engine.pytorch", module)
        base = SimpleNamespace(TransformerEngineBaseModule=WithCopies, _dummy_wgrads={})
        holder = SimpleNamespace(base=base)
        monkeypatch.setitem(sys.modules, "transformer_engine.pytorch.module", holder)
        for name in precision._NEEDED - vars(base).keys() - {"_fp8_workspaces"}:
            monkeypatch.setattr(f"{EXTENSION}.{name}", id)
        if lacks == "_dummy_wgrads":
            del base._dummy_wgrads
        elif lacks == "_fp8_workspaces":
            monkeypatch.setattr(WithCopies, "__init__", lambda self: None)
        elif lacks:
            monkeypatch.setattr(f"{EXTENSION}.{lacks}", None)

    return make


@pytest.mark.parametrize(
    "kind, why",
    [
        ({"gpu": False}, "no GPU"),
        ({"installed": False}, "Transformer Engine is not installed"),
        ({"broken": True}, "Transformer Engine cannot be imported: import of transformer_engine"),
        ({"usable": False}, "Megatron-core cannot use this version of Transformer Engine"),
        *(({"lacks": name}, f"this version .* no {name}") for name in sorted(precision._NEEDED)),
    ],
)
def test_why_pytorchs_layers_are_used(machine, kind, why):
    machine(**kind)
    layers = precision.describe_kernels(BF16)["training layers"]
    assert re.match(rf"PyTorch \({why}", layers)
    assert precision.choose_backend(BF16) == "local"


@pytest.mark.parametrize(
    "error, why",
    [
        (OSError(), "OSError"),
        (RuntimeError("\n"), "RuntimeError"),
        (AttributeError("no te\nat all"), "no te"),
        (AssertionError(), "AssertionError"),
    ],
)
def test_whatever_its_import_raises(machine, monkeypatch, error, why):
    machine()
    monkeypatch.delitem(sys.modules, "transformer_engine.pytorch")
    monkeypatch.setattr(sys, "meta_path", [_Failing(error), *sys.meta_path])
    layers = precision.describe_kernels(BF16)["training layers"]
    assert layers == f"PyTorch (Transformer Engine cannot be imported: {why})"


class _Failing:
    """A finder of modules that fails to find Transformer Engine's."""

    def __init__(self, error):
        self.error = error

    def find_spec(self, name, path, target=None):
        if name == "transformer_engine.pytorch":
            raise self.error


def test_transformer_engine_where_it_can_be_used(machine):
    machine()
    assert precision.describe_kernels(BF16)["training layers"] == "Transformer Engine"
    float32 = precision.describe_kernels(ModelConfig(path="x", dtype="float32"))
    assert float32["training layers"] == "PyTorch (model.dtype = float32)"


def test_attention_with_sinks_is_pytorchs(machine):
    machine()
    assert precision.choose_backend(BF16, moe("gpt_oss")) == "local"
    assert precision.choose_backend(BF16, moe()) == "transformer_engine"
    told = precision.describe_kernels(BF16, moe("gpt_oss"))
    assert told["training layers"] == "PyTorch (sinks in attention)"
    fp8 = BF16.model_copy(update={"fp8": Fp8Config()})
    with pytest.raises(ClusterError, match="model.fp8: the attention of a gpt_oss has sinks"):
        precision.choose_backend(fp8, moe("gpt_oss"))


@pytest.mark.parametrize(
    "kind, rank, device, said",
    [
        ({"usable": False}, 0, "cuda:0", ["layers are computed by PyTorch (Megatron-core cannot"]),
        ({"usable": False}, 1, "cuda:1", []),
        ({}, 0, "cuda:0", []),
        ({"gpu": False}, 0, "cpu", []),
    ],
)
def test_rank_0_says_that_a_gpu_goes_without(machine, monkeypatch, kind, rank, device, said):
    machine(**kind)
    heard = []
    monkeypatch.setattr(build._logger, "warning", lambda text, *a: heard.append(text % a))
    session = SimpleNamespace(
        world=SimpleNamespace(rank=rank, device=device),
        control=SimpleNamespace(together=lambda action: action()),
    )
    build._say_what_is_slow(session, BF16)
    assert len(heard) == len(said)
    assert all(text.startswith(words) for text, words in zip(heard, said, strict=True))


def test_versions_of_all_that_computes():
    found = facts.installed_versions()
    assert found["megatron-core"] == "0.16.1"
    assert {"torch", "vllm", "transformers", "mpi4py"} <= set(found)
    assert "transformer-engine" not in found


def test_versions_of_a_gpu(monkeypatch):
    cuda = facts.torch.cuda
    monkeypatch.setattr(cuda, "is_available", lambda: True)
    monkeypatch.setattr(cuda, "nccl", SimpleNamespace(version=lambda: (2, 29, 3)), raising=False)
    monkeypatch.setattr(cuda, "get_device_name", lambda: "H100")
    found = facts.installed_versions()
    assert (found["nccl"], found["gpu"]) == ("2.29.3", "H100")
    assert "cuda" in found


def test_moments_in_bfloat16_need_transformer_engine(machine):
    half = OptimizerConfig(moments="bfloat16")
    machine()
    precision.check_moments(half)
    machine(usable=False)
    with pytest.raises(ClusterError, match="moments = bfloat16 needs .* cannot use this version"):
        precision.check_moments(half)
    precision.check_moments(OptimizerConfig())
    precision.check_moments(None)


def test_copies_in_fp8_leave_with_the_parameters(monkeypatch):
    """A linear layer stands in for Transformer Engine's, which needs a GPU to be made."""
    linear = torch.nn.Linear(2, 2)
    linear._fp8_workspaces = {"weight": torch.zeros(2)}
    chunk = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Sequential(linear))
    engine = MegatronEngine.__new__(MegatronEngine)
    engine._chunks, engine.host = [chunk], SimpleNamespace(offload=lambda part, once: 7)
    for part, left in (("gradients", 1), ("optimizer", 1), ("parameters", 0)):
        assert engine.offload(part) == 7
        assert len(linear._fp8_workspaces) == left
