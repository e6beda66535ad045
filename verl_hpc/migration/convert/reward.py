"""reward.*: what scores responses."""

from __future__ import annotations

from verl_hpc.migration.row import Draft, same
from verl_hpc.migration.values import Refused, Values

_OWN = "reward.custom_reward_function"
_MODEL = "reward.reward_model"
_LONG = "reward.reward_kwargs.overlong_buffer_cfg"
_LONGEST = "reward.reward_kwargs.max_resp_len"


def function(values: Values, draft: Draft) -> None:
    """A function of the user's own, and its options."""
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


def model(values: Values, draft: Draft) -> None:
    """The reward model."""
    switch, path = f"{_MODEL}.enable", f"{_MODEL}.model_path"
    if values[switch] is None or not values.flag(switch):
        return
    if values[path] is None:
        raise Refused(path, f"is needed with {switch}", "roles.reward.path")
    draft.put("roles.reward.path", values.path(path), path, switch)
    draft.note(path, "a model with a score head, which scores in place of a function")


def overlong(values: Values, draft: Draft) -> None:
    """The penalty for responses that are nearly too long."""
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
