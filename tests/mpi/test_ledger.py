"""The memory ledger against engines that are there: every term that it calls exact equals the bytes
of the engine's storages, on every rank.

Engines are built once a layout and element type; recipes and what is offloaded are compositions of
them, and each is asked of the ledger of a whole run.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from pathlib import Path

import pytest
import torch

from tests.mpi.engines_for_tests import layouts_of_world, rollout_of
from tests.mpi.recipe_runs import configure
from tests.mpi.storages import storage_bytes
from tests.slow import all_slow
from verl_hpc.engines.factory import build_engine, engine_shard_map, start_layouts
from verl_hpc.engines.fsdp.engine import FsdpEngine
from verl_hpc.engines.megatron.engine import MegatronEngine
from verl_hpc.hardware.node import KINDS, Hardware
from verl_hpc.layout.architecture import Architecture, read_architecture
from verl_hpc.layout.rollout import rollout_shard_map
from verl_hpc.placement.layouts import run_layouts
from verl_hpc.planner.memory.buffers import Buffer
from verl_hpc.planner.memory.ledger import ledger
from verl_hpc.planner.memory.parameters import chunk_parameters
from verl_hpc.planner.shape import RoleShape
from verl_hpc.step.role import InitialWeights
from verl_hpc.trainer.sync import PARTS

_TIED, _GROUPED, _BIASED = (
    {"tied": True},
    {"num_key_value_heads": 2, "family": "qwen3"},
    {"num_key_value_heads": 2, "family": "qwen2", "num_hidden_layers": 6},
)
# (sizes, what the model has that others have not)
LAYOUTS = {
    1: [({}, {}), ({}, _TIED)],
    2: [
        ({"tp": 2}, _TIED),
        ({"pp": 2}, _TIED),
        ({"dp": 2}, _GROUPED),
        ({"pp": 2, "vpp": 2}, {}),
        ({"tp": 2, "sequence_parallel": True}, _GROUPED),
        ({"dp": 2, "engine": "fsdp"}, {}),
    ],
    4: [
        ({"tp": 4}, _GROUPED),
        ({"tp": 2, "pp": 2}, _TIED),
        ({"tp": 2, "dp": 2, "sequence_parallel": True}, _BIASED),
        ({"pp": 2, "dp": 2}, _TIED),
        ({"pp": 4}, _BIASED),
        ({"pp": 2, "vpp": 2, "dp": 2}, _TIED),
        ({"dp": 4}, {}),
        ({"dp": 4, "engine": "fsdp", "shard_size": 2}, {}),
    ],
    8: [({"tp": 2, "pp": 2, "dp": 2}, _TIED), ({"pp": 4, "dp": 2}, _GROUPED)],
}
RECIPES = {
    "sft": {"recipe": "sft"},
    "grpo": {
        "recipe": "rl",
        "rollout": {"num_samples": 2},
        "algorithm": {"kl": {"placement": "loss"}},
    },
    "ppo": {
        "recipe": "rl",
        "algorithm": {"advantage": {"name": "gae"}, "kl": {"placement": "reward"}},
    },
}
# With float32 weights there are no master weights beside them.
DTYPES = ["bfloat16", *all_slow("float32")]
OFFLOADS = [(), ("gradients",), ("optimizer", "gradients"), PARTS]
CORES = Hardware(KINDS["cpu"], 2)
TERMS = {"gradients": ["gradients"], "optimizer": ["masters", "moments"], "parameters": ["weights"]}
"""The terms of each part that may be offloaded."""
EXACT = ("weights", "gradients", "masters", "moments")


def pytest_generate_tests(metafunc):
    layouts_of_world(metafunc, {n: [s for s, _ in found] for n, found in LAYOUTS.items()})


class Engines:
    """Everything that a run on one layout may have on a rank, built once."""

    def __init__(self, here, sizes: Mapping, arch: Architecture, directory, dtype: str) -> None:
        self.here, self.sizes, self.arch, self.dtype = here, sizes, arch, dtype
        run = self.run("ppo", ())
        self.layout = run_layouts(run, arch, here.world.size).train["actor"]
        start_layouts(here.groups, [self.layout], seed=1)
        self.by_role = {name: self._engine(run, name) for name in ("actor", "critic")}
        self.reference = InitialWeights(self.by_role["actor"])
        self.replicas = tuple((rank,) for rank in range(here.world.size))
        self.rollout = rollout_of(here, directory, self.replicas, run.rollout, dtype)

    def run(self, recipe: str, offload):
        """The configuration of a run of which these would be the engines."""
        names = {"tp": "tensor_parallel", "pp": "pipeline_parallel", "vpp": "virtual_pipeline"}
        parallel = {names.get(n, n): v for n, v in self.sizes.items() if n != "dp"}
        if "shard_size" in parallel:
            parallel["fsdp"] = {"shard_size": parallel.pop("shard_size")}
        limits = {"engine": "hf", "max_prompt_tokens": 32, "max_response_tokens": 16}
        settings = {
            **RECIPES[recipe],
            "model": {"path": "none", "dtype": self.dtype},
            "parallel": parallel,
            "offload": dict.fromkeys(offload, True),
            "rollout": limits | RECIPES[recipe].get("rollout", {}),
        }
        return configure("ledger", "none", Path(), **settings)

    def maps(self, run):
        """Where the weights of a run's actor and of its rollout engine lie."""
        role = run.role_settings["actor"]
        kind = {"engine": role.parallel.engine, "trainable": role.trainable}
        source = engine_shard_map(self.arch, self.layout, role.model, role.head, **kind)
        return source, rollout_shard_map(run.rollout, self.arch, self.replicas, self.dtype)

    def _engine(self, run, name: str) -> MegatronEngine:
        role = run.role_settings[name]
        return build_engine(
            self.arch,
            self.layout,
            role.model,
            role.parallel,
            head=role.head,
            optimizer=role.optimizer,
            max_tokens=64,
            name=name,
        )


