"""reward.*: what scores responses."""

from __future__ import annotations

from verl_hpc.migration.row import Draft, Row, all_fixed, fixed, same, together
from verl_hpc.migration.values import Refused, Values

_OWN = "reward.custom_reward_function"
_MODEL = "reward.reward_model"
_LONG = "reward.reward_kwargs.overlong_buffer_cfg"
_LONGEST = "reward.reward_kwargs.max_resp_len"
_SANDBOX = "reward.function: code, which runs programs on the ranks (docs/rewards.md)"


def _function(values: Values, draft: Draft) -> None:
    path = values[f"{_OWN}.path"]
    options = values.below(f"{_OWN}.reward_kwargs")
    if path is None:
        if options:
            raise Refused(f"{_OWN}.reward_kwargs", f"needs {_OWN}.path", "reward.options")
        return
    file, name = values.path(f"{_OWN}.path"), values.text(f"{_OWN}.name")
    draft.put("reward.function", f"{file}:{name}", f"{_OWN}.path", f"{_OWN}.name")
    if options:
        draft.put("reward.options", options, f"{_OWN}.reward_kwargs")


def _model(values: Values, draft: Draft) -> None:
    switch, path = f"{_MODEL}.enable", f"{_MODEL}.model_path"
    if values[switch] is None or not values.flag(switch):
        return
    if values[path] is None:
        raise Refused(path, f"is needed with {switch}", "roles.reward.path")
    draft.put("roles.reward.path", values.path(path), path, switch)
    draft.note(path, "a model with a score head, which scores in place of a function")


def _overlong(values: Values, draft: Draft) -> None:
    longest = values["data.max_response_length"]
    if _LONGEST in values and not same(values[_LONGEST], longest):
        why = f"must be data.max_response_length = {longest}"
        raise Refused(_LONGEST, why, "algorithm.overlong")
    given = values.below(_LONG)
    if given.get("enable") not in (None, True, False):
        raise Refused(f"{_LONG}.enable", "expected true or false", "algorithm.overlong.buffer")
    if not given.get("enable"):
        return
    if "len" not in given:
        raise Refused(f"{_LONG}.len", "is needed with enable", "algorithm.overlong.buffer")
    draft.put("algorithm.overlong.buffer", given["len"], f"{_LONG}.len")
    factor = given.get("penalty_factor", 1.0)
    draft.put("algorithm.overlong.factor", factor, f"{_LONG}.penalty_factor")


ROWS: list[Row] = [
    *together(
        _function,
        {
            f"{_OWN}.path": ("reward.function", "PATH:NAME"),
            f"{_OWN}.name": ("reward.function", "PATH:NAME"),
            f"{_OWN}.reward_kwargs": ("reward.options", ""),
            f"{_OWN}.reward_kwargs.*": ("reward.options", "with +"),
        },
    ),
    *together(
        _model,
        {
            f"{_MODEL}.enable": ("roles.reward.path", ""),
            f"{_MODEL}.model_path": ("roles.reward.path", "a model with a score head"),
        },
    ),
    *together(
        _overlong,
        {
            f"{_LONG}.enable": ("algorithm.overlong.buffer", "with +"),
            f"{_LONG}.len": ("algorithm.overlong.buffer", "with +"),
            f"{_LONG}.penalty_factor": ("algorithm.overlong.factor", "with +"),
        },
    ),
    *together(
        _overlong,
        {_LONGEST: ("rollout.max_response_tokens", "with +; must be max_response_length")},
        "agrees",
    ),
    fixed(
        f"{_LONG}.log",
        "the penalty is in the score's metrics",
        "algorithm.overlong",
        also=(False, True),
    ),
    fixed(
        "reward.num_workers",
        "processes are counted by rank, not by run",
        "runtime.reward_processes",
    ),
    fixed(
        "reward.reward_manager.name",
        "a function says by its arguments whether it takes one response or a list",
        "reward.function, reward.terms",
        also=("dapo", "batch"),
    ),
    *all_fixed(
        "reward.reward_manager.source reward.reward_manager.module.path "
        "reward.reward_manager.module.name",
        "there is no manager between the function and the run",
        "reward.function: path/file.py:function",
    ),
    *all_fixed(
        f"{_MODEL}.enable_resource_pool {_MODEL}.n_gpus_per_node {_MODEL}.nnodes",
        "ranks of a reward model have a label",
        "placement.reward",
    ),
    fixed(
        f"{_MODEL}.rollout.*",
        "a reward model computes scores; it does not generate",
        "roles.reward, or reward.function: judge",
    ),
    *all_fixed(
        "reward.sandbox_fusion.url reward.sandbox_fusion.max_concurrent "
        "reward.sandbox_fusion.memory_limit_mb",
        "programs run in the sandbox of the ranks, not in a service",
        _SANDBOX,
    ),
]
