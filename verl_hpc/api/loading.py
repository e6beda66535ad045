"""Models by name, each role on its device in its element type."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from verl_hpc.api.models import ActorModel, CriticModel
from verl_hpc.config.arguments import checked
from verl_hpc.config.explain import near_or_all
from verl_hpc.data.tokenizer import load_tokenizer
from verl_hpc.errors import ConfigError, ModelError
from verl_hpc.layout.json_file import read_json_object
from verl_hpc.layout.not_mapped import REFUSED
from verl_hpc.sources.local import model_directory

if TYPE_CHECKING:
    from verl_hpc.api.vllm import VLLMActorModel

_SHORT = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_DTYPES = {*_SHORT, *_SHORT.values()}
_QUANTISED = ("int4", "int8", "nf4", "fp4", "awq", "gptq")
_ROLES = ("actor", "critic")


def load_causal_lm(
    model_name: str, dtype: str | torch.dtype = "float32", device: str | torch.device = "cpu"
) -> PreTrainedModel:
    """Load a language model of transformers; code that a model directory brings is never run.

    Raises:
        ConfigError: an element type that no model is trained in here.
        ModelError: it is not here, or transformers cannot load it.
    """
    kind, directory = chosen_dtype("dtype", dtype), model_directory("model_name", model_name)
    try:
        model = AutoModelForCausalLM.from_pretrained(
            directory, local_files_only=True, trust_remote_code=False, dtype=kind
        )
    except Exception as error:  # every class of models fails in its own way
        raise ModelError(
            f"model_name = {model_name!r}: transformers cannot load it from this machine: "
            f"{type(error).__name__}: {error}{_no_language_model(directory)}"
        ) from error
    return model.to(device)  # type: ignore[no-any-return]


def _no_language_model(directory: str) -> str:
    """Say what a family needs that transformers has no causal language model for, for errors."""
    try:
        family = str(read_json_object(Path(directory) / "config.json").get("model_type"))
    except ModelError:
        return ""
    if family in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or family not in REFUSED:
        return ""
    return f"\n{family} is not trained here: it needs {REFUSED[family]}"


def chosen_dtype(setting: str, name: str | torch.dtype) -> torch.dtype:
    """Return the element type of a name.

    Raises:
        ConfigError: no model is trained in it here.
    """
    lower = str(name).removeprefix("torch.").lower()
    if lower in _QUANTISED:
        raise ConfigError(
            f"{setting} = {name}: weights of {name} are neither trained nor scored with here: no "
            "engine multiplies them. Choose bfloat16, which a frozen role needs half of float32's "
            "memory for; generation alone may be quantised, with rollout.quantization: fp8 of a "
            'run, or by vLLMActor over an LLM with quantization="awq"'
        )
    if lower not in _DTYPES:
        near = near_or_all(lower, sorted(_DTYPES))
        raise ConfigError(f"{setting} = {name}: not an element type; {near}")
    dtype: torch.dtype = getattr(torch, _SHORT.get(lower, lower))
    return dtype


@checked
def get_actor_critic(
    model_name: str | Path,
    use_vllm: bool = False,
    device_map: str | torch.device | Mapping[str, Any] | None = None,
    dtype: str | torch.dtype | Mapping[str, Any] = "float32",
) -> tuple[ActorModel | VLLMActorModel, CriticModel]:
    """Load an actor and a critic that start from the same model.

    Args:
        model_name: directory, or ORG/NAME, ORG/NAME@REVISION or modelscope:ORG/NAME of the cache.
        use_vllm: the actor is a `VLLMActorModel`, which generates and is not trained; its device
            is vLLM's choice.
        device_map: device of both, or of each by `{"actor": ..., "critic": ...}`; the first GPU
            where there is one, else the CPU, if None or "auto".
        dtype: element type of both, or of each by role.

    Raises:
        ConfigError: a role, device or element type that is not there.
        ModelError: it is not here, or transformers cannot load it.
    """
    name = str(model_name)
    if use_vllm and isinstance(device_map, Mapping) and "actor" in device_map:
        raise ConfigError(
            f"device_map['actor'] = {device_map['actor']!r} with use_vllm: vLLM takes the device "
            "of the process itself (CUDA_VISIBLE_DEVICES); leave the actor out of device_map"
        )
    default = "cuda:0" if torch.cuda.is_available() else "cpu"
    dtypes = _by_role("dtype", dtype, "float32")
    for role, value in dtypes.items():
        chosen_dtype(f"dtype[{role!r}]", value)
    given = default if device_map is None or device_map == "auto" else device_map
    devices = {
        role: device_here(f"device_map[{role!r}] = {value!r}", value)
        for role, value in _by_role("device_map", given, default).items()
    }
    decoder = load_causal_lm(name, dtypes["critic"], devices["critic"])
    critic = CriticModel(decoder, copy_weights=False)
    if use_vllm:
        from verl_hpc.api.vllm import VLLMActorModel

        return VLLMActorModel(name, dtype=dtypes["actor"]), critic
    return ActorModel(load_causal_lm(name, dtypes["actor"], devices["actor"])), critic


def _by_role(setting: str, given: Any, default: Any) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        return dict.fromkeys(_ROLES, given)
    for role, value in given.items():
        if setting == "dtype":
            chosen_dtype(f"dtype[{role!r}]", value)  # what is wrong with int4 comes first
        if role not in _ROLES:
            raise ConfigError(
                f"{setting}[{role!r}]: get_actor_critic makes {' and '.join(_ROLES)}; a reward is "
                "a function (reward_fn), or roles.reward of a run"
            )
    return {role: given.get(role, default) for role in _ROLES}


def device_here(setting: str, given: Any) -> torch.device:
    """Return a device of this process; `setting` is a setting and its value, for errors.

    Raises:
        ConfigError: this process has no such device.
    """
    if re.search(r"\d\s*[-,]\s*\d", str(given)):
        raise ConfigError(
            f"{setting}: a process has one device for a role; ranks for each role are placement of "
            "a run, and parallel divides a model among them (docs/placements.md)"
        )
    try:
        device = torch.device(given)
        torch.empty(0, device=device)
        if device.type == "meta":
            raise RuntimeError("meta tensors have no data")
    except (RuntimeError, TypeError, AssertionError) as error:
        raise ConfigError(
            f"{setting}: this process has no such device ({str(error).splitlines()[0]})"
        ) from None
    return device


def tokenizer_of(model: Any, who: str) -> Any:
    """Load the tokenizer that lies beside a model's weights; errors say `who` asks for it.

    Raises:
        ConfigError: the model does not say where it is from, or no tokenizer is there.
    """
    path = getattr(getattr(model, "config", None), "_name_or_path", "")
    try:
        return load_tokenizer(path)
    except ModelError as error:
        raise ConfigError(
            f"{who}: the model was loaded from {path!r} ({error}); give tokenizer="
        ) from error


class HfModelAdapter(ActorModel):
    """An actor from a directory or a name of the Hugging Face hub.

    Args:
        model_name: directory, or ORG/NAME, ORG/NAME@REVISION or modelscope:ORG/NAME of the cache.
        dtype: element type of the weights.
        device: where they go.

    Raises:
        ConfigError: a device or an element type that is not there.
        ModelError: transformers cannot load it.
    """

    @checked
    def __init__(
        self,
        model_name: str | Path,
        dtype: str | torch.dtype = "float32",
        device: str | torch.device = "cpu",
    ) -> None:
        place = device_here(f"HfModelAdapter: device = {device!r}", device)
        super().__init__(load_causal_lm(str(model_name), dtype, place))
