"""Choose the engine of a model: fully_shard in the FSDP form, unless it cannot honour a setting.

verl's default is FSDP, and what is not given has verl's default: weights, gradients and moments are
then sharded here as they are there. Whether a model is a mixture of experts, which Megatron-core
alone trains, is in its config.json; the run itself refuses that, and the note of `strategy` says
what to give.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from verl_hpc.config.model import OF_MEGATRON, OTHER_ENGINES, ParallelConfig
from verl_hpc.migration.legacy import OWN
from verl_hpc.migration.models import ACTOR, CRITIC, FSDP, REF, ROLE
from verl_hpc.migration.row import Draft, Row, fixed
from verl_hpc.migration.values import Refused, Values

_STRATEGIES = ("fsdp", "fsdp2", "megatron")
_SUMS = {"fp32": "float32", "float32": "float32", "bf16": "bfloat16", "bfloat16": "bfloat16"}
_OF_EXPERTS = ("algorithm.router_replay", "rollout.expert_parallel")
_ALONE = ("model.fp8", "model.router", *_OF_EXPERTS, "rollout.quantization")
"""Settings, or sections, that Megatron-core alone honours."""
_KNOWN = f"{OWN}parallel."
_PLAIN = (
    "as plain data parallelism whose optimizer is sharded; weights and gradients are whole on "
    "every rank, so give verl_hpc.parallel.tensor_parallel if they do not fit"
)


def engine_of(
    values: Values, draft: Draft, model: str, layout: Mapping[str, Any]
) -> dict[str, Any]:
    """`engine` of a model's section parallel, and what of its section fsdp is not our default.

    Args:
        layout: the rest of its section parallel.
    """
    key = f"{model}.strategy"
    wanted = _strategy(values, model) != "megatron"
    own = [values.own.get(f"{prefix}parallel.engine") for prefix in (ROLE[model], "")]
    chosen = next((engine for engine in own if engine is not None), None)
    if wanted and values.form == "megatron":
        _check_form(values, model)
    obstacle = None
    if chosen is None and wanted:
        obstacle = next(_obstacles(values, draft, model, layout), None)
    is_fsdp = chosen == "fsdp" if chosen is not None else wanted and obstacle is None
    if obstacle is not None and not obstacle.startswith(_KNOWN):
        text = f"Megatron-core trains, which alone honours {obstacle}, {_PLAIN}"
        if text not in draft.notes.values():
            draft.note(key, text)
    elif is_fsdp and chosen is None and model == ACTOR:
        draft.note(
            key,
            "fully_shard trains (parallel.engine: fsdp); a mixture of experts needs "
            "verl_hpc.parallel.engine=megatron",
        )
    return {"engine": "fsdp"} | _fsdp(values, model) if is_fsdp else _megatron(values, model)


def _strategy(values: Values, model: str) -> str:
    """Raises: Refused: no engine that is here."""
    key = f"{model}.strategy"
    found = values.word(key)
    if found not in _STRATEGIES:
        expected = f"expected one of {', '.join(_STRATEGIES)}"
        raise Refused(key, OTHER_ENGINES.get(found, expected), "parallel.engine")
    return found


def _check_form(values: Values, model: str) -> None:
    """Raises: Refused: a model of FSDP's in the Megatron form, which has no settings for it."""
    near = f"verl_hpc.{ROLE[model]}parallel.engine=fsdp"
    if model == ACTOR:
        raise Refused(f"{model}.strategy", "this is verl's Megatron form", "model_engine=dp")
    given = next((key for key in values.given if key.startswith(f"{model}.megatron.")), None)
    if given is not None:
        raise Refused(f"{model}.strategy", f"and {given} is Megatron's", near)


