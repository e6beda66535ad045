"""Stand-ins for `transformer_engine_torch`, Transformer Engine's compiled part: what its kernels
return, by device, shape and element type, and what they refuse.

Named and called as Transformer Engine 2.11 calls them (transformer_engine/pytorch/csrc). What has
no stand-in here raises when it is called.
"""

from __future__ import annotations

import enum
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tests.dry_gpu import torch_cuda, twins

CUDNN = (9, 20, 0)
DType = enum.IntEnum(
    "DType",
    "kByte kInt16 kInt32 kInt64 kFloat32 kFloat16 kBFloat16 kFloat8E4M3 kFloat8E5M2 kFloat8E8M0 "
    "kFloat4E2M1",
    start=0,
)
FP8FwdTensors = enum.IntEnum(
    "FP8FwdTensors",
    [f"GEMM{i}_{kind}" for i in (1, 2, 3) for kind in ("INPUT", "WEIGHT", "OUTPUT")],
    start=0,
)
FP8BwdTensors = enum.IntEnum(
    "FP8BwdTensors", [f"GRAD_{kind}{i}" for i in (1, 2, 3) for kind in ("OUTPUT", "INPUT")], start=0
)
NVTE_Fused_Attn_Backend = enum.IntEnum(
    "NVTE_Fused_Attn_Backend",
    {
        "NVTE_No_Backend": -1,
        "NVTE_F16_max512_seqlen": 0,
        "NVTE_F16_arbitrary_seqlen": 1,
        "NVTE_FP8": 2,
    },
)
_TORCH = {
    DType.kByte: torch.uint8,
    DType.kInt32: torch.int32,
    DType.kFloat32: torch.float32,
    DType.kFloat16: torch.float16,
    DType.kBFloat16: torch.bfloat16,
    DType.kFloat8E4M3: torch.float8_e4m3fn,
    DType.kFloat8E5M2: torch.float8_e5m2,
}


def _made(shape: Sequence[int], dtype: Any) -> torch.Tensor:
    return torch.empty(tuple(shape), dtype=_TORCH.get(dtype, dtype), device="cuda")


# ---------------------------------------------------------------- products


def generic_gemm(
    A: Any,  # noqa: N803
    transa: bool,
    B: Any,  # noqa: N803
    transb: bool,
    out: torch.Tensor | None,
    quantizer: Any,
    out_dtype: Any,
    bias: torch.Tensor | None,
    bias_dtype: Any,
    gelu: bool,
    gelu_in: Any,
    grad: bool,
    *_: Any,
    extra_output: Any = None,
    **__: Any,
) -> tuple[Any, ...]:
    """Row-major: B or its transpose, times the transpose of A or A."""
    a, b = _Operand(A), _Operand(B)
    inner_a, n = a.matrix if transa else a.matrix[::-1]
    m, inner_b = b.matrix if transb else b.matrix[::-1]
    assert inner_a == inner_b, f"gemm: {a.shape} {transa} x {b.shape} {transb}"
    assert quantizer is None, "gemm: a quantised output"
    assert a.dtype == b.dtype or a.is_quantised, f"gemm: {a.dtype} x {b.dtype}"
    if out is None:
        of_operands = torch.bfloat16 if a.is_quantised else a.dtype
        out = _made((m, n) if transb else (*b.shape[:-1], n), out_dtype or of_operands)
    assert out.numel() == m * n, f"gemm: {m} x {n} into {tuple(out.shape)}"
    out.zero_()
    bias_grad = _made((m if transb else n,), bias.dtype) if bias is not None and grad else None
    return out, bias_grad, None, extra_output


class _Operand:
    """A matrix, which may be quantised, by rows, by columns or both."""

    def __init__(self, tensor: Any) -> None:
        parts = [getattr(tensor, n, None) for n in ("_rowwise_data", "_columnwise_data", "_data")]
        data = next((part for part in parts if part is not None), tensor)
        self.is_quantised = data is not tensor
        self.shape, self.dtype = torch.Size(tensor.size()), data.dtype
        columns = self.shape[-1]
        self.matrix = columns, self.shape.numel() // max(columns, 1)
        """(columns, rows) of all but the last dimension flattened."""


