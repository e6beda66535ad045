"""data.* and reward.*: files, prompts, and what scores responses."""

from __future__ import annotations

from verl_hpc.migration.convert.plain import our_word, refusal
from verl_hpc.migration.row import Draft, same
from verl_hpc.migration.table import note, rows
from verl_hpc.migration.values import Refused, Values, at_home

_TRAIN, _TEST = "data.train_files", "data.val_files"
_MEDIA = "models of video and sound are not supported"


def _paths(values: Values, key: str) -> list[str]:
    found = values[key]
    paths = found if isinstance(found, list) else [found]
    if not all(isinstance(path, str) and path for path in paths):
        raise Refused(key, "expected a file, or a list of files")
    return [at_home(key, path) for path in paths]


def _source(values: Values, draft: Draft, which: str, key: str, limit: str) -> None:
    draft.put(f"data.{which}.kind", "files", key)
    draft.put(f"data.{which}.paths", _paths(values, key), key)
    draft.put(f"data.{which}.prompt_key", values["data.prompt_key"], "data.prompt_key")
    most = values[limit]
    if most not in (-1, None):
        draft.put(f"data.{which}.limit", most, limit)
        draft.note(limit, "the first rows; with data.shuffle verl draws them")


def files(values: Values, draft: Draft) -> None:
    """Files of prompts, for training and for evaluations."""
    if _TRAIN not in values:
        raise Refused(_TRAIN, "is needed and not given; verl's default is a file of its authors")
    _source(values, draft, "train", _TRAIN, "data.train_max_samples")
    for key in (f"data.{kind}_key" for kind in ("video", "audio")):
        if key in values:
            draft.note(key, f"{_MEDIA}; the column is not read")
    if _TEST in values:
        _source(values, draft, "evaluation", _TEST, "data.val_max_samples")
        return
    if values["trainer.test_freq"] in (-1, 0, None) and "trainer.val_before_train" not in values:
        draft.put("evaluation.at_start", False, _TEST)
        draft.note(_TEST, "not given: nothing is evaluated, where verl reads a default file")


def overlong(values: Values, draft: Draft) -> None:
    """What becomes of prompts that are too long."""
    key = "data.truncation"
    if values.flag("data.filter_overlong_prompts"):
        draft.put("rollout.overlong_prompt", "drop", "data.filter_overlong_prompts")
        return
    draft.put("rollout.overlong_prompt", our_word(values, key), key)


def length(values: Values, draft: Draft) -> None:
    """The most tokens of a prompt and of a response."""
    for key, other, ours in (
        ("data.max_prompt_length", "prompt_length", "rollout.max_prompt_tokens"),
        ("data.max_response_length", "response_length", "rollout.max_response_tokens"),
    ):
        twin = f"actor_rollout_ref.rollout.{other}"
        if twin in values and key in values and not same(values[twin], values[key]):
            raise Refused(twin, f"must be {key}, which is {values[key]}", ours)
        draft.put(ours, values[twin], key, twin)


def seed(values: Values, draft: Draft) -> None:
    """One seed of ours decides what all of verl's do; it is 0 if none is given."""
    seeds = (row.key for row in rows() if row.ours == ("seed",))
    keys = [key for key in seeds if key in values and values[key] is not None]
    for key in keys[1:]:
        if not same(values[key], values[keys[0]]):
            first = f"{keys[0]} is {values[keys[0]]}"
            raise refusal(key, f"one seed decides all random numbers; {first}")
    if keys:
        draft.put("seed", values[keys[0]], *keys)


def template(values: Values, draft: Draft) -> None:
    """What the chat template is given, whole or name by name."""
    key = "data.apply_chat_template_kwargs"
    if found := values.below(key):
        draft.put("data.chat_template_kwargs", found, key)


_OWN = "reward.custom_reward_function"
_MODEL = "reward.reward_model"
_LONG = "reward.reward_kwargs.overlong_buffer_cfg"
_LONGEST = "reward.reward_kwargs.max_resp_len"


def reward_function(values: Values, draft: Draft) -> None:
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


def reward_model(values: Values, draft: Draft) -> None:
    """The reward model."""
    switch, path, function = f"{_MODEL}.enable", f"{_MODEL}.model_path", f"{_OWN}.path"
    if values[switch] is None or not values.flag(switch):
        return
    if values[function] is not None:
        raise Refused(switch, note("model_as_service", function=function), "reward.function: judge")
    if values[path] is None:
        raise Refused(path, f"is needed with {switch}", "roles.reward.path")
    draft.put("roles.reward.path", values.path(path), path, switch)
    draft.note(path, note("score_head"))


def overlong_penalty(values: Values, draft: Draft) -> None:
    """The penalty for responses that are nearly too long."""
    longest = values["data.max_response_length"]
    if _LONGEST in values and not same(values[_LONGEST], longest):
        raise refusal(_LONGEST, f"must be data.max_response_length = {longest}")
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
