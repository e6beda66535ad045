"""actor_rollout_ref.rollout.*: the generation engine, and how evaluations sample."""

from __future__ import annotations

from typing import Any

from verl_hpc.config.rollout import OTHER_ENGINES
from verl_hpc.migration.reference import MISSING
from verl_hpc.migration.row import NONE, Draft, Row, all_fixed, any_value, fixed, to, together
from verl_hpc.migration.values import Refused, Values

R = "actor_rollout_ref.rollout"
_VLLM = f"{R}.engine_kwargs.vllm"
_OPTIONS = "rollout.engine_options"
_DTYPES = {"bfloat16": "bfloat16", "float32": "float32", "bf16": "bfloat16", "fp32": "float32"}
_ENGINES = {"vllm": "vllm", "hf": "hf", MISSING: "vllm"}
_GIB = 2**30
_SET = "evaluation.sets.validation"


def _dtype(values: Values, draft: Draft) -> None:
    key = f"{R}.dtype"
    if values.word(key) not in (*_DTYPES, "auto"):
        raise Refused(key, "expected bfloat16, float32 or auto", "rollout.dtype")
    found = _DTYPES.get(values.word(key))
    if key not in values or found in (None, draft.settings.get("model.dtype", "bfloat16")):
        return  # as the model's, which is what verl's default means with its own default
    draft.put("rollout.dtype", found, key)


def _engine(values: Values, draft: Draft) -> None:
    """Options of vLLM itself, and those of verl's settings that are nothing else."""
    options: dict[str, Any] = {}
    for name in _ENGINE:
        key = f"{R}.{name}"
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
        elif value is not None:
            options[name] = value
    for name in ("gpu_memory_utilization", "enforce_eager"):
        if f"{R}.{name}" in values and values.word(f"{R}.name") == "hf":
            draft.note(f"{R}.{name}", f"is vLLM's, and {R}.name is hf")
    if options:
        draft.put(_OPTIONS, options, _VLLM, *(f"{R}.{name}" for name in _ENGINE))


_ENGINE = ("max_num_batched_tokens", "enable_chunked_prefill", "enable_prefix_caching")
_ENGINE_SAYS = "only if given; vLLM has defaults of its own"


def _experts(values: Values, draft: Draft) -> None:
    key, ranks = f"{R}.expert_parallel_size", f"{R}.tensor_model_parallel_size"
    size = values.whole(key)
    if size not in (1, values[ranks]):
        raise Refused(
            key, f"expected 1, or {ranks}, whose ranks share them", "rollout.expert_parallel"
        )
    draft.put("rollout.expert_parallel", size > 1, key)


def _stops(values: Values, draft: Draft) -> None:
    """Fields of vLLM's SamplingParams, which verl's rollouts passed on before version 0.7."""
    for name in ("stop", "stop_token_ids"):
        key = f"{R}.{name}"
        if key in values and values[key] is not None:
            found = values[key]
            draft.put(f"rollout.{name}", found if isinstance(found, list) else [found], key)


def _window(values: Values, draft: Draft) -> None:
    key = f"{R}.max_model_len"
    longest = values.whole(f"{R}.prompt_length") + values.whole(f"{R}.response_length")
    if values[key] is not None and values.whole(key) < longest:
        raise Refused(key, f"the longest prompt and response have {longest} tokens", "rollout")
    if key in values:
        draft.note(key, f"an engine has room for the longest prompt and response, {longest}")


def _samples(values: Values, draft: Draft) -> None:
    """Greedy answers are data.evaluation; sampled ones are a set of their own."""
    section = f"{R}.val_kwargs"
    count = values.whole(f"{section}.n")
    if not values.flag(f"{section}.do_sample"):
        if count > 1:
            raise Refused(f"{section}.n", "needs do_sample: true", f"{_SET}.num_samples")
        return
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
    key = f"{section}.temperature"
    draft.put(f"{_SET}.temperature", float(values.number(key)), key)
    if values[key]:
        draft.put(f"{_SET}.top_p", float(values.number(f"{section}.top_p")), f"{section}.top_p")


_WEIGHTS = "every weight comes from the trainer"
_TURNS = "tools and further turns are an environment's"
_ENVIRONMENT = "rollout.environment (docs/environments.md)"
_SERVER = "the engine lives in the ranks of the run; there is no server"