def te_general_grouped_gemm(
    A: Sequence[Any],  # noqa: N803
    transa: bool,
    B: Sequence[Any],  # noqa: N803
    transb: bool,
    out: Sequence[torch.Tensor],
    out_dtype: Any,
    m_splits: Sequence[int],
    bias: Any,
    bias_dtype: Any,
    single_output: bool,
    *_: Any,
) -> Any:
    """One product for each expert; into one tensor of all rows, or one for each."""
    assert len(A) == len(B), (len(A), len(B))
    for i, (one, other) in enumerate(zip(A, B, strict=True)):
        a, b = _Operand(one), _Operand(other)
        inner_a, n = a.matrix if transa else a.matrix[::-1]
        m, inner_b = b.matrix if transb else b.matrix[::-1]
        assert inner_a == inner_b, f"grouped gemm {i}: {a.shape} x {b.shape}"
        if not single_output:
            assert out[i].numel() == m * n, f"grouped gemm {i}: {m} x {n} into {out[i].shape}"
    for tensor in out:
        tensor.zero_()
    return bias


# ---------------------------------------------------------------- norms


def rmsnorm_fwd(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    ln_out: Any,
    quantizer: Any,
    out_dtype: Any,
    *_: Any,
) -> tuple[Any, ...]:
    assert x.dim() == 2 and x.shape[-1] == weight.shape[0], (x.shape, weight.shape)
    if ln_out is None:
        plain = _made(x.shape, out_dtype or x.dtype)
        ln_out = plain if quantizer is None else quantizer(plain)
    return ln_out, None, _made(x.shape[:1], torch.float32)


def rmsnorm_bwd(
    dz: torch.Tensor, x: torch.Tensor, rsigma: torch.Tensor, gamma: torch.Tensor, *_: Any
) -> tuple[torch.Tensor, ...]:
    assert dz.shape == x.shape, (dz.shape, x.shape)
    return torch.empty_like(x), torch.empty_like(gamma)


# ---------------------------------------------------------------- attention


def get_fused_attn_backend(training: bool, q: Any, kv: Any, *more: Any) -> Any:
    """cuDNN's flash attention, for the head sizes that it has on Hopper."""
    head_size = more[9]
    if q in (DType.kBFloat16, DType.kFloat16) and head_size % 8 == 0 and head_size <= 256:
        return NVTE_Fused_Attn_Backend.NVTE_F16_arbitrary_seqlen
    return NVTE_Fused_Attn_Backend.NVTE_No_Backend


def fused_attn_fwd(
    max_q: int,
    max_kv: int,
    training: bool,
    scale: float,
    dropout: float,
    zero_fill: bool,
    layout: Any,
    bias: Any,
    mask: Any,
    softmax: Any,
    window: Any,
    cu_q: torch.Tensor,
    cu_kv: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *_: Any,
) -> list[torch.Tensor]:
    for ends, rows, longest in ((cu_q, q, max_q), (cu_kv, k, max_kv)):
        assert ends.is_cuda and ends.dtype == torch.int32, (ends.device, ends.dtype)
        known = twins.twin_of(ends)
        assert known is not None, "nobody knows the lengths of sequences"
        assert int(known[-1]) <= rows.shape[0], f"sequences end at {known[-1]} of {rows.shape[0]}"
        assert int(known.diff().max()) <= longest, f"a sequence is longer than {longest}"
    log_sums = _made((*q.shape[:2], 1), torch.float32)
    return [_made((*q.shape[:-1], v.shape[-1]), q.dtype), log_sums, _made((2,), torch.int64)]


def fused_attn_bwd(*args: Any) -> list[torch.Tensor | None]:
    q, k, v, out, gradient = args[13:18]
    assert gradient.shape == out.shape, (gradient.shape, out.shape)
    return [torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), None, None]


# ---------------------------------------------------------------- attention over several ranks


def thd_read_half_tensor(tensor: torch.Tensor, cu_seqlens: torch.Tensor, half: int) -> torch.Tensor:
    """Half of every sequence; keys and values may be stacked in front."""
    dim = 0 if tensor.dim() == 3 else 1
    shape = list(tensor.shape)
    assert shape[dim] % 2 == 0, shape
    shape[dim] //= 2
    return _made(shape, tensor.dtype)


