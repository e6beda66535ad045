"""data.*: files, prompts and batches."""

from __future__ import annotations

from verl_hpc.migration.row import NONE, Draft, Row, all_fixed, fixed, same, to, together
from verl_hpc.migration.values import Refused, Values, at_home

_TRAIN, _TEST = "data.train_files", "data.val_files"
_TRUNCATED = {"error": "error", "left": "truncate_left"}
READS = "each rank reads its rows itself; there are no workers to set"
_COLUMNS = "a step's columns are fixed"
_TOKENS = "conversations always keep the tokens that were sampled"
_IMAGES = "models of images, video and sound are not supported"


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


def _files(values: Values, draft: Draft) -> None:
    if _TRAIN not in values:
        raise Refused(_TRAIN, "is needed and not given; verl's default is a file of its authors")
    _source(values, draft, "train", _TRAIN, "data.train_max_samples")
    for key in (f"data.{kind}_key" for kind in ("image", "video", "audio")):
        if key in values:
            draft.note(key, f"{_IMAGES}; the column is not read")
    if _TEST in values:
        _source(values, draft, "evaluation", _TEST, "data.val_max_samples")
        return
    if values["trainer.test_freq"] in (-1, 0, None) and "trainer.val_before_train" not in values:
        draft.put("evaluation.at_start", False, _TEST)
        draft.note(_TEST, "not given: nothing is evaluated, where verl reads a default file")


def _overlong(values: Values, draft: Draft) -> None:
    key = "data.truncation"
    if values.flag("data.filter_overlong_prompts"):
        draft.put("rollout.overlong_prompt", "drop", "data.filter_overlong_prompts")
        return
    if values.word(key) not in _TRUNCATED:
        raise Refused(key, "a prompt is cut on its left, or not at all", "rollout.overlong_prompt")
    draft.put("rollout.overlong_prompt", _TRUNCATED[values.word(key)], key)


def _length(values: Values, draft: Draft) -> None:
    for key, other, ours in (
        ("data.max_prompt_length", "prompt_length", "rollout.max_prompt_tokens"),
        ("data.max_response_length", "response_length", "rollout.max_response_tokens"),
    ):
        twin = f"actor_rollout_ref.rollout.{other}"
        if twin in values and key in values and not same(values[twin], values[key]):
            raise Refused(twin, f"must be {key}, which is {values[key]}", ours)
        draft.put(ours, values[twin], key, twin)


def _seed(values: Values, draft: Draft) -> None:
    keys = [key for key in SEEDS if key in values and values[key] is not None]
    for key in keys[1:]:
        if not same(values[key], values[keys[0]]):
            raise Refused(
                key, f"one seed decides all random numbers; {keys[0]} is {values[keys[0]]}", "seed"
            )
    if keys:
        draft.put("seed", values[keys[0]], *keys)


SEEDS = (
    "data.seed",
    "actor_rollout_ref.rollout.seed",
    "actor_rollout_ref.actor.data_loader_seed",
    "critic.data_loader_seed",
    "actor_rollout_ref.actor.fsdp_config.seed",
    "actor_rollout_ref.ref.fsdp_config.seed",
    "critic.fsdp.seed",
    "actor_rollout_ref.actor.megatron.seed",
    "actor_rollout_ref.ref.megatron.seed",
    "critic.megatron.seed",
)
"""One of ours decides what all of them do; 0 if none is given."""


def _generated(values: Values, draft: Draft) -> None:
    key = "data.gen_batch_size"
    if values[key] is not None and not same(values[key], values["data.train_batch_size"]):
        raise Refused(key, "a round of other prompts asks as many as are missing", _REFILL)
    draft.put("batch.size", values.whole("data.train_batch_size"), "data.train_batch_size")


def _template(values: Values, draft: Draft) -> None:
    """What the chat template is given, whole or name by name."""
    key = "data.apply_chat_template_kwargs"
    if found := values.below(key):
        draft.put("data.chat_template_kwargs", found, key)


_REFILL = "batch.refill_rounds, algorithm.drop_equal_groups"

ROWS: list[Row] = [
    *together(
        _files,
        {
            _TRAIN: ("data.train.paths", "one file or several; ~ is the home directory"),
            _TEST: ("data.evaluation.paths", "nothing is evaluated where it is not given"),
            "data.prompt_key": ("data.train.prompt_key data.evaluation.prompt_key", ""),
            "data.train_max_samples": ("data.train.limit", "-1 takes all; the first rows"),
            "data.val_max_samples": ("data.evaluation.limit", "-1 takes all; the first rows"),
        },
    ),
    *together(
        _overlong,
        {
            "data.filter_overlong_prompts": ("rollout.overlong_prompt", "true becomes drop"),
            "data.truncation": (
                "rollout.overlong_prompt",
                "error or left; right and middle are refused",
            ),
        },
    ),
    *together(
        _length,
        {
            "data.max_prompt_length": ("rollout.max_prompt_tokens", ""),
            "data.max_response_length": ("rollout.max_response_tokens", ""),
            "actor_rollout_ref.rollout.prompt_length": ("rollout.max_prompt_tokens", "as data's"),
            "actor_rollout_ref.rollout.response_length": (
                "rollout.max_response_tokens",
                "as data's",
            ),
        },
    ),
    *together(
        _generated,
        {
            "data.train_batch_size": ("batch.size", "prompts a step"),
        },
    ),
    *together(
        _generated, {"data.gen_batch_size": ("batch.size", "must be train_batch_size")}, "agrees"
    ),
    *together(_seed, dict.fromkeys(SEEDS, ("seed", "those that are given must agree"))),
    to("data.shuffle", "data.shuffle"),
    fixed("data.reward_fn_key", "the column is data_source", "a column data_source in the files"),
    fixed(
        "data.val_batch_size",
        "an evaluation asks all its prompts at once, as verl's does",
        "rollout.max_num_seqs",
    ),
    *all_fixed(
        "data.dataloader_num_workers data.filter_overlong_prompts_workers", READS, "data.train"
    ),
    fixed("data.use_shm", "files are read where they are", "a copy in /dev/shm of your own"),
    fixed("data.validation_shuffle", "an evaluation's rows keep their order", "data.shuffle"),
    fixed("data.return_raw_input_ids", _COLUMNS, NONE, also=(True,)),
    fixed("data.return_raw_chat", _COLUMNS, NONE, also=(False,)),
    fixed("data.return_full_prompt", _COLUMNS, NONE, also=(True,)),
    fixed("data.trust_remote_code", "code of a model's directory is never run", NONE),
    *all_fixed(
        "data.custom_cls.path data.custom_cls.name",
        "rows come from files, or from a generated task",
        "data.train.kind",
    ),
    *together(
        _template,
        {
            "data.apply_chat_template_kwargs": ("data.chat_template_kwargs", ""),
            "data.apply_chat_template_kwargs.*": ("data.chat_template_kwargs", "with +"),
        },
    ),
    *all_fixed(
        "data.tool_config_path data.function_tool_path",
        "tools are an environment's",
        "rollout.environment (docs/environments.md)",
    ),
    *all_fixed(
        "data.image_key data.video_key data.audio_key data.image_patch_size "
        "data.return_multi_modal_inputs data.mm_processor_kwargs",
        _IMAGES,
        NONE,
    ),
    fixed(
        "data.continuous_token.enable",
        _TOKENS,
        "rollout.environment",
        also=(False,),
    ),
    fixed("data.continuous_token.model_family", _TOKENS, "rollout.environment", also=("auto",)),
]
