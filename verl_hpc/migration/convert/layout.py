"""How each model is cut and kept, and which engine trains it.

Sizes are Megatron's or FSDP's Ulysses. The engine is fully_shard in the FSDP form, unless it cannot
honour a setting. verl's default is FSDP, and what is not given has verl's default: weights,
gradients and moments are then sharded here as they are there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from verl_hpc.config.model import OF_MEGATRON, OTHER_ENGINES, OffloadConfig, ParallelConfig
from verl_hpc.migration.convert.plain import our_word, word_for
from verl_hpc.migration.legacy import OWN
from verl_hpc.migration.models import Kind, model_at
from verl_hpc.migration.reference import reference
from verl_hpc.migration.row import ACTOR, CRITIC, FSDP, MODEL, REF, ROLE, ROLLOUT, Draft, is_there
from verl_hpc.migration.table import note, rows
from verl_hpc.migration.values import Refused, Values

_REPLAY, _SWITCH = "algorithm.router_replay", f"{ROLLOUT}.enable_rollout_routing_replay"
_ALONE = (
    *("model.fp8", "model.router", _REPLAY),
    *("rollout.expert_parallel", "rollout.quantization"),
)
"""Settings, or sections, that Megatron-core alone honours."""
_KNOWN = f"{OWN}parallel."


def _engine(values: Values, draft: Draft, model: str, layout: Mapping[str, Any]) -> dict[str, Any]:
    """`engine` of a model's section parallel, and what of its section fsdp is not our default.

    Args:
        layout: the rest of its section parallel.
    """
    key = f"{model}.strategy"
    alone = is_for_fsdp_alone(values, model)
    wanted = _strategy(values, model) != "megatron" or alone
    own = [values.own.get(f"{prefix}parallel.engine") for prefix in (ROLE[model], "")]
    chosen = next((engine for engine in own if engine is not None), None)
    if wanted and values.form == "megatron" and not alone:
        _check_form(values, model)
    obstacle = None
    if chosen is None and wanted:
        obstacle = next(_obstacles(values, draft, model, layout), None)
    is_fsdp = chosen == "fsdp" if chosen is not None else wanted and obstacle is None
    if obstacle is not None and not obstacle.startswith(_KNOWN):
        kind = "adapters_travel" if "lora" in obstacle else "megatron_trains"
        text = note(kind, obstacle=obstacle)
        if text not in draft.notes.values():
            draft.note(key, text)
    elif is_fsdp and chosen is None and model == ACTOR and key not in draft.notes:
        draft.note(key, note("fsdp_trains"))
    if is_fsdp:
        return {"engine": "fsdp"} | _fsdp(values, model)
    if _kind(values, model)[0] == "by_name":
        needs = f", and {obstacle} needs Megatron-core" if obstacle is not None else ""
        path = _kind(values, model)[1]
        raise Refused(
            f"{model}.strategy",
            f"the family of {path} is trained with fully_shard alone{needs}",
            f"verl_hpc.{ROLE[model]}parallel.engine=fsdp",
        )
    if values.form == "fsdp" and model != REF and _sums(values, model) != "float32":
        key = f"{FSDP[model]}.mixed_precision.reduce_dtype"
        draft.note(key, "Megatron-core, which trains, sums gradients in float32")
    return {"engine": "megatron"}


def _strategy(values: Values, model: str) -> str:
    """Raises: Refused: no engine that is here."""
    return str(our_word(values, f"{model}.strategy", OTHER_ENGINES))


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
    rank = f"{MODEL[model]}.{'lora.rank' if values.form == 'megatron' else 'lora_rank'}"
    # Megatron-core trains adapters of the families that it has: they travel to the rollout alone.
    is_mapped = _kind(values, model)[0] in ("mapped", None)
    if values[rank] and is_mapped:
        yield f"adapters ({rank})"
    settings = draft.settings | dict(values.own)
    for name, value in settings.items():
        alone = name.startswith(_ALONE) and _concerns(name, model)
        adapters = name in values.own and name.startswith(("lora.", f"{ROLE[model]}lora."))
        adapters = adapters and is_mapped
        if (alone or adapters) and value not in (None, False, 0, "none"):
            yield f"{OWN}{name}" if name in values.own else name
    for key in (_SWITCH, f"{ROLLOUT}.quantization"):
        if values[key] and _concerns(key, model):
            yield key
    several = values[f"{ROLLOUT}.tensor_model_parallel_size"] != 1
    if (
        several
        and not is_for_fsdp_alone(values, model)
        and values[f"{ROLLOUT}.expert_parallel_size"] != 1
    ):
        yield f"mixtures of experts ({ROLLOUT}.expert_parallel_size)"


def _kind(values: Values, model: str) -> tuple[Kind | None, str]:
    """What kind of model it is, as far as that is known, and the key of its path. A critic without
    a path of its own has the actor's."""
    path = f"{MODEL[model]}.path"
    path = path if path in values else f"{MODEL[ACTOR]}.path"
    return (model_at(values.path(path))[0] if path in values else None), path