def counted(engine: MegatronEngine) -> dict[str, int]:
    """Bytes of an engine's storages, by the ledger's terms."""
    sharded = isinstance(engine, FsdpEngine)
    weights = list(engine._memory("parameters") if sharded else engine.weights.values())
    state = engine.optimizer_tensors()
    held = {tensor.untyped_storage().data_ptr() for tensor in weights}
    mains = [tensor for name, tensor in state.items() if name.startswith("main/")]
    chunks = [] if sharded else engine._chunks
    buffers = [b for c in chunks for b in (*c.buffers, *c.expert_parallel_buffers)]
    return {
        "weights": storage_bytes(weights),
        "gradients": storage_bytes(b.grad_data for b in buffers),
        "masters": storage_bytes(t for t in mains if t.untyped_storage().data_ptr() not in held),
        "moments": storage_bytes(t for n, t in state.items() if not n.startswith("main/")),
    }


@pytest.fixture(scope="module")
def built(here, tiny_model):
    """`built(sizes, dtype)`: engines on the layout, built once."""
    known: dict = {}

    def get(sizes, dtype) -> Engines:
        key = str(sizes), dtype
        if key not in known:
            more = next(m for s, m in LAYOUTS[here.world.size] if s == sizes)
            directory = tiny_model(**{"num_hidden_layers": 4, **more})
            known[key] = Engines(here, sizes, read_architecture(directory), directory, dtype)
        return known[key]

    return get


