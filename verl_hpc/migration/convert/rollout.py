"""actor_rollout_ref.rollout.*: the generation engine, and how evaluations sample."""

from __future__ import annotations

from typing import Any

from verl_hpc.config.tree import put
from verl_hpc.migration.convert.layout import is_for_fsdp_alone
from verl_hpc.migration.convert.plain import our_word, refusal
from verl_hpc.migration.row import ACTOR, ROLLOUT, Draft, same
from verl_hpc.migration.table import note
from verl_hpc.migration.values import Refused, Values

_VLLM = f"{ROLLOUT}.engine_kwargs.vllm"
_OPTIONS = "rollout.engine_options"
_GIB = 2**30
_SET = "evaluation.sets.validation"


def dtype(values: Values, draft: Draft) -> None:
    """The element type of the rollout's weights, if it is not the model's."""
    key = f"{ROLLOUT}.dtype"
    found = our_word(values, key)
    if key not in values or found in (None, draft.settings.get("model.dtype", "bfloat16")):
        return  # as the model's, which is what verl's default means with its own default
    draft.put("rollout.dtype", found, key)


def engine(values: Values, draft: Draft) -> None:
    """Options of vLLM itself, and those of verl's settings that are nothing else."""
    options: dict[str, Any] = {}
    for name in _ENGINE:
        key = f"{ROLLOUT}.{name}"
        if key in values and values[key] is not None:
            options[name] = values[key]
    for name, value in values.below(_VLLM).items():
        if name == "kv_cache_memory_bytes":
            key = f"{_VLLM}.{name}"
            if type(value) not in (int, float):
                raise Refused(key, "expected a number", "rollout.kv_cache_gib")
            draft.put("rollout.kv_cache_gib", value / _GIB, key)
        elif name == "kv_cache_dtype":
            draft.put("rollout.kv_cache_dtype", value, f"{_VLLM}.{name}")
        elif name == "max_model_len":
            _check_room(values, draft, f"{_VLLM}.{name}", value)
        elif value is not None:
            put(options, name, value)
    for name in ("gpu_memory_utilization", "enforce_eager"):
        if f"{ROLLOUT}.{name}" in values and values.word(f"{ROLLOUT}.name") == "hf":
            draft.note(f"{ROLLOUT}.{name}", f"is vLLM's, and {ROLLOUT}.name is hf")
    if options:
        draft.put(_OPTIONS, options, _VLLM, *(f"{ROLLOUT}.{name}" for name in _ENGINE))


_ENGINE = ("max_num_batched_tokens", "enable_chunked_prefill", "enable_prefix_caching")


def experts(values: Values, draft: Draft) -> None:
    """Whether experts are spread over the ranks of an engine: in verl over those of several engines
    that share them, here over those of one."""
    key, ranks = f"{ROLLOUT}.expert_parallel_size", f"{ROLLOUT}.tensor_model_parallel_size"
    size, each = values.whole(key), values.whole(ranks)
    every = each * values.whole(f"{ROLLOUT}.data_parallel_size")
    if size not in (1, every):
        raise refusal(key, f"verl takes 1, or {ranks} x data_parallel_size, which is {every}")
    if is_for_fsdp_alone(values, ACTOR):
        if size > 1:
            draft.note(key, "an engine divides each expert over its ranks, as other layers")
        return
    draft.put("rollout.expert_parallel", size > 1 and each > 1, key)
    if size > each > 1:
        draft.note(key, f"the {each} ranks of an engine share its experts")


def window(values: Values, draft: Draft) -> None:
    """Whether an engine has room for the longest prompt and response."""
    key = f"{ROLLOUT}.max_model_len"
    if key in values:
        _check_room(values, draft, key, values[key])


def _check_room(values: Values, draft: Draft, key: str, room: Any) -> None:
    longest = values.whole(f"{ROLLOUT}.prompt_length") + values.whole(f"{ROLLOUT}.response_length")
    if room is not None and (type(room) is not int or room < longest):
        raise Refused(key, f"the longest prompt and response have {longest} tokens", "rollout")
    draft.note(key, f"an engine has room for the longest prompt and response, {longest}")


def turns(values: Values, draft: Draft) -> None:
    """Tools and further turns, where an environment of ours is named beside verl's keys."""
    most = f"{ROLLOUT}.multi_turn.max_assistant_turns"
    keys = (f"{ROLLOUT}.multi_turn.", f"{ROLLOUT}.agent.default_agent_loop")
    given = [k for k in values.given if k.startswith(keys)]
    given = [key for key in given if not same(values[key], values.default(key))]
    if given and "rollout.environment.name" not in values.own:
        raise Refused(given[0], note("turns"), _ENVIRONMENT)
    for key in given:
        draft.note(key, note("environment"))
        draft.put("rollout.environment.role", "tool", *given)
    if most in given:
        draft.put("rollout.environment.max_turns", values[most], most)


_ENVIRONMENT = "verl_hpc.rollout.environment.name=NAME (docs/environments.md)"


def samples(values: Values, draft: Draft) -> None:
    """Greedy answers are data.evaluation; sampled ones are a set of their own. verl samples by the
    temperature, whatever do_sample says."""
    section = f"{ROLLOUT}.val_kwargs"
    count, key = values.whole(f"{section}.n"), f"{section}.temperature"
    if not values.flag(f"{section}.do_sample") and not values[key]:
        if count > 1:
            raise Refused(f"{section}.n", "needs a temperature above 0", f"{_SET}.num_samples")
        return
    if not values.flag(f"{section}.do_sample"):
        draft.note(key, note("sampled"))
    if values[f"{section}.top_k"] not in (-1, 0):
        raise Refused(f"{section}.top_k", "answers are filtered by top_p alone", f"{_SET}.top_p")
    source = {n: v for n, v in draft.settings.items() if n.startswith("data.evaluation.")}
    if not source:
        return
    for name, value in source.items():
        origins = draft.origins.get(name, ())
        del draft.settings[name]
        draft.put(f"{_SET}.source.{name.removeprefix('data.evaluation.')}", value, *origins)
    draft.put(f"{_SET}.num_samples", count, f"{section}.n")
    draft.put(f"{_SET}.temperature", float(values.number(key)), key)
    if values[key]:
        draft.put(f"{_SET}.top_p", float(values.number(f"{section}.top_p")), f"{section}.top_p")
