"""What `torch.cuda` says of a GPU that is not there, and parts of torch that no dispatch mode sees.

`pretend()` changes torch in this process for good, before other libraries are imported; which GPU
answers is said by `attach`.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import types
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Self

import torch
import torch.cuda.random
import torch.utils._device
from torch._subclasses.fake_tensor import FakeTensor

from tests.dry_gpu.device import TOTAL_BYTES, Dispatch, Gpu, lock
from tests.dry_gpu.places import asked_by
from tests.dry_gpu.streams import HOST

_the: list[Gpu] = []
_DEVICE = torch.device("cuda", 0)


def gpu() -> Gpu:
    assert _the, "the device is touched before a test has one"
    return _the[0]


def attach(device: Gpu) -> contextlib.AbstractContextManager[Any]:
    """Make `device` this process's GPU; inside the context its operations are watched."""
    _the[:] = [device]
    device.world.start()
    return Dispatch(device)


PROPERTIES = types.SimpleNamespace(
    name="NVIDIA H100 80GB HBM3",
    major=9,
    minor=0,
    total_memory=TOTAL_BYTES,
    multi_processor_count=132,
    uuid="GPU-0",
    L2_cache_size=50 << 20,
    warp_size=32,
    max_threads_per_multi_processor=2048,
    regs_per_multiprocessor=65536,
    shared_memory_per_block_optin=232448,
    gcnArchName="",
    is_integrated=False,
)