ROWS: list[Row] = [
    to(
        f"{R}.name",
        "rollout.engine",
        "vllm or hf",
        words=_ENGINES,
        why_not=OTHER_ENGINES,
    ),
    to(f"{R}.temperature", "rollout.temperature"),
    to(f"{R}.top_p", "rollout.top_p"),
    to(f"{R}.top_k", "rollout.top_k"),
    to(f"{R}.n", "rollout.num_samples"),
    *together(
        _stops,
        {
            f"{R}.stop": ("rollout.stop", "with +; one string or several"),
            f"{R}.stop_token_ids": ("rollout.stop_token_ids", "with +"),
        },
    ),
    to(f"{R}.tensor_model_parallel_size", "rollout.tensor_parallel", "verl's default is 2"),
    to(f"{R}.pipeline_model_parallel_size", "rollout.pipeline_parallel"),
    to(f"{R}.gpu_memory_utilization", "rollout.gpu_memory_utilization"),
    to(f"{R}.enforce_eager", "rollout.enforce_eager"),
    to(
        f"{R}.max_num_seqs",
        "rollout.max_num_seqs",
        "only if given; else as many as the cache holds",
        is_needed=False,
    ),
    to(f"{R}.quantization", "rollout.quantization", words={None: None, "fp8": "fp8"}),
    *together(
        _dtype,
        {f"{R}.dtype": ("rollout.dtype", "bfloat16, float32 or auto; the model's if not given")},
    ),
    *together(_experts, {f"{R}.expert_parallel_size": ("rollout.expert_parallel", "1 is false")}),
    *together(
        _engine,
        {
            **{
                f"{R}.{name}": (
                    f"{_OPTIONS}.{name}",
                    _ENGINE_SAYS,
                )
                for name in _ENGINE
            },
            f"{_VLLM}.kv_cache_dtype": ("rollout.kv_cache_dtype", "with +"),
            f"{_VLLM}.kv_cache_memory_bytes": ("rollout.kv_cache_gib", "with +; in GiB"),
            f"{_VLLM}": (_OPTIONS, "vLLM's own names; kv_cache_* have settings of their own"),
            f"{_VLLM}.*": (_OPTIONS, "vLLM's own names; kv_cache_* have settings of their own"),
        },
    ),
    *together(
        _window,
        {
            f"{R}.max_model_len": (
                "rollout.max_prompt_tokens rollout.max_response_tokens",
                "at least their sum, which is what an engine has room for",
            )
        },
        "agrees",
    ),
    *together(
        _samples,
        {
            f"{R}.val_kwargs.n": (f"{_SET}.num_samples", "with do_sample"),
            f"{R}.val_kwargs.temperature": (f"{_SET}.temperature", "with do_sample"),
            f"{R}.val_kwargs.top_p": (f"{_SET}.top_p", "with do_sample"),
            f"{R}.val_kwargs.do_sample": (
                f"{_SET}.num_samples",
                "true makes a set of data.val_files; false answers greedily",
            ),
        },
    ),
    fixed(f"{R}.val_kwargs.top_k", "answers are filtered by top_p alone", f"{_SET}.top_p"),
    fixed(f"{R}.mode", "one engine a rank, in the rank", "rollout.engine", also=("sync",)),
    fixed(f"{R}.nnodes", "ranks that only generate have a label", "placement.rollout"),
    fixed(f"{R}.n_gpus_per_node", "as rollout.nnodes", "placement.rollout"),
    fixed(f"{R}.data_parallel_size", "there are as many engines as ranks make", "rollout"),
    fixed(
        f"{R}.full_determinism",
        "samples follow from the seed; on GPUs log-probs are rounded as the batch has it",
        "VLLM_BATCH_INVARIANT=1 in the environment (docs/placements.md)",
    ),
    fixed(f"{R}.ignore_eos", "a response ends where the model ends it", "rollout.stop"),
    fixed(f"{R}.cudagraph_capture_sizes", "vLLM chooses them", "rollout.enforce_eager"),
    fixed(
        f"{R}.free_cache_engine",
        "an engine always sleeps while the trainer has its GPU",
        "placement.rollout",
    ),
    fixed(
        f"{R}.load_format",
        _WEIGHTS,
        "model.path",
        also=("auto", "safetensors", "dummy_megatron"),
    ),
    *any_value(
        f"{R}.layered_summon {R}.multi_stage_wake_up "
        f"{R}.checkpoint_engine.update_weights_bucket_megabytes",
        "weights move by one collective step, whose buffers are planned",
    ),
    fixed(f"{R}.logprobs_mode", "log-probs are compared with the trainer's", "rollout.verify"),
    fixed(f"{R}.scheduling_policy", "vLLM serves in the order of prompts", "rollout.balance"),
    fixed(f"{R}.disable_log_stats", "nothing reads them", "metrics"),
    fixed(
        f"{R}.skip_tokenizer_init", "stop strings need the tokenizer", "rollout.stop", also=(False,)
    ),
    fixed(f"{R}.do_sample", "samples are what is trained on", "rollout.temperature"),
    fixed(f"{R}.calculate_log_probs", "always; they prove the new weights", "rollout.verify.probe"),
    fixed(f"{R}.over_sample_rate", "all prompts are waited for", "rollout.staleness"),
    fixed(f"{R}.quantization_config_file", "fp8 in blocks needs no file", "rollout.quantization"),
    fixed(
        f"{R}.moe_load_balance_metrics_interval",
        "a metric of every step of a mixture",
        "model.router",
    ),
    *all_fixed(f"{R}.engine_kwargs.sglang {R}.engine_kwargs.trtllm", "vLLM generates", _OPTIONS),
    fixed(f"{R}.engine_kwargs.*", "vLLM generates", _OPTIONS),
    fixed(f"{R}.multi_turn.*", _TURNS, _ENVIRONMENT),
    fixed(f"{R}.agent.*", _TURNS, _ENVIRONMENT),
    fixed(f"{R}.checkpoint_engine.*", "weights move by one collective step", "rollout.grouping"),
    fixed(f"{R}.trace.*", "samples are kept in samples/", "evaluation.save_generations"),
    fixed(f"{R}.prometheus.*", _SERVER, "metrics.prometheus (docs/observability.md)"),
    fixed(f"{R}.disaggregation.*", _SERVER, "placement.rollout"),
    fixed(f"{R}.mtp", "layers that predict several tokens are not supported", NONE),
    fixed(f"{R}.qat", "training that knows of a quantised rollout is not there", "model.fp8"),
]