def _concerns(name: str, model: str) -> bool:
    """The critic's weights do not travel to a quantised rollout."""
    return model != CRITIC or not name.endswith("rollout.quantization")


def _fsdp(values: Values, model: str) -> dict[str, Any]:
    if values.form == "megatron" or model == REF:
        return {}
    settings = _shards(values, f"{FSDP[model]}.fsdp_size")
    if values.flag(f"{FSDP[model]}.forward_prefetch"):
        settings["fsdp.forward_prefetch"] = True
    if not values.flag(f"{FSDP[model]}.reshard_after_forward"):
        settings["fsdp.reshard_after_forward"] = False
    if _sums(values, model) != "float32":
        settings["fsdp.reduce_dtype"] = _sums(values, model)
    liger = f"{MODEL[model]}.use_liger"
    if liger in values and not values.flag(liger):
        settings["fsdp.kernels"] = "flash_attention"
    return settings


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


def _sums(values: Values, model: str) -> str:
    """The element type in which gradients are summed."""
    section = f"{FSDP[model]}.mixed_precision"
    found = values.below(section).get("reduce_dtype", "fp32")
    return str(word_for(f"{section}.reduce_dtype", found))


def _reference_has_own_engine(values: Values) -> bool:
    """Whether the reference is told another engine than the actor's, in whose engine it is."""
    by_megatron = {_strategy(values, model) == "megatron" for model in (REF, ACTOR)}
    return f"{ROLE[REF]}parallel.engine" in values.own or len(by_megatron) > 1


def replay(values: Values, draft: Draft) -> None:
    """Whether the rollout's experts are taken again in training."""
    mode, engines = f"{ACTOR}.router_replay.mode", f"{ACTOR}.megatron.router_replay.mode"
    if engines in values:
        if mode in values:
            draft.note(mode, f"decides nothing: {engines} does")
        mode = engines
    source = our_word(values, mode)
    if (source == "rollout") != values.flag(_SWITCH):
        raise Refused(_SWITCH if _SWITCH in values else mode, "both are set, or neither", _REPLAY)
    draft.put(_REPLAY, source, mode, _SWITCH)


_OFFLOAD = {
    "parameters": "param_offload",
    "gradients": "grad_offload",
    "optimizer": "optimizer_offload",
}
_OF_FSDP = ("enable_gradient_checkpointing", "enable_activation_offload", "use_liger")


def _parallel(values: Values, model: str) -> dict[str, Any]:
    """Our section parallel of one of verl's models."""
    if values.form == "fsdp":
        sizes = {"context_parallel": _ulysses(values, model)}
        if model != REF and values.flag(f"{MODEL[model]}.enable_gradient_checkpointing"):
            sizes["recompute"] = "full"
            if values.flag(f"{MODEL[model]}.enable_activation_offload"):
                sizes["offload_activations"] = True
        return sizes
    keys = _megatron_keys(model)
    sizes = {name: values[key] for name, key in keys.items() if key.endswith("_size")}
    if sizes["expert_tensor_parallel"] is None:  # as Megatron-core takes it
        experts = sizes["expert_parallel"] not in (None, 1)
        sizes["expert_tensor_parallel"] = sizes["tensor_parallel"] if experts else 1
    sizes = {name: 1 if size is None else size for name, size in sizes.items()}
    if sizes["tensor_parallel"] != 1:
        sizes["sequence_parallel"] = values.flag(keys["sequence_parallel"])
    return sizes if model == REF else sizes | _recompute(values, keys)


def _section(values: Values, draft: Draft, model: str) -> dict[str, Any]:
    """`_parallel`, without what cuts a model in Megatron-core alone if only fully_shard trains its
    family."""
    section = _parallel(values, model)
    if not is_for_fsdp_alone(values, model):
        return section
    cuts = {name: section.pop(name) for name in OF_MEGATRON if name in section}
    dropped = [n for n, cut in cuts.items() if cut != ParallelConfig.model_fields[n].default]
    if section.get("recompute") == "selective":
        section["recompute"] = "full"
    if dropped:
        draft.note(f"{model}.strategy", note("by_name_trains", dropped=", ".join(dropped)))
    return section


def is_for_fsdp_alone(values: Values, model: str) -> bool:
    """Whether fully_shard alone trains a model's family, and no setting of ours says another."""
    own = [values.own.get(f"{prefix}parallel.engine") for prefix in (ROLE[model], "")]
    return _kind(values, model)[0] == "by_name" and "megatron" not in own


