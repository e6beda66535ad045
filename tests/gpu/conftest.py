"""One rank on one GPU, inside pytest. Without a CUDA device, tests marked gpu are skipped."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.gpu.setting import GPU, Figure, Setting, forget, qwen2

_MODEL = qwen2(512, 1408, 4, 8, 32000)
_SIZES = {"sequence_length": 512, "num_sequences": 8, "max_tokens": 1024, "matmul_size": 1024}
_PROMPTS = {"num_prompts": 16, "prompt_length": 64, "response_length": 32}
SHAPES = replace(GPU, model=_MODEL, rollout=_MODEL, **_SIZES, **_PROMPTS)


def why_no_device() -> str | None:
    """None if there is a CUDA device."""
    import torch

    if torch.cuda.is_available():
        return None
    return "torch was built without CUDA" if torch.version.cuda is None else "torch finds none"


def pytest_collection_modifyitems(items):
    reason = why_no_device()
    if reason is None:
        return
    skip = pytest.mark.skip(reason=f"no CUDA device: {reason}")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)


@pytest.fixture(scope="session")
def here():
    """The session of a world of one rank."""
    from verl_hpc.runtime.session import session

    with session(late_after_s=600) as started:
        yield started


@pytest.fixture
def setting(here, tmp_path):
    """What the parts of gpu_smoke are given; small models, bfloat16."""
    chosen = Setting(here, SHAPES, seconds=0.2, directory=tmp_path)
    yield chosen
    forget(chosen)


@pytest.fixture
def hold():
    """`hold(figures)`: every figure is within its limits."""

    def check(figures) -> None:
        measured = [f for f in figures if isinstance(f, Figure)]
        assert measured
        beyond = [f for f in measured if not f.holds]
        assert not beyond, beyond

    return check