@pytest.mark.parametrize("dtype", DTYPES)
def test_exact_terms_are_the_bytes_of_storages(built, here, sizes, dtype):
    engines = built(sizes, dtype)
    wanted = {name: counted(engine) for name, engine in engines.by_role.items()}
    reference = sum(p.nbytes for pieces in engines.reference.copy for p in pieces)
    rollout = storage_bytes(engines.rollout.weights.values())
    for recipe, offload in product(RECIPES, OFFLOADS):
        run = engines.run(recipe, offload)
        layouts = run_layouts(run, engines.arch, here.world.size)
        assert layouts.train["actor"] == engines.layout
        phases = ledger(run, engines.arch, layouts, CORES).of_rank(here.world.rank)
        update = next(p for p in phases if p.name == "update" and p.of == "actor")
        for role in run.role_settings:
            if role in wanted:
                terms = {term: update.device.get(f"{role}.{term}", 0) for term in EXACT}
                assert terms == wanted[role], (recipe, offload, role)
        assert update.host.get("reference.weights", 0) == (recipe != "sft") * reference
        assert update.device.get("rollout.weights", 0) == (recipe != "sft") * rollout
        if recipe != "sft":
            check_generation(phases, run, wanted, offload)


def check_generation(phases, run, wanted: Mapping, offload) -> None:
    """What `offload` names is away while the engine generates, and nothing else is."""
    away = {term for part in offload for term in TERMS[part]}
    generate = next(p for p in phases if p.name == "generate")
    for role in run.role_settings:
        for term, size in wanted.get(role, {}).items():
            assert generate.device.get(f"{role}.{term}", 0) == (term not in away) * size
        copies = {"parameters": "weights_copy", "optimizer": "optimizer_copy"}
        for part, copy in copies.items() if role in wanted else ():
            size = sum(wanted[role][term] for term in TERMS[part])
            assert generate.host.get(f"{role}.{copy}", 0) == (part in offload) * size


@pytest.mark.parametrize("offload", OFFLOADS[1:], ids="-".join)
@pytest.mark.parametrize("role", ["actor", "critic"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_offloaded_is_what_the_ledger_takes_away(built, sizes, dtype, role, offload):
    engine = built(sizes, dtype).by_role[role]
    wanted = counted(engine)
    freed = {part: engine.offload(part) for part in offload}
    host = engine.host
    of = {"parameters": host._changing, "gradients": host._gradients, "optimizer": host._state}
    kept = {
        part: sum(p.nbytes for _, pieces, _ in of[part]._away for p in pieces) for part in offload
    }
    for part in reversed(offload):
        engine.onload(part)
    sizes_of = {part: sum(wanted[term] for term in terms) for part, terms in TERMS.items()}
    assert freed == {part: sizes_of[part] for part in offload}
    assert kept == {part: (part != "gradients") * sizes_of[part] for part in offload}


@pytest.mark.parametrize("bucket_size", [None, 3000, 20_000])
def test_buckets_of_gradients_are_megatron_cores(built, sizes, bucket_size):
    """Also where a buffer is cut, as on GPUs."""
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.distributed.param_and_grad_buffer import _ParamAndGradBuffer
    from megatron.core.process_groups_config import ProcessGroupCollection

    engines = built(sizes, "bfloat16")
    groups = engines.by_role["actor"]._groups
    run = engines.run("grpo", ())
    shape = RoleShape.of_role(run.role_settings["actor"], engines.arch, engines.layout, False)
    stage = groups.stages.index(torch.distributed.get_rank())
    parameters = chunk_parameters(shape, stage, 0)
    tensors = [torch.nn.Parameter(torch.zeros(p.num_elements)) for p in parameters]
    for tensor, parameter in zip(tensors, parameters, strict=True):
        tensor.shared_embedding = parameter.own_bucket
    with groups.entered():
        theirs = _ParamAndGradBuffer(
            DistributedDataParallelConfig(use_distributed_optimizer=True),
            torch.float32,
            torch.float32,
            tensors,
            groups.dp,
            bucket_size,
            {tensor: str(i) for i, tensor in enumerate(tensors)},
            1.0,
            list(range(len(tensors))),
            False,
            ProcessGroupCollection(tp=groups.tp, dp_cp=groups.dp),
        )
    ours = Buffer(parameters, groups.dp.size(), bucket_size)
    assert ours.buckets == theirs.bucket_indices
    assert ours.num_elements == theirs.numel
