"""Convert between step directories and Hugging Face directories, in one process, file by file.

Both directions are ordinary transfers; written files are read back and compared.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from verl_hpc.checkpoint.peft import PREFIX, write_adapter
from verl_hpc.checkpoint.read import Step
from verl_hpc.checkpoint.schema import MANIFEST, step_name
from verl_hpc.checkpoint.step_files import Component, StepContents
from verl_hpc.checkpoint.weights import Weights, component_of, hf_files, open_weights
from verl_hpc.checkpoint.write import save_step
from verl_hpc.config.explain import near_or_all
from verl_hpc.errors import CheckpointError, ModelError
from verl_hpc.layout.architecture import read_architecture
from verl_hpc.layout.box import Box
from verl_hpc.layout.heads import HEAD_TENSORS, SCORE_HEAD, Head, model_tensors
from verl_hpc.layout.safetensors import safetensors_shard_map
from verl_hpc.layout.shard_map import Region, ShardMap, TensorSpec
from verl_hpc.runtime.control import Control
from verl_hpc.transfer.checksum import checksum
from verl_hpc.transfer.files import SafetensorsReader

DEFAULT_SHARD_BYTES = 5 * 10**9


def export_step(
    step: Path,
    out: Path,
    dtype: str | None = None,
    shard_bytes: int = DEFAULT_SHARD_BYTES,
    component: str | None = None,
) -> int:
    """Write a step's model as a Hugging Face directory for transformers, or its adapters as a
    directory for PEFT.

    A model with a score head becomes a sequence classifier with one label. Ours score the last
    token; transformers scores the last that is not padding, and so skips an end of sequence that is
    also the padding token.

    A language model trained on chats ends its answers with the chat template's end of turn:
    generation_config.json gets it as a further end token.

    Args:
        step: step directory.
        out: directory to create.
        dtype: element type of the weights; the stored one if None.
        shard_bytes: largest safetensors file.
        component: component of the step; if None the actor, or the step's only model.

    Returns:
        Number of parameters.

    Raises:
        CheckpointError: `out` exists, the step is missing or damaged, has no such component or one
            with a value head, or written files differ when read back.
    """
    if out.exists():
        raise CheckpointError(f"--out {out} exists; choose a directory that does not")
    if not step.is_dir():
        raise CheckpointError(
            f"--step {step}: no such directory; give a step directory, such as "
            "runs/NAME/checkpoints/latest"
        )
    if not (step / MANIFEST).is_file():
        raise CheckpointError(f"--step {step}: no {MANIFEST} in it, so it is not a whole step")
    opened = Step(step)
    chosen, head = _chosen_of(opened, component)
    is_adapter = any(".lora_" in name for name in opened.component(chosen).tensors)
    weights = None
    if not is_adapter:
        weights = _open(step, chosen, check_files=False, head=head)
    # Written to another name and renamed at the end, so that `out` is complete or absent.
    partial = out.with_name(f".{out.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        if weights is None:
            sums = _write_adapter(opened, chosen, partial, dtype)
        else:
            sums = _write_model(weights, partial, dtype, shard_bytes)
            if head == "language_model":
                _add_end(partial, opened.state.turn_end if opened.is_of_a_run else None)
        count = _verify(partial, sums)
        os.rename(partial, out)  # noqa: PTH104 (fails where Path.rename would replace)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CheckpointError(f"--out {out}: {reason}; nothing was exported") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return count


def _chosen_of(step: Step, component: str | None) -> tuple[str, Head]:
    """Return the component to export, and the output layer that it has."""
    known = [name for name in step.components if not name.endswith(".optimizer")]
    if component is not None and component not in known:
        raise CheckpointError(
            f"--component {component}: {step.path} has none of this name; "
            f"{near_or_all(component, known)}"
        )
    chosen = component_of(step, component or "actor")
    there = step.component(chosen).tensors
    heads: list[Head] = [head for head, name in HEAD_TENSORS.items() if name in there]
    if heads == ["value"]:
        raise CheckpointError(
            f"--component {chosen}: it has a value head, which transformers has no class for; "
            f"{near_or_all(chosen, [name for name in known if name != chosen])}"
        )
    return chosen, heads[0] if heads else "language_model"


def _open(path: Path, *components: str, **how: Any) -> Weights:
    """Open weights of either training engine: fully_shard takes variants of mixtures that layer
    tables refuse."""
    try:
        return open_weights(path, *components, **how)
    except ModelError:
        return open_weights(path, *components, **how, engine="fsdp")


def _write_adapter(step: Step, component: str, out: Path, dtype: str | None) -> dict[str, int]:
    """Write a component's adapters in PEFT's format; return the tensors' checksums by name."""
    shard_map = step.component(component)
    directory = step.hf_directory(component)
    try:
        arch = read_architecture(directory)
    except ModelError:  # as in `_open`
        arch = read_architecture(directory, "fsdp")
    weights = Weights(arch, shard_map, step.reader(), step.path)
    boxes = {name: Box.whole(spec.shape) for name, spec in shard_map.tensors.items()}
    tensors = weights.read(boxes, dtype)
    head = SCORE_HEAD if SCORE_HEAD in tensors else None
    write_adapter(out, tensors, step.state.adapters[component], head, arch.is_mapped)
    return {f"{PREFIX}{name}": int(checksum(tensor)) for name, tensor in tensors.items()}