def thd_read_second_half_lse(
    lse: torch.Tensor, cu_seqlens: torch.Tensor, packed: bool, length: int
) -> torch.Tensor:
    return _made(
        (lse.shape[0], lse.shape[1] // 2) if packed else (*lse.shape[:2], length), lse.dtype
    )


def thd_second_half_lse_correction(
    lse: torch.Tensor, of_step: torch.Tensor, cu_seqlens: torch.Tensor, packed: bool
) -> None:
    assert lse.dtype == of_step.dtype == torch.float32 or lse.dtype == torch.float64, lse.dtype
    lse.add_(1)


def thd_out_correction(
    out: torch.Tensor,
    of_step: torch.Tensor,
    lse: torch.Tensor,
    lse_of_step: torch.Tensor,
    cu_seqlens: torch.Tensor,
    only_second_half: bool,
    packed: bool,
) -> None:
    rows = out.numel() // (2 if only_second_half else 1)
    assert of_step.numel() == rows, (out.shape, of_step.shape, only_second_half)
    out.add_(1)


def thd_grad_correction(
    grad: torch.Tensor, of_step: torch.Tensor, cu_seqlens: torch.Tensor, first: str, second: str
) -> None:
    rows = grad.numel() // (2 if "none" in (first, second) else 1)
    assert of_step.numel() == rows, (grad.shape, of_step.shape, first, second)
    grad.add_(1)


def thd_get_partitioned_indices(
    cu_seqlens: torch.Tensor, tokens: int, num_ranks: int, rank: int
) -> torch.Tensor:
    return _made((tokens // num_ranks,), torch.int32)


def fused_rope_forward(
    t: torch.Tensor,
    freqs: torch.Tensor,
    start: Any,
    fmt: Any,
    interleaved: bool,
    ends: Any,
    *_: Any,
) -> torch.Tensor:
    assert t.is_cuda and freqs.is_cuda and freqs.dtype == torch.float32, (t.device, freqs.dtype)
    if ends is not None:
        assert t.dim() == 3 and ends.dtype == torch.int32, (t.shape, ends.dtype)
    return torch.empty_like(t)


fused_rope_backward = fused_rope_forward


# ---------------------------------------------------------------- quantisation


def quantize(tensor: torch.Tensor, quantizer: Any, output: Any = None, noop: Any = None) -> Any:
    if output is not None:
        return output
    return quantizer.make_empty(tensor.shape, dtype=tensor.dtype, device="cuda")


def split_quantize(tensor: torch.Tensor, splits: Sequence[int], quantizers: Sequence[Any]) -> Any:
    parts = tensor.split(list(splits))
    return [part if q is None else q(part) for part, q in zip(parts, quantizers, strict=True)]


def bgrad_quantize(gradient: torch.Tensor, quantizer: Any) -> tuple[Any, Any]:
    bias = _made(gradient.shape[-1:], gradient.dtype)
    return bias, quantizer(gradient) if quantizer else gradient


def fp8_transpose(data: torch.Tensor, dtype: Any = None, out: Any = None, **_: Any) -> torch.Tensor:
    return out if out is not None else _made((data.shape[-1], *data.shape[:-1]), data.dtype)


def swap_first_dims(tensor: torch.Tensor, out: Any = None) -> torch.Tensor:
    return _made((tensor.shape[1], tensor.shape[0], *tensor.shape[2:]), tensor.dtype)


# ---------------------------------------------------------------- tokens on their way to experts


def make_row_id_map(routing_map: torch.Tensor, tokens: int, experts: int) -> torch.Tensor:
    assert routing_map.shape == (tokens, experts), (routing_map.shape, tokens, experts)
    return _made((tokens, 2 * experts + 1), torch.int32)


def permute_with_mask_map(
    inp: torch.Tensor,
    places: torch.Tensor,
    probs: torch.Tensor | None,
    scale: torch.Tensor | None,
    tokens: int,
    experts: int,
    num_out: int,
    hidden: int,
    _: Any,
) -> tuple[Any, ...]:
    assert inp.shape == (tokens, hidden) and len(places) == tokens, (inp.shape, places.shape)
    return _made((num_out, hidden), inp.dtype), None, _like_rows(num_out, probs)


def unpermute_with_mask_map(
    inp: torch.Tensor,
    places: torch.Tensor,
    merging: torch.Tensor | None,
    probs: torch.Tensor | None,
    tokens: int,
    experts: int,
    hidden: int,
) -> tuple[Any, ...]:
    assert inp.shape[-1] == hidden and len(places) == tokens, (inp.shape, places.shape)
    spread = None if probs is None else _made((tokens, experts), probs.dtype)
    return _made((tokens, hidden), inp.dtype), spread


def make_chunk_sort_map(
    sizes: torch.Tensor, order: torch.Tensor, tokens: int, num: int
) -> torch.Tensor:
    assert sizes.is_cuda and order.is_cuda and sizes.numel() == order.numel() == num
    return _made((tokens,), torch.int32)


def sort_chunks_by_map(
    inp: torch.Tensor,
    places: torch.Tensor,
    probs: torch.Tensor | None,
    tokens: int,
    hidden: int,
    is_forward: bool,
) -> tuple[Any, ...]:
    assert inp.shape == (tokens, hidden) and len(places) == tokens, (inp.shape, places.shape)
    return _made((tokens, hidden), inp.dtype), _like_rows(tokens, probs)


def _like_rows(rows: int, probs: torch.Tensor | None) -> torch.Tensor | None:
    return None if probs is None else _made((rows,), probs.dtype)


PERMUTATIONS = {
    function.__name__: function
    for function in (
        make_row_id_map,
        permute_with_mask_map,
        unpermute_with_mask_map,
        make_chunk_sort_map,
        sort_chunks_by_map,
    )
}
"""Functions of transformer_engine.pytorch.triton.permutation that launch Triton's kernels."""


# ---------------------------------------------------------------- optimizer


def multi_tensor_adam(chunk: int, noop: Any, lists: Sequence[Any], *_: Any) -> None:
    for gradient, parameter, first, second in zip(*lists, strict=True):
        shapes = {t.shape for t in (gradient, parameter, first, second)}
        assert len(shapes) == 1 and parameter.is_cuda, shapes
        parameter.add_(first)


def multi_tensor_l2norm(
    chunk: int, noop: Any, lists: Sequence[Any], per_tensor: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    return _made((1,), torch.float32), _made((len(lists[0]),), torch.float32)


multi_tensor_unscale_l2norm = multi_tensor_l2norm


def multi_tensor_scale(chunk: int, noop: Any, lists: Sequence[Any], scale: float) -> None:
    for frm, to in zip(*lists, strict=True):
        to.copy_(frm)


# ---------------------------------------------------------------- the installation


def get_cudnn_version() -> int:
    return CUDNN[0] * 10000 + CUDNN[1] * 100 + CUDNN[2]


def get_cublasLt_version() -> int:  # noqa: N802
    return 130101


def get_stream_priority_range() -> tuple[int, int]:
    return 0, -5


def get_num_cublas_streams() -> int:
    return 4


def device_supports_multicast(*_: Any) -> bool:
    return True


def ubuf_built_with_mpi() -> bool:
    return False


class _Named:
    """An enumeration that is only passed on, as its members' names."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return f"{self._name}.{name}"


_QUESTIONS = ("get", "device", "ubuf")
"""First words of the names of functions that launch no kernel."""
_CLASSES = ("CommOverlap", "CommOverlapP2P", "CommOverlapHelper", "CommOverlapBase")


def without_stand_in(name: str) -> Any:
    """What Transformer Engine imports of its compiled part, and this module has not."""
    if name in _CLASSES or name == "FP8TensorMeta":
        return type(name, (), {})
    if name[0].isupper():
        return _Named(name)

    def call(*_: Any, **__: Any) -> None:
        raise NotImplementedError(f"transformer_engine_torch.{name} has no stand-in")

    return call


def _launches(value: Any) -> bool:
    """Whether it is a function that works on the device, and no question."""
    return isinstance(value, types.FunctionType) and value.__name__.split("_")[0] not in _QUESTIONS


def counted(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Count a call as one operation of the device, whatever its stand-in does."""
    return lambda *args, **kwargs: torch_cuda.gpu().operations.as_one(kernel, *args, **kwargs)


def module(names: Sequence[str]) -> types.ModuleType:
    """The compiled part, with all of this module's names.

    Args:
        names: what is used without being imported by name.
    """
    made = types.ModuleType("transformer_engine_torch")
    own = {name: value for name, value in globals().items() if not name.startswith("_")}
    kernels = {name: counted(own[name]) for name in names if name in own and _launches(own[name])}
    vars(made).update({name: without_stand_in(name) for name in names} | own | kernels)
    vars(made)["__getattr__"] = _imported
    return made


def _imported(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return without_stand_in(name)
