"""Runs that train adapters: what a step holds, and that they go on in any layout."""

from pathlib import Path

import pytest
import torch

from tests.mpi import test_checkpoint as steps
from tests.mpi.conftest import Reference
from tests.mpi.engines_for_tests import same, some_sequences
from tests.mpi.mixtures import MODELS
from tests.mpi.parity import once, outputs_equal, summed
from tests.mpi.sft_for_tests import sft_config
from tests.mpi.test_ledger import counted
from tests.slow import all_slow
from verl_hpc.checkpoint.convert import export_step
from verl_hpc.checkpoint.read import Step
from verl_hpc.checkpoint.weights import open_weights
from verl_hpc.data.order import Position
from verl_hpc.errors import ConfigError, ModelError
from verl_hpc.hardware.node import KINDS, Hardware
from verl_hpc.layout.architecture import read_architecture
from verl_hpc.planner.memory.ledger import ledger
from verl_hpc.step.role import InitialWeights
from verl_hpc.trainer.build import build_run
from verl_hpc.trainer.saves import save
from verl_hpc.trainer.state import Progress, restore

pytestmark = pytest.mark.world(4)

FAMILIES, DTYPES = ["qwen3", "qwen3_moe"], ["float32", "bfloat16"]
LORA = {"rank": 4, "alpha": 8.0}
LAYOUTS = [
    {"tensor_parallel": 2, "pipeline_parallel": 2},
    {"tensor_parallel": 2, "sequence_parallel": True, "recompute": "full"},
    {"pipeline_parallel": 2, "virtual_pipeline": 2},
    {},
    {"engine": "fsdp"},
]
BY_NAME = (LAYOUTS[-1], "gemma3_text")
EXPERTS = [
    {"tensor_parallel": 2, "sequence_parallel": True, "expert_parallel": 2},
    {"expert_parallel": 2, "expert_tensor_parallel": 2},
    {"pipeline_parallel": 2},
]


@pytest.fixture
def configure(tiny_model, shared_directory, request):
    def make(parallel=None, family="qwen3", **changes):
        fields = {"num_hidden_layers": 4}
        if family == "gemma3_text":
            fields |= {"tied": True, "layer_types": ["sliding_attention", "full_attention"] * 2}
        if family == "qwen3_moe":
            fields = {**MODELS["normalised"][1], "num_hidden_layers": 2, "num_experts": 4}
        model = tiny_model(family, num_key_value_heads=4, **fields)
        changes = {"lora": LORA, "optimizer": {"lr": 1e-2, "warmup_steps": 2}} | changes
        directory = shared_directory / "adapters"
        return sft_config(request.node.name, directory, model, parallel or {}, **changes)

    return make


# ------------------------------------------------------------------------------ steps


@pytest.mark.parametrize(
    "family, layouts",
    [("qwen3_moe", EXPERTS[::2]), *all_slow(("qwen3", LAYOUTS), ("qwen3_moe", EXPERTS))],
    ids=lambda value: value if isinstance(value, str) else str(len(value)),
)
def test_a_step_opens_in_the_next_layout_and_training_goes_on(here, configure, family, layouts):
    steps.goes_on_from_layout_to_layout(here, lambda p: configure(p, family), layouts)


def test_adapters_start_alike_in_every_layout(here, configure):
    first, *others = (
        steps.parameters(here, build_run(here, configure(layout))) for layout in LAYOUTS
    )
    for other in others:
        same(other, first)
    a = first["model.layers.0.self_attn.q_proj.lora_A.weight"]
    assert not torch.equal(a, first["model.layers.1.self_attn.q_proj.lora_A.weight"])
    bound = a.shape[1] ** -0.5
    assert 0.9 * bound < a.abs().max() <= bound
    assert all(not t.any() for n, t in first.items() if n.endswith(".lora_B.weight"))
    another = steps.parameters(here, build_run(here, configure(seed=1)))
    assert not torch.equal(a, another["model.layers.0.self_attn.q_proj.lora_A.weight"])


def test_a_step_holds_adapters_alone_and_says_of_what(here, configure, tiny_model):
    run = build_run(here, configure(LAYOUTS[0]))
    steps.train(run, 0, 1)
    path = save(run, Progress(1, Position(0, 8)))
    step = Step(path)
    held = {n for c in ("actor", "actor.optimizer") for n in step.component(c).tensors}
    assert held and all(".lora_" in name for name in held)
    assert step.state.adapters["actor"].base == str(Path(run.config.model.path).resolve())
    with pytest.raises(ModelError, match=r"its actor holds adapters of .* give model.path that"):
        open_weights(path)

    other = tiny_model("qwen3", num_hidden_layers=4, num_key_value_heads=4, hidden_size=64, seed=9)
    for message, change in {
        r"model.path: other weights .* or the base of its adapters": {
            "model": {"path": str(other), "dtype": "float32"}
        },
        "lora of actor = rank 4, alpha 16, all, and was rank 4, alpha 8, all": {
            "lora": LORA | {"alpha": 16.0}
        },
        r"lora: .* holds adapters of its actor, and this": {"lora": None},
    }.items():
        with pytest.raises(ConfigError, match=message):
            restore(build_run(here, configure(LAYOUTS[0], **change), resumes=True))


# ------------------------------------------------------------------------------ PEFT


