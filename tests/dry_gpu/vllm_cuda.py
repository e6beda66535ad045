"""vLLM's choices on CUDA, made by its own Python without its compiled parts.

Arguments are checked as on an H100; the model is built of the layers, with the quantisation and the
kernels that CUDA chooses, and its parameters may be written into. The engine around it, its
kernels, graphs and samplers are not there.
"""

from __future__ import annotations

import sys
import types
from types import SimpleNamespace
from typing import Any

import torch

from tests.dry_gpu import torch_cuda
from tests.dry_gpu.device import lock

_COMPILED = (
    "vllm_flash_attn._vllm_fa2_C",
    "vllm_flash_attn._vllm_fa3_C",
    "_C_stable_libtorch",
    "_moe_C_stable_libtorch",
    "_qutlass_C",
)
_NAMESPACES = ("_C", "_moe_C", "_vllm_fa2_C", "_vllm_fa3_C", "_C_cache_ops", "_C_custom_ar")


def install() -> None:
    """Make this process's vLLM one for CUDA; before anything of it asks for its platform."""
    for name in _COMPILED:
        sys.modules[f"vllm.{name}"] = types.ModuleType(f"vllm.{name}")
    import vllm.platforms as platforms

    assert platforms._current_platform is None, "vLLM has asked for its platform already"
    platforms.resolve_current_platform_cls_qualname = lambda: "vllm.platforms.cuda.CudaPlatform"
    import vllm.platforms.cuda as cuda

    cuda.CudaPlatform = cuda.NonNvmlCudaPlatform
    assert platforms.current_platform.is_cuda(), platforms.current_platform
    _accelerator()
    _without_triton()
    _supported()
    _communicators()


def _accelerator() -> None:
    accelerator: Any = torch.accelerator
    accelerator.is_available = lambda *_: True
    accelerator.current_accelerator = lambda *_, **__: torch.device("cuda")
    accelerator.current_device_index = lambda: 0
    accelerator.device_count = torch.cuda.device_count
    accelerator.memory_stats = lambda *_: {}
    for name in ("set_device_index", "synchronize", "empty_cache", "reset_peak_memory_stats"):
        setattr(accelerator, name, lambda *_: None)
    for name in ("memory_allocated", "memory_reserved"):
        setattr(accelerator, name, getattr(torch.cuda, name))
        setattr(accelerator, f"max_{name}", getattr(torch.cuda, f"max_{name}"))
    accelerator.get_memory_info = lambda *_: torch.cuda.mem_get_info()


def _without_triton() -> None:
    import vllm.triton_utils as triton_utils

    triton_utils.triton.Config = lambda kwargs=None, **more: SimpleNamespace(
        kwargs=kwargs or {}, num_warps=more.get("num_warps", 4), num_stages=2
    )


def _supported() -> None:
    """What the compiled parts say of themselves on Hopper."""
    import vllm._custom_ops as ops
    import vllm.device_allocator.cumem as cumem

    cumem.cumem_available = True
    ops.cutlass_scaled_mm_supports_block_fp8 = lambda _: True
    ops.cutlass_scaled_mm_supports_fp8 = lambda _: True
    ops.cutlass_group_gemm_supported = lambda _: True


def _communicators() -> None:
    """Those that open shared memory, or NCCL by itself."""
    from vllm.distributed.device_communicators import (
        custom_all_reduce,
        pynccl,
        shm_broadcast,
        symm_mem,
    )

    shm_broadcast.MessageQueue.create_from_process_group = staticmethod(lambda *_, **__: None)
    pynccl.PyNcclCommunicator = _Communicator
    custom_all_reduce.CustomAllreduce = _Communicator
    symm_mem.SymmMemCommunicator = _Communicator


class _Communicator:
    disabled = True
    _capture_registered = True

    def __init__(self, *_: Any, **__: Any) -> None:
        pass


class _Kernel:
    """An operation that is only named while a model is built."""

    def __init__(self, name: str) -> None:
        self.default, self.name = self, name

    def __call__(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError(f"{self.name} has no stand-in")


def _name_kernels() -> None:
    known = torch._ops._OpNamespace.__getattr__

    def kernel(self: Any, name: str) -> Any:
        try:
            return known(self, name)
        except AttributeError:
            if self.name not in _NAMESPACES or name.startswith("__"):
                raise
            return _Kernel(f"{self.name}.{name}")

    torch._ops._OpNamespace.__getattr__ = kernel


class Llm:
    """In the place of `vllm.LLM`: everything up to the model, and what sleeping does to it."""

    def __init__(self, **arguments: Any) -> None:
        from vllm import EngineArgs
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.model_loader import dummy_loader

        config = EngineArgs(**arguments).create_engine_config()
        _name_kernels()
        dummy_loader.initialize_single_dummy_weight = lambda *_, **__: None
        with set_current_vllm_config(config):
            self.runner = self._runner(config)
        self.model = self.runner.get_model()
        self.arguments, self.asleep = arguments, False
        self.calls: list[str] = []
        self._sizes: dict[torch.Tensor, int] = {}
        worker = SimpleNamespace(worker=SimpleNamespace(model_runner=self.runner))
        core = SimpleNamespace(
            model_executor=SimpleNamespace(driver_worker=worker, shutdown=lambda: None),
            scheduler=SimpleNamespace(
                max_num_active_reqs=config.scheduler_config.max_num_seqs, shutdown=lambda: None
            ),
        )
        client = SimpleNamespace(engine_core=core, _finalizer=SimpleNamespace(detach=lambda: None))
        self.llm_engine = SimpleNamespace(engine_core=client, vllm_config=config)

    def _runner(self, config: Any) -> Any:
        """What has the model."""
        from vllm.model_executor.model_loader import get_model

        model = get_model(vllm_config=config)
        return SimpleNamespace(get_model=lambda: model)

    def sleep(self, level: int) -> None:
        """Level 2 keeps buffers, and no weights."""
        assert level == 2 and not self.asleep
        self.calls.append("sleep")
        for parameter in self.model.parameters():
            storage = parameter.untyped_storage()
            if storage.nbytes():
                self._sizes[parameter] = storage.nbytes()
                storage.resize_(0)
        self.asleep = True

    def wake_up(self, tags: list[str]) -> None:
        self.calls.append(f"wake {', '.join(tags)}")
        if "weights" in tags:
            for parameter, size in self._sizes.items():
                parameter.untyped_storage().resize_(size)
            self._sizes.clear()
        self.asleep = "kv_cache" not in tags

    def reset_prefix_cache(self) -> bool:
        self.calls.append("reset")
        return True


class LlmOfSecondRunner(Llm):
    """An `Llm` of vLLM's second model runner, which vLLM takes where Triton is: its buffers and its
    model are made. Its first step would launch kernels of Triton."""

    def _runner(self, config: Any) -> Any:
        from vllm.v1.worker.gpu import buffer_utils
        from vllm.v1.worker.gpu.model_runner import GPUModelRunner

        buffer_utils.get_accelerator_view_from_cpu_tensor = _as_the_device_sees
        runner = GPUModelRunner(config, torch.device("cuda:0"))
        runner.load_model()
        return runner


def _as_the_device_sees(on_host: torch.Tensor) -> torch.Tensor:
    """A tensor of the device in page-locked memory of the host, which takes none of the device."""
    with torch_cuda.gpu().fake:
        return lock(torch.empty(on_host.shape, dtype=on_host.dtype, device="cuda"))