def _obstacles(
    values: Values, draft: Draft, model: str, layout: Mapping[str, Any]
) -> Iterator[str]:
    """What is set and Megatron-core alone honours, as a person calls it."""
    for name in OF_MEGATRON:
        default = ParallelConfig.model_fields[name].default
        ours = [f"{prefix}parallel.{name}" for prefix in dict.fromkeys((ROLE[model], ""))]
        yield from (f"{OWN}{one}" for one in ours if values.own.get(one, default) != default)
        if layout.get(name, default) != default:
            yield f"{ours[0]} = {layout[name]}"
    own = [values.own.get(f"{prefix}parallel.recompute") for prefix in (ROLE[model], "")]
    if "selective" in (layout.get("recompute"), *own):
        yield f"{OWN}parallel.recompute = selective"
    weights = "critic.model" if model == CRITIC else "actor_rollout_ref.model"
    rank = f"{weights}.{'lora.rank' if values.form == 'megatron' else 'lora_rank'}"
    if values[rank]:
        yield f"adapters ({rank})"
    settings = draft.settings | dict(values.own)
    for name, value in settings.items():
        alone = name.startswith(_ALONE) and _concerns(name, model)
        adapters = name in values.own and name.startswith(("lora.", f"{ROLE[model]}lora."))
        if (alone or adapters) and value not in (None, False, 0, "none"):
            yield f"{OWN}{name}" if name in values.own else name
    rollout = "actor_rollout_ref.rollout"
    switch, quantized = f"{rollout}.enable_rollout_routing_replay", f"{rollout}.quantization"
    yield from (key for key in (switch, quantized) if values[key] and _concerns(key, model))
    if values[f"{rollout}.expert_parallel_size"] != 1:
        yield f"mixtures of experts ({rollout}.expert_parallel_size)"


def _concerns(name: str, model: str) -> bool:
    """The critic's weights do not travel to a quantised rollout."""
    return model != CRITIC or not name.endswith("rollout.quantization")


def _fsdp(values: Values, model: str) -> dict[str, Any]:
    if values.form == "megatron" or model == REF:
        return {}
    found = _shards(values, f"{FSDP[model]}.fsdp_size")
    if values.flag(f"{FSDP[model]}.forward_prefetch"):
        found["fsdp.forward_prefetch"] = True
    if not values.flag(f"{FSDP[model]}.reshard_after_forward"):
        found["fsdp.reshard_after_forward"] = False
    if _sums(values, model) != "float32":
        found["fsdp.reduce_dtype"] = _sums(values, model)
    if _liger(model) in values and not values.flag(_liger(model)):
        found["fsdp.kernels"] = "flash_attention"
    return found


def _liger(model: str) -> str:
    return f"{'critic' if model == CRITIC else 'actor_rollout_ref'}.model.use_liger"


def _shards(values: Values, key: str) -> dict[str, Any]:
    """Ranks that divide one copy of the parameters, where they are not all; how many there are is
    known where trainer.n_gpus_per_node is given."""
    nodes, gpus = "trainer.nnodes", "trainer.n_gpus_per_node"
    if values[key] in (None, -1):
        return {}
    size = values.whole(key)
    ranks = values.whole(nodes) * values.whole(gpus) if gpus in values else None
    if ranks is not None and size >= ranks:
        return {}
    if ranks is not None and ranks % size:
        raise Refused(key, f"does not divide the {ranks} ranks", "parallel.fsdp.shard_size")
    return {"fsdp.shard_size": size}


def _megatron(values: Values, model: str) -> dict[str, Any]:
    if values.form == "fsdp" and model != REF and _sums(values, model) != "float32":
        key = f"{FSDP[model]}.mixed_precision.reduce_dtype"
        raise Refused(key, "Megatron-core, which trains, sums gradients in float32", "parallel")
    return {"engine": "megatron"}


def _sums(values: Values, model: str) -> str:
    """The element type in which gradients are summed."""
    section = f"{FSDP[model]}.mixed_precision"
    found = values.below(section).get("reduce_dtype", "fp32")
    if not isinstance(found, str) or found not in _SUMS:
        raise Refused(f"{section}.reduce_dtype", "expected fp32 or bf16", _FSDP_SETTINGS)
    return _SUMS[found]