def _ulysses(values: Values, model: str) -> Any:
    keys = [f"{model}.ulysses_sequence_parallel_size"]
    keys.append(f"{FSDP[model]}.ulysses_sequence_parallel_size")
    return next((values[key] for key in keys if key in values), values[keys[0]])


@cache
def _megatron_keys(model: str) -> dict[str, str]:
    """Keys of the Megatron form by our setting of the section parallel."""
    prefix, section = f"{ROLE[model]}parallel.", f"{model}.megatron."
    keys = (row for row in rows() if row.key.startswith(section) and row.by == "layout.layout")
    return {row.ours[0].removeprefix(prefix): row.key for row in keys}


def _recompute(values: Values, keys: Mapping[str, str]) -> dict[str, Any]:
    granularity = our_word(values, keys["recompute"])
    if granularity is None:
        return {}
    if granularity == "selective":
        return {"recompute": granularity, "recompute_modules": values[keys["recompute_modules"]]}
    found = {name: values[keys[name]] for name in ("recompute_method", "recompute_num_layers")}
    return {"recompute": granularity} | {n: v for n, v in found.items() if v is not None}


def _note_keys_of_fsdp(values: Values, draft: Draft, model: str) -> None:
    """Note the keys that verl's Megatron form does not read."""
    for name in _OF_FSDP:
        key = f"{MODEL[model]}.{name}"
        if key in values and values[key] != values.default(key):
            draft.note(key, "decides nothing: it is read in the FSDP form alone")


def layout(values: Values, draft: Draft) -> None:
    """Sections `parallel` of the models."""
    if values.form == "megatron":
        for model in (ACTOR, CRITIC):
            _note_keys_of_fsdp(values, draft, model)
    sections = {model: _section(values, draft, model) for model in ROLE if is_there(values, model)}
    for model, section in sections.items():
        shared = sections[ACTOR]
        is_cut_alike = all(shared.get(name) == value for name, value in section.items())
        if model == REF and is_cut_alike and not _reference_has_own_engine(values):
            continue  # it recomputes nothing, and computes in the actor's engine
        section |= _engine(values, draft, model, section)
        default = {name: field.default for name, field in ParallelConfig.model_fields.items()}
        own = default | section != default | shared
        if model in (ACTOR, REF) or own:
            for name, value in section.items():
                setting = f"{ROLE[model]}parallel.{name}"
                draft.put(setting, value, *_origins(values, setting))


def _origins(values: Values, setting: str) -> tuple[str, ...]:
    """verl's keys that a setting is read from: the first that is given, or all of this form."""
    keys = _keys_of(setting)
    given = [key for key in keys if key in values]
    return tuple(given[:1] or (key for key in keys if key in reference().forms[values.form]))


@cache
def _keys_of(setting: str) -> tuple[str, ...]:
    return tuple(row.key for row in rows() if setting in row.ours)


def offload(values: Values, draft: Draft) -> None:
    """Sections `offload` of the models."""
    shared: dict[str, bool] = {}
    for model in (ACTOR, CRITIC):
        if not is_there(values, model):
            continue
        section = FSDP[model] if values.form == "fsdp" else f"{model}.megatron"
        engine = draft.settings.get("parallel.engine")
        engine = draft.settings.get(f"{ROLE[model]}parallel.engine", engine)
        offloaded = {
            ours: values.flag(f"{section}.{theirs}")
            for ours, theirs in _OFFLOAD.items()
            if not (ours == "gradients" and values.form == "fsdp")
        }
        if engine == "fsdp" and offloaded.get("gradients"):
            draft.note(f"{section}.grad_offload", note("gradients_freed"))
            offloaded["gradients"] = False
        if model == ACTOR or OffloadConfig(**offloaded) != OffloadConfig(**shared):
            for name, value in offloaded.items():
                draft.put(f"{ROLE[model]}offload.{name}", value, f"{section}.{_OFFLOAD[name]}")
        shared = shared or offloaded


def dtype(values: Values, draft: Draft) -> None:
    """Set the element type of parameters and activations."""
    shared = None
    for model in ROLE:
        if not is_there(values, model):
            continue
        key = f"{FSDP[model] if values.form == 'fsdp' else f'{model}.megatron'}.dtype"
        mixed = values.below(f"{FSDP[model]}.mixed_precision")
        dtype = word_for(key, mixed.get("param_dtype", values[key]))
        if model == ACTOR:
            shared = dtype
            draft.put("model.dtype", dtype, key)
        elif dtype != shared:
            draft.put(f"{ROLE[model]}dtype", dtype, key)
