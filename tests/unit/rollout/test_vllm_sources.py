"""What sleeping in this process and the second model runner rely on in vLLM's CUDA sources.

No CPU test reaches them, so this holds the places that were read; another version is read again.
"""

import ast
from importlib.util import find_spec
from pathlib import Path

import pytest

VLLM = Path(find_spec("vllm").origin).parent


def function(file, name):
    """Source of a function or method, without comments."""
    tree = ast.parse((VLLM / file).read_text())
    (node,) = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == name)
    return ast.unparse(node)


@pytest.mark.parametrize(
    "file, name, parts",
    [
        # Pools of weights and cache are mapped by vLLM itself: no segment of theirs may grow.
        (
            "device_allocator/cumem.py",
            "use_memory_pool",
            ["set_alloc_conf(with_conf_flag(prev_conf, EXPANDABLE_SEGMENTS, False))",
             "set_alloc_conf(prev_conf)"],
        ),
        # No transfer brings buffers, such as scales of the cache and rotary tables.
        (
            "v1/worker/gpu_worker.py",
            "sleep",
            ["if level == 2:", "buffer.cpu().clone() for name, buffer in model.named_buffers()"],
        ),
        (
            "v1/worker/gpu_worker.py",
            "wake_up",
            ["'weights' in tags", "buffer.data.copy_(self._sleep_saved_buffers[name].data)"],
        ),
        # Log-probs are of the distribution that is sampled from, and every request has a seed.
        (
            "v1/worker/gpu/sample/sampler.py",
            "__call__",
            ["in PROCESSED_LOGPROBS_MODES:\n            logits = processed_logits"],
        ),
        (
            "v1/worker/gpu/sample/states.py",
            "add_request",
            ["seed = sampling_params.seed", "self.seeds.np[req_idx] = seed"],
        ),
    ],
)  # fmt: skip
def test_a_place_is_as_it_was_read(file, name, parts):
    text = function(file, name)
    assert [part for part in parts if part not in text] == [], text