@pytest.mark.parametrize("parallel, family", [(LAYOUTS[0], "qwen3"), BY_NAME])
def test_peft_loads_what_is_exported(here, configure, shared_directory, parallel, family):
    import peft

    config = configure(parallel, family, lora=LORA | {"target_modules": "all-linear"})
    run = build_run(here, config)
    steps.train(run, 0, 3)
    path, out = save(run, Progress(3, Position(0, 24))), shared_directory / f"exported-{family}"
    sequences = some_sequences(3, run.arch.vocab_size)

    def by_peft():
        export_step(path, out)
        reference = Reference(config.model.path)
        plain = reference.outputs(sequences)
        reference.model = peft.PeftModel.from_pretrained(reference.model, out)
        return plain, reference.outputs(sequences)

    plain, expected = once(here, by_peft)
    outputs_equal(run.roles["actor"].training, sequences, expected)
    for (before, _), (after, _) in zip(plain, expected, strict=True):
        assert (after - before).abs().max() > 1e-3


@pytest.mark.parametrize(
    "parallel, family", [(LAYOUTS[0], "qwen3"), *all_slow(BY_NAME, (LAYOUTS[1], "qwen3"))]
)
def test_a_run_starts_from_an_adapter_of_peft(here, configure, shared_directory, parallel, family):
    """Its A differ between q, k and v; the reference also starts from it."""
    import peft

    path = configure(family=family).model.path
    out = shared_directory / f"peft-adapter-{family}-{len(parallel)}"
    sequences = some_sequences(3, read_architecture(path).vocab_size)

    def by_peft():
        torch.manual_seed(3)
        chosen = peft.LoraConfig(r=4, lora_alpha=8, target_modules="all-linear")
        reference = Reference(path)
        reference.model = peft.get_peft_model(reference.model, chosen)
        with torch.no_grad():
            for name, parameter in reference.model.named_parameters():
                if "lora_" in name:
                    parameter.normal_(std=0.1)
        reference.model.save_pretrained(out)
        return reference.outputs(sequences)

    expected = once(here, by_peft)
    more = {"recipe": "dpo", "data": {"train": {"kind": "files", "paths": [_pairs(out, here)]}}}
    run = build_run(here, configure(parallel, family, lora=LORA | {"path": str(out)}, **more))
    outputs_equal(run.roles["actor"].engine, sequences, expected)
    _update(run)
    with pytest.raises(AssertionError, match="Tensor-likes are not close"):
        outputs_equal(run.roles["actor"].engine, sequences, expected)
    outputs_equal(run.roles["reference"].engine, sequences, expected)

    with pytest.raises(ModelError, match=r"lora.rank = 8, and .*adapter_config.json has r = 4"):
        build_run(here, configure(parallel, family, lora=LORA | {"rank": 8, "path": str(out)}))
    fewer = LORA | {"target_modules": ["q_proj"], "path": str(out)}
    with pytest.raises(ModelError, match=r"has, besides what is wanted, model.layers.0"):
        build_run(here, configure(parallel, family, lora=fewer))


def _pairs(directory, here) -> str:
    file = directory.with_suffix(".jsonl")
    row = '{"prompt": "a b", "chosen": "c d", "rejected": "e"}\n'
    if here.world.rank == 0:
        file.write_text(row * 8)
    here.control.barrier()
    return str(file)


def _update(run) -> None:
    sequences = some_sequences(4, run.arch.vocab_size)
    for _ in range(3):  # the first learning rates are those of a warm-up
        run.roles["actor"].training.update(sequences, summed(80))


# ------------------------------------------------------------------------------ reference, memory


def test_the_reference_is_the_base_and_takes_no_memory(here, configure):
    data = {"train": {"kind": "files", "paths": [_pairs(configure_directory(configure), here)]}}
    run = build_run(here, configure(LAYOUTS[1], recipe="dpo", data=data))
    reference = run.roles["reference"].engine
    assert isinstance(reference, InitialWeights) and reference.copy is None
    _update(run)
    sequences = some_sequences(3, run.arch.vocab_size)
    plain = once(here, lambda: Reference(run.config.model.path).outputs(sequences))
    outputs_equal(reference, sequences, plain)
    actor = run.roles["actor"].engine.infer(sequences)
    for now, before in zip(actor, reference.infer(sequences), strict=True):
        assert (now.log_probs - before.log_probs).abs().max() > 1e-3


def configure_directory(configure):
    return Path(configure().directory).parent / "reference"


@pytest.mark.parametrize(
    "family, place, dtype",
    # Each layout with one element type, each place and each family with both.
    [
        *((FAMILIES[n // 3], n % 3, DTYPES[n % 2]) for n in range(6)),
        ("gemma3_text", -1, "bfloat16"),
        *all_slow(*(("qwen3", -1, dtype) for dtype in DTYPES)),
        *all_slow(*((FAMILIES[n // 3], n % 3, DTYPES[1 - n % 2]) for n in range(6))),
    ],
)
def test_the_ledger_counts_what_adapters_take(here, configure, family, place, dtype):
    parallel = (EXPERTS if family == "qwen3_moe" else LAYOUTS)[place]
    path = configure(family=family).model.path
    config = configure(parallel, family, model={"path": path, "dtype": dtype})
    run = build_run(here, config)
    engine = run.roles["actor"].training
    arch = read_architecture(path)
    told = ledger(config, arch, run.layouts, Hardware(KINDS["cpu"], 4))
    (update,) = (p for p in told.of_rank(here.world.rank) if p.name == "update")
    terms = {n.rpartition(".")[2]: size for n, size in update.device.items()}
    expected = counted(engine)
    assert {n: terms.get(n, 0) for n in expected} == expected
