"""What is on the device while a run is built."""

import pytest
import torch

from tests.mpi.recipe_runs import configure
from verl_hpc.trainer import build_roles as module
from verl_hpc.trainer.build import build_run

pytestmark = pytest.mark.world(2)
PARTS = ("parameters", "gradients", "optimizer")


def bytes_held(engine):
    """Memory of an engine, by part."""
    return {
        part: sum(
            t.untyped_storage().nbytes() for s in engine.host._parts[part] for t in s.tensors()
        )
        for part in PARTS
    }


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_rollout_engine_is_built_on_a_device_of_its_own(
    here, tiny_model, shared_directory, monkeypatch, dtype
):
    """vLLM wants its share of a GPU to be free when it starts."""
    config = configure(
        "build",
        tiny_model(),
        shared_directory,
        recipe="rl",
        algorithm={"advantage": {"name": "gae"}},
        model={"path": str(tiny_model()), "dtype": dtype},
        offload={"optimizer": True},
    )
    engines, before, during = [], [], []
    load_weights, build_rollout = module._load_weights, module.build_rollout

    def remember(run, role, base):
        load_weights(run, role, base)
        engine = role.training
        engines.append(engine)
        loaded = {name: w.clone() for name, w in engine.weights.items()}
        before.append((bytes_held(engine), loaded))

    def count(*arguments, **options):
        during.extend(bytes_held(engine) for engine in engines)
        return build_rollout(*arguments, **options)

    monkeypatch.setattr(module, "_load_weights", remember)
    monkeypatch.setattr(module, "build_rollout", count)
    run = build_run(here, config)
    assert engines == [run.roles["actor"].training, run.roles["critic"].training]
    assert during == [dict.fromkeys(PARTS, 0)] * 2
    for engine, (held, weights) in zip(engines, before, strict=True):
        assert held["parameters"] > 0 and held["gradients"] > 0
        assert bytes_held(engine) == held
        for name, weight in engine.weights.items():
            assert torch.equal(weight, weights[name])
    assert run.kernels == {
        "training layers": "PyTorch (no GPU)",
        "training attention": "scaled_dot_product_attention",
        "rollout attention": "sdpa",
    }


def test_a_run_that_resumes_reads_no_weights_of_trained_roles(
    here, tiny_model, shared_directory, monkeypatch
):
    path = str(tiny_model())
    config = configure(
        "resumes",
        path,
        shared_directory,
        recipe="rl",
        algorithm={"advantage": {"name": "gae"}},
        model={"path": path},
        rollout={"engine": "hf", "max_prompt_tokens": 8, "max_response_tokens": 8},
    )
    read, load_weights = [], module._load_weights

    def remember(run, role, base):
        read.append(role.name)
        load_weights(run, role, base)

    monkeypatch.setattr(module, "_load_weights", remember)
    for resumes, names in ((False, ["actor", "critic"]), (True, [])):
        read.clear()
        build_run(here, config, resumes)
        assert read == names