def has_own_choice(values: Values, model: str) -> bool:
    """Whether the reference is told another engine than the actor's, in whose engine it is."""
    same = (_strategy(values, m) == "megatron" for m in (model, ACTOR))
    named = f"{ROLE[model]}parallel.engine" in values.own
    return named or len(set(same)) > 1


_FSDP_SETTINGS = "parallel.fsdp (docs/fsdp.md)"
_COMPILES = "verl compiles entropies by it, which are made without a copy of all logits here"
_ACTORS = "the reference computes in the actor's engine"
_KEYS = {
    "wrap_policy.min_num_params": "layers are gathered one at a time",
    "offload_policy": "parameters that wait in host memory during a pass are not there",
    "model_dtype": "ranks keep float32 shards, which are their own master weights",
    "use_orig_params": "fully_shard always has them",
    "forward_only": "what is not trained has no optimizer",
    "turbo_config.*": "of another engine of verl's",
}


def fsdp_rows(model: str) -> list[Row]:
    """Rows of fully_shard's own settings, without those that the section parallel is read from."""
    fsdp = FSDP[model]
    return [
        *(fixed(f"{fsdp}.{name}", says, _FSDP_SETTINGS) for name, says in _KEYS.items()),
        fixed(f"{fsdp}.strategy", "the model's own decides", f"{model}.strategy", also=("fsdp2",)),
        fixed(f"{fsdp}.use_torch_compile", _COMPILES, "parallel.fsdp.compile", also=(False,)),
        fixed(
            f"{fsdp}.mixed_precision.*",
            "what is not a parameter is float32",
            _FSDP_SETTINGS,
            also=("fp32", "float32"),
        ),
        *(_reference_rows(fsdp) if model == REF else []),
    ]


def _reference_rows(fsdp: str) -> list[Row]:
    sums = f"{fsdp}.mixed_precision.reduce_dtype"
    return [
        fixed(f"{fsdp}.reshard_after_forward", _ACTORS, _FSDP_SETTINGS, also=(False,)),
        fixed(f"{fsdp}.forward_prefetch", _ACTORS, _FSDP_SETTINGS, also=(True,)),
        fixed(f"{fsdp}.fsdp_size", _ACTORS, _FSDP_SETTINGS),
        fixed(sums, "the reference sums no gradients", _FSDP_SETTINGS, also=tuple(_SUMS)),
    ]


def compile_rows() -> list[Row]:
    """Rows of older names of use_torch_compile."""
    near = "parallel.fsdp.compile"
    return [fixed(f"{m}.use_torch_compile", _COMPILES, near, also=(False,)) for m in (ACTOR, REF)]


def layout_keys(model: str) -> dict[str, tuple[str, str]]:
    """Keys of fully_shard's that the section parallel is read from, as of `together`."""
    ours = f"{ROLE[model]}parallel"
    rows = {f"{model}.strategy": (f"{ours}.engine", _SAYS[model])}
    if model == REF:
        return rows
    section, fsdp = f"{ours}.fsdp", FSDP[model]
    precision = f"{fsdp}.mixed_precision"
    return rows | {
        f"{fsdp}.reshard_after_forward": (f"{section}.reshard_after_forward", "with engine: fsdp"),
        f"{fsdp}.forward_prefetch": (f"{section}.forward_prefetch", "with engine: fsdp"),
        f"{fsdp}.fsdp_size": (
            f"{section}.shard_size",
            "with engine: fsdp; -1, or as many as there are ranks, is null",
        ),
        _liger(model): (
            f"{section}.kernels",
            "with engine: fsdp; false, if it is given, is flash_attention; true is auto",
        ),
        f"{precision}.reduce_dtype": (f"{section}.reduce_dtype", "with +; fp32 or bf16"),
        precision: (f"{section}.reduce_dtype", "with +; reduce_dtype, and param_dtype as dtype"),
    }


_SAYS = {
    ACTOR: "fsdp and fsdp2 are fsdp, unless a setting is Megatron-core's alone (a note says which)",
    REF: "the actor's engine, unless one of the two is megatron",
    CRITIC: "as the actor's; it may have another",
}
