"""What autograd keeps for the backward pass, against the ledger's formulas of PyTorch's layers.

Counted on real engines, storages once, at the fullest moment of an update: 1F1B and interleaved
pipelines, recomputation, sequence parallelism, rows that need padded rectangles. Transformer
Engine's layers need a GPU; theirs are formulas.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.mpi import plugin
from tests.mpi.storages import Saved
from verl_hpc.config.model import ModelConfig, OptimizerConfig, ParallelConfig
from verl_hpc.engines.factory import build_engine, start_layouts
from verl_hpc.engines.shared.padded import similar_lengths
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.blocks import LatentAttention, RouterShape
from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.planner.memory.activations import NONE, Rectangles, split_rectangles
from verl_hpc.planner.memory.passes import moments
from verl_hpc.planner.shape import RoleShape

TOLERANCE = 0.15
SAVED = ("activations", "recomputed", "logits")
"""Terms of the ledger that autograd keeps; the others come and go."""
ARCH = Architecture(
    family="llama",
    num_layers=4,
    hidden_size=64,
    ffn_size=112,
    num_heads=8,
    num_kv_heads=4,
    head_size=8,
    vocab_size=250,
    tied_embeddings=False,
)
GROUPED = {"family": "qwen3", "num_kv_heads": 2}
EXPERTS = {"family": "qwen3_moe", "num_experts": 4, "experts_per_token": 2}
LATENT = {
    "family": "deepseek_v3",
    "num_kv_heads": 8,
    "head_size": 24,
    "ffn_size": 56,
    "num_experts": 4,
    "experts_per_token": 2,
    "num_dense_layers": 1,
    "dense_ffn_size": 112,
    "shared_ffn_size": 56,
    "latent": LatentAttention(24, 32, rope_size=8, nope_size=16, value_size=12),
    "router": RouterShape(True, 2, 1, 2.5, True),
}
DIRECT = LATENT | {"latent": LatentAttention(None, 32, rope_size=8, nope_size=16, value_size=12)}
PARTIAL = EXPERTS | {
    "family": "glm4_moe",
    "ffn_size": 56,
    "num_dense_layers": 1,
    "dense_ffn_size": 112,
    "shared_ffn_size": 56,
    "rotated_share": 0.5,
    "router": RouterShape(sigmoid=True, has_bias=True),
    "attention_bias": True,
    "use_qk_norm": True,
}
GATED = EXPERTS | {"family": "qwen2_moe", "ffn_size": 56, "shared_ffn_size": 112}
SINKS = EXPERTS | {"family": "gpt_oss", "ffn_size": 56, "window": 24, "attention_bias": True}
FULL, SELECTIVE = {"recompute": "full"}, {"recompute": "selective"}
CORE = SELECTIVE | {"recompute_modules": ["core_attn"]}
PAIRS = FULL | {"recompute_num_layers": 2}
BLOCK = FULL | {"recompute_method": "block", "recompute_num_layers": 1}
SEQUENCE = {"sequence_parallel": True}
EVEN, RAGGED, UNLIKE = (100, 100), (120, 40, 40), (150, 3, 3)
# (sizes, settings, dtype, lengths in a row, what the model has)
CASES = {
    1: [
        ({}, {}, "float32", EVEN, {}),
        ({}, {}, "bfloat16", RAGGED, GROUPED),
        ({}, FULL, "float32", EVEN, GROUPED),
        ({}, PAIRS, "bfloat16", RAGGED, {}),
        ({}, BLOCK, "bfloat16", EVEN, {}),
        ({}, SELECTIVE, "float32", RAGGED, {}),
        ({}, CORE, "bfloat16", RAGGED, {}),
        ({}, {}, "float32", UNLIKE, {}),
        ({}, {}, "bfloat16", (170, 10, 10, 10), GROUPED),
        ({}, {}, "float32", (100, 30, 20), GROUPED),
        ({}, {}, "float32", EVEN, EXPERTS),
        ({}, FULL, "bfloat16", RAGGED, EXPERTS),
        ({}, {}, "bfloat16", EVEN, EXPERTS | {"family": "mixtral", "experts_per_token": 3}),
        ({}, {}, "float32", EVEN, LATENT),
        ({}, {}, "bfloat16", RAGGED, DIRECT),
        ({}, FULL, "float32", RAGGED, LATENT),
        ({}, {}, "float32", EVEN, PARTIAL),
        ({}, {}, "float32", RAGGED, GATED),
        ({}, {}, "float32", EVEN, SINKS),
        ({}, {}, "bfloat16", RAGGED, SINKS),
    ],
    2: [
        ({"tp": 2}, {}, "bfloat16", EVEN, {}),
        ({"tp": 2}, SEQUENCE, "float32", RAGGED, GROUPED),
        ({"pp": 2}, {}, "float32", RAGGED, {}),
        ({"pp": 2}, FULL, "bfloat16", EVEN, {}),
        ({"pp": 2, "vpp": 2}, {}, "bfloat16", EVEN, GROUPED),
        ({"pp": 2, "vpp": 2}, SELECTIVE, "bfloat16", EVEN, {}),
        ({"dp": 2, "cp": 2}, {}, "float32", EVEN, {}),
        ({"dp": 2, "cp": 2}, {}, "bfloat16", (128, 64), GROUPED),
        ({"dp": 2, "cp": 2}, {}, "float32", (160,), GROUPED),
        ({"dp": 2, "cp": 2}, FULL, "bfloat16", EVEN, {}),
        ({"dp": 2, "ep": 2}, {}, "float32", EVEN, EXPERTS),
        ({"tp": 2, "ep": 2}, SEQUENCE, "bfloat16", RAGGED, EXPERTS),
        ({"tp": 2, "etp": 2}, SEQUENCE, "float32", EVEN, EXPERTS),
        ({"tp": 2, "ep": 2}, SEQUENCE, "bfloat16", EVEN, LATENT),
        ({"pp": 2, "dp": 1}, {}, "float32", EVEN, LATENT),
        ({"dp": 2, "cp": 2}, {}, "float32", EVEN, LATENT),
        ({"tp": 2, "ep": 2}, SEQUENCE, "bfloat16", RAGGED, PARTIAL),
        ({"tp": 2, "ep": 2}, SEQUENCE, "bfloat16", EVEN, GATED),
        ({"tp": 2, "ep": 2}, SEQUENCE, "bfloat16", RAGGED, SINKS),
    ],
    4: [
        ({"tp": 2, "pp": 2}, SEQUENCE, "bfloat16", EVEN, {}),
        ({"tp": 4}, SELECTIVE, "bfloat16", EVEN, GROUPED),
        ({"pp": 4}, {}, "float32", EVEN, {}),
        ({"tp": 2, "pp": 2, "ep": 2}, SEQUENCE, "bfloat16", EVEN, EXPERTS),
        ({"tp": 2, "dp": 2, "ep": 2, "etp": 2}, SEQUENCE, "float32", EVEN, EXPERTS),
    ],
}

# Each number of ranks has recomputations and splits that the others lack.
pytestmark = pytest.mark.world(*CASES, each_push=True)


def pytest_generate_tests(metafunc):
    found = CASES.get(plugin.session.world.size, [])
    names = [f"{sizes}-{settings}-{dtype}" for sizes, settings, dtype, *_ in found]
    metafunc.parametrize("case", found, ids=[n.translate(str.maketrans("", "", "{}' :,"))
                                            for n in names])  # fmt: skip


def rectangles(lengths) -> Rectangles:
    """The padded rectangles of a row."""
    groups = similar_lengths(lengths)
    tokens = sum(len(group) * max(lengths[i] for i in group) for group in groups)
    return NONE if len(set(lengths)) == 1 else Rectangles(tokens, len(groups) > 1)


def test_activations_are_within_15_per_cent(here, case):
    sizes, settings, dtype, lengths, changes = case
    layout, model = TrainLayout(**sizes), ModelConfig(path="none", dtype=dtype)
    arch = replace(ARCH, **changes)
    parallel = ParallelConfig(
        tensor_parallel=layout.tp,
        pipeline_parallel=layout.pp,
        virtual_pipeline=layout.vpp,
        context_parallel=layout.cp,
        **settings,
    )
    tokens, num_rows = sum(lengths), 2 * layout.pp
    start_layouts(here.groups, [layout], seed=1)
    engine = build_engine(
        arch,
        layout,
        model,
        parallel,
        head="language_model",
        optimizer=OptimizerConfig(),
        max_tokens=tokens,
        name="model",
    )
    for parameter in engine.weights.values():
        torch.nn.init.normal_(parameter, std=0.1)
    sequences = [torch.randint(0, 250, (length,)) for length in lengths * num_rows]

    def loss(indices, outputs):
        del indices
        return sum(o.log_probs.sum() + o.entropy.sum() for o in outputs), {}

    saved = Saved(engine.weights.values())
    with saved.counting():
        engine.update(sequences, loss)
    shape = RoleShape.of(arch, layout, model, parallel, on_gpu=False)
    stage = layout.grid.coordinates(here.world.rank)["pp"]
    padded = rectangles(lengths)
    if layout.cp > 1:
        padded = split_rectangles(sum(n * n for n in lengths), layout.cp)
    told = moments(shape, stage, tokens // layout.cp, num_rows, padded)
    planned = max(sum(terms.get(name, 0) for name in SAVED) for terms in told)
    counted = here.control.allgather((stage, saved.most))
    most = [size for of, size in counted if of == stage]
    # Of the tokens some experts have more than others: the ledger's are as many for each.
    wanted = sum(most) / len(most) if layout.ep > 1 else saved.most
    assert abs(planned / wanted - 1) < TOLERANCE, (planned, wanted, stage)
    assert saved.now == 0