def _write_model(
    weights: Weights, out: Path, dtype: str | None, shard_bytes: int
) -> dict[str, int]:
    """Write a model for transformers; return the tensors' checksums by name."""
    kind = dtype or weights.shard_map.tensors[next(iter(weights.tensors))].dtype
    sums = _write_shards(weights, kind, out, shard_bytes)
    for name, path in hf_files(weights.hf_directory).items():
        shutil.copyfile(path, out / name)
    _write_config(out / "config.json", kind, is_classifier=weights.head == "score")
    return sums


def _write_shards(weights: Weights, dtype: str, out: Path, shard_bytes: int) -> dict[str, int]:
    """Write safetensors files; return the tensors' checksums by name."""
    tensors = model_tensors(weights.arch, weights.head, dtype)
    shards = list(_shards(tensors, shard_bytes))
    sums: dict[str, int] = {}
    placed: dict[str, str] = {}
    for number, names in enumerate(shards, 1):
        file = (
            "model.safetensors"
            if len(shards) == 1
            else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        )
        loaded = weights.read({name: Box.whole(tensors[name].shape) for name in names}, dtype)
        sums |= {name: int(checksum(tensor)) for name, tensor in loaded.items()}
        placed |= dict.fromkeys(names, file)
        save_file(loaded, out / file, metadata={"format": "pt"})
    if len(shards) > 1:
        total = sum(spec.num_bytes for spec in tensors.values())
        index = {"metadata": {"total_size": total}, "weight_map": placed}
        (out / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))
    return sums


def _shards(tensors: Mapping[str, TensorSpec], shard_bytes: int) -> Iterator[list[str]]:
    names: list[str] = []
    filled = 0
    for name, spec in tensors.items():
        if names and filled + spec.num_bytes > shard_bytes:
            yield names
            names, filled = [], 0
        names.append(name)
        filled += spec.num_bytes
    yield names


def _write_config(config_file: Path, dtype: str, *, is_classifier: bool) -> None:
    config = json.loads(config_file.read_text())
    config.pop("torch_dtype", None)
    config["dtype"] = dtype
    if is_classifier:
        _make_classifier(config)
    config_file.write_text(json.dumps(config, indent=2))


def _add_end(directory: Path, end: int | None) -> None:
    """Add an end token to generation_config.json, if it is not there yet."""
    file = directory / "generation_config.json"
    settings = json.loads(file.read_text()) if file.exists() else {}
    named = settings.get("eos_token_id")
    if named is None:
        named = json.loads((directory / "config.json").read_text()).get("eos_token_id")
    ends = [e for e in (named if isinstance(named, list) else [named]) if e is not None]
    if end is not None and end not in ends:
        file.write_text(json.dumps(settings | {"eos_token_id": [*ends, end]}, indent=2))


def _make_classifier(config: dict[str, Any]) -> None:
    """Make a configuration that of transformers' ...ForSequenceClassification with one label."""
    names = config.get("architectures") or []
    config["architectures"] = [
        name.replace("ForCausalLM", "ForSequenceClassification") for name in names
    ]
    config |= {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    ends = config.get("eos_token_id")
    if config.get("pad_token_id") in (ends if isinstance(ends, list) else [ends]):
        config["pad_token_id"] = None


def _verify(out: Path, sums: Mapping[str, int]) -> int:
    """Compare what was written with the tensors' checksums; return the number of parameters."""
    written, reader = safetensors_shard_map(out), SafetensorsReader()
    assert set(written.tensors) == set(sums)
    for region in written.regions:
        tensor = reader.read(str(region.holders[0]), region.tensor, region.box)
        if int(checksum(tensor)) != sums[region.tensor]:
            raise CheckpointError(
                f"{out}: {region.tensor} reads back differently than it was written; is the "
                "file system sound?"
            )
    return sum(region.box.num_elements for region in written.regions)


def import_model(control: Control, source: Path, root: Path) -> Path:
    """Write a Hugging Face directory as step 0 below `root`; every rank of `control` calls it.

    Raises:
        ModelError: `source` is not a whole model.
        CheckpointError: `root` has a step 0, or cannot be written.
    """
    weights = _open(source)
    names = list(weights.arch.tensors())
    shard_map = weights.shard_map.restricted_to(names)
    mine = [r for i, r in enumerate(shard_map.regions) if i % control.size == control.rank]
    if (root / step_name(0)).exists():
        raise CheckpointError(f"{root / step_name(0)} exists; choose another --out")
    component = Component("actor", shard_map, _FromFiles(weights, shard_map), mine)
    contents = StepContents(hf_files=hf_files(weights.hf_directory))
    return save_step(control, root, 0, [component], contents)


class _FromFiles(dict[str, torch.Tensor]):
    """Tensors that are read on access and not kept, so that a model need not fit in memory."""

    def __init__(self, weights: Weights, shard_map: ShardMap) -> None:
        super().__init__()
        self._reader = weights.reader
        self._regions: dict[str, Region] = {r.view.name: r for r in shard_map.regions}

    def __missing__(self, name: str) -> torch.Tensor:
        region = self._regions[name]
        return self._reader.read(str(region.holders[0]), name, region.box)