class Stream:
    """A stream, by number; 0 is the default one."""

    _numbers = itertools.count(1)
    device = _DEVICE
    device_index, device_type = 0, 1

    def __init__(self, *_: Any, number: int | None = None, **__: Any) -> None:
        self.stream_id = next(Stream._numbers) if number is None else number
        self.cuda_stream = self.stream_id
        self._before: list[int] = []

    def __enter__(self) -> Self:
        self._before.append(gpu().order.current)
        gpu().order.enter(self.stream_id)
        return self

    def __exit__(self, *_: object) -> None:
        gpu().order.enter(self._before.pop())

    def wait_stream(self, other: Stream) -> None:
        order = gpu().order
        order.wait(self.stream_id, order.moment(other.stream_id))

    def wait_event(self, event: Event) -> None:
        event.wait(self)

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        gpu().wait("stream.synchronize", self.stream_id)

    def query(self) -> bool:
        return True

    def __hash__(self) -> int:
        return hash(self.stream_id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.stream_id == self.stream_id


class Event:
    """What a stream has done at some moment."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._moment: dict[int, int] = {}

    def record(self, stream: Stream | None = None) -> None:
        order = gpu().order
        self._moment = order.moment(order.current if stream is None else stream.stream_id)

    def wait(self, stream: Stream | None = None) -> None:
        order = gpu().order
        order.wait(order.current if stream is None else stream.stream_id, self._moment)

    def synchronize(self) -> None:
        gpu().waits.update([f"event.synchronize: {asked_by()}"])
        gpu().order.wait(HOST, self._moment)

    def query(self) -> bool:
        return True

    def elapsed_time(self, _: Event) -> float:
        return 1.0


class Generator(torch._C.Generator):
    """A generator of the host, whatever device is asked for: no random numbers are drawn here."""

    def __new__(cls, device: Any = "cpu") -> Any:
        return super().__new__(cls)


@contextlib.contextmanager
def _on(stream: Stream | None) -> Any:
    with contextlib.nullcontext() if stream is None else stream:
        yield


def _current(*_: Any) -> Stream:
    return Stream(number=gpu().order.current)


def _nothing() -> Callable[..., None]:
    """A function that does nothing, each its own: torch's compiler tells its functions apart."""
    return lambda *_, **__: None


def pretend() -> None:
    """Make torch speak of an H100."""
    torch.utils._device._device_constructors()  # `with torch.device()` knows torch's own functions
    _answers()
    _storages()
    _host_memory()
    torch.Generator = Generator
    torch.compile = _compile
    torch.nn.Module._apply = _apply
    torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(..., device="cuda") is a copy then


def _compile(function: Any = None, **options: Any) -> Any:
    """`torch.compile` for functions, whose operations run one by one and count as one kernel."""
    if function is None:
        return lambda decorated: _compile(decorated, **options)

    @functools.wraps(function)
    def one_kernel(*args: Any, **kwargs: Any) -> Any:
        return gpu().operations.as_one(function, *args, **kwargs)

    return one_kernel if isinstance(function, types.FunctionType) else function


_WITHOUT_EFFECT = (
    "init",
    "_lazy_init",
    "ipc_collect",
    "empty_cache",
    "set_device",
    "manual_seed",
    "manual_seed_all",
    "set_rng_state",
)


def _answers() -> None:
    cuda: Any = torch.cuda
    state = torch.Generator().get_state()
    answers: dict[str, Callable[..., Any]] = {
        **{name: lambda: True for name in ("is_available", "is_initialized", "_is_compiled")},
        **{name: _nothing() for name in _WITHOUT_EFFECT},
        "get_rng_state": lambda *_, **__: state.clone(),
        "device_count": lambda: gpu().per_node if _the else 8,
        "current_device": lambda: 0,
        "get_device_properties": lambda *_, **__: PROPERTIES,
        "get_device_capability": lambda *_, **__: (PROPERTIES.major, PROPERTIES.minor),
        "get_device_name": lambda *_, **__: PROPERTIES.name,
        "is_bf16_supported": lambda *_, **__: True,
        "is_current_stream_capturing": lambda: False,
        "synchronize": lambda *_, **__: gpu().wait("synchronize"),
        "mem_get_info": lambda *_, **__: (TOTAL_BYTES - gpu().memory.live, TOTAL_BYTES),
        "reset_peak_memory_stats": lambda *_, **__: gpu().memory.forget_peak(),
        "memory_stats": lambda *_, **__: defaultdict(int),
        "current_stream": _current,
        "default_stream": lambda *_: Stream(number=0),
        "set_stream": lambda stream: gpu().order.enter(stream.stream_id),
        "stream": _on,
        "device": lambda *_: contextlib.nullcontext(),
        "Stream": Stream,
        "Event": Event,
    }
    for name in ("memory_allocated", "memory_reserved"):
        answers[name] = lambda *_, **__: gpu().memory.live
        answers[f"max_{name}"] = lambda *_, **__: gpu().memory.peak
    for name, answer in answers.items():
        setattr(cuda, name, answer)
    for name in ("get_rng_state", "set_rng_state", "manual_seed", "manual_seed_all"):
        setattr(torch.cuda.random, name, answers[name])
    torch._C._cuda_getDevice = lambda: 0
    torch._C._cuda_setDevice = _nothing()
    cuda.cudart = lambda: types.SimpleNamespace(
        cudaHostRegister=_host_register,
        cudaHostUnregister=lambda start: gpu().registered.pop(start) and 0,
    )
    cuda.nccl.version = lambda: (2, 29, 7)
    cuda.default_generators = (torch.Generator(),) * 8
    torch.version.cuda = "13.0"


def _host_register(start: int, size: int, _: int) -> int:
    gpu().registered[start] = size
    gpu().page_locked += size
    return 0


def _storages() -> None:
    """Resizing is not dispatched, and fake memory has no address: its storage names it."""
    resize, address = torch.UntypedStorage.resize_, torch.UntypedStorage.data_ptr
    tensor_address, is_set_to = torch.Tensor.data_ptr, torch.Tensor.is_set_to
    tensor = torch.tensor

    def resize_(storage: Any, size: int) -> Any:
        resize(storage, size)
        if _the:
            gpu().memory.resized(storage)
        return storage

    def data_ptr(t: torch.Tensor) -> int:
        if not isinstance(t, FakeTensor):
            return tensor_address(t)
        return t.untyped_storage()._cdata * 4096 + t.storage_offset() * t.element_size()

    def same(t: torch.Tensor, other: torch.Tensor) -> bool:
        if not isinstance(t, FakeTensor):
            return is_set_to(t, other)
        return data_ptr(t) == data_ptr(other) and t.stride() == other.stride()

    def tolist(t: FakeTensor) -> Any:
        gpu().wait("tolist", gpu().order.current)
        return gpu().read(t).tolist()

    def of_numbers(data: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        if isinstance(data, (list, tuple)) and any(isinstance(x, FakeTensor) for x in data):
            data = [x.item() if isinstance(x, FakeTensor) else x for x in data]
        return tensor(data, *args, **kwargs)

    def record_stream(t: torch.Tensor, stream: Stream) -> None:
        history = getattr(t.untyped_storage(), "history", None)
        if history is not None:
            history.recorded.add(stream.stream_id)

    changed: Any = torch.Tensor
    changed.data_ptr, changed.is_set_to, changed.record_stream = data_ptr, same, record_stream
    FakeTensor.tolist = tolist
    torch.UntypedStorage.resize_ = resize_
    torch.UntypedStorage.data_ptr = lambda s: (
        address(s) if s.device.type == "cpu" else s._cdata * 4096
    )
    torch.tensor = of_numbers


def _host_memory() -> None:
    """Page-locked memory is ordinary memory that is marked, counted as torch rounds it."""

    def counted(tensor: torch.Tensor) -> torch.Tensor:
        gpu().page_locked += 1 << (tensor.nbytes - 1).bit_length() if tensor.nbytes else 0
        return lock(tensor)

    def page_locked(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def made(*args: Any, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:
            tensor = make(*args, **kwargs)
            return counted(tensor) if pin_memory else tensor

        return made

    for name in ("empty", "zeros", "tensor"):
        setattr(torch, name, page_locked(getattr(torch, name)))
    torch.Tensor.pin_memory = lambda t, *_: counted(t.clone())


def _apply(module: torch.nn.Module, fn: Callable[..., Any], recurse: bool = True) -> Any:
    """`Module._apply` without exchanging what parameters hold, which fake tensors refuse: modules
    get new parameters, with the attributes of the old ones."""
    known: dict[int, torch.nn.Parameter] = {}
    with torch.no_grad():
        for one in module.modules() if recurse else (module,):
            for name, parameter in list(one._parameters.items()):
                if parameter is None:
                    continue
                if id(parameter) not in known:
                    known[id(parameter)] = _converted(parameter, fn)
                one._parameters[name] = known[id(parameter)]
            for name, buffer in list(one._buffers.items()):
                if buffer is not None:
                    one._buffers[name] = fn(buffer)
    return module


def _converted(parameter: torch.nn.Parameter, fn: Callable[..., Any]) -> torch.nn.Parameter:
    value = fn(parameter.detach())
    if (value.dtype, value.device) == (parameter.dtype, parameter.device):
        return parameter
    made = torch.nn.Parameter(value, requires_grad=parameter.requires_grad)
    made.__dict__.update(parameter.__dict__)
    return made
