"""Open weights to start from: a Hugging Face directory, or a step of an earlier run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from verl_hpc.checkpoint import schema
from verl_hpc.checkpoint.read import Step
from verl_hpc.errors import ModelError
from verl_hpc.layout.architecture import Architecture, read_architecture
from verl_hpc.layout.box import Box, View, row_major_strides
from verl_hpc.layout.heads import HEAD_TENSORS, SCORE_HEAD, VALUE_HEAD, Head, model_tensors
from verl_hpc.layout.json_file import read_json_object
from verl_hpc.layout.planner import plan_transfer
from verl_hpc.layout.safetensors import safetensors_shard_map
from verl_hpc.layout.shard_map import Region, ShardMap, TensorSpec
from verl_hpc.transfer.execute import Transfer
from verl_hpc.transfer.files import Reader, SafetensorsReader

# Besides these and the tokenizer, config.json is all that transformers needs.
_HF_PATTERNS = ("*.json", "*.jinja", "*.model", "*.txt")
_WEIGHT_DTYPES = ("float64", "float32", "float16", "bfloat16")
_NOT_COPIED = ("model.safetensors.index.json",)
_BLOCK = 32
"""Size along every dim of the three blocks that a tensor's fingerprint reads."""


@dataclass(frozen=True)
class Weights:
    """A model on disk, ready to be transferred into any layout."""

    arch: Architecture
    shard_map: ShardMap
    reader: Reader
    hf_directory: Path
    """Directory of config.json and the tokenizer."""
    head: Head = "language_model"
    """Output layer of the model."""
    pad_token: int | None = None
    """Pad token of a transformers classifier, which scores a sequence at its last token that
    differs from it; ours score the last token."""
    component: str = ""
    """Component of a step; empty for a Hugging Face directory."""

    @property
    def has_head(self) -> bool:
        """Whether the head's weights exist; a missing value head starts at zero."""
        return HEAD_TENSORS.get(self.head) in {None, *self.shard_map.tensors}

    @property
    def tensors(self) -> dict[str, TensorSpec]:
        """Logical tensors of the model to load, by name."""
        wanted = model_tensors(self.arch, self.head)
        return {name: spec for name, spec in wanted.items() if self.has_head or name != VALUE_HEAD}

    def fingerprint(self) -> str:
        """Return a SHA-256 of three blocks of every tensor, as float32: at its beginning, middle
        and end. An update changes some of them, and so do new tokens.

        It does not depend on files, layout or (except for rounding) element type. It takes three
        small reads per tensor; one rank can compute it for all.

        Raises:
            CheckpointError: a file is damaged.
        """
        there = self.tensors.keys() & self.shard_map.tensors.keys()  # all but a new head
        shapes = {name: self.tensors[name].shape for name in sorted(there)}
        digest = hashlib.sha256()
        for place in range(3):
            blocks = self.read({name: _block(shape, place) for name, shape in shapes.items()})
            for name, block in blocks.items():
                digest.update(f"{name} {shapes[name]}".encode())
                digest.update(block.float().numpy().tobytes())
        return digest.hexdigest()

    def read(self, boxes: Mapping[str, Box], dtype: str | None = None) -> dict[str, torch.Tensor]:
        """Read boxes of tensors, each contiguous in this process's memory.

        Args:
            boxes: box by name of the tensor.
            dtype: element type to convert parameters to; the stored one if None.

        Raises:
            CheckpointError: a file is damaged.
        """
        stored = self.shard_map.restricted_to(boxes)
        specs = {
            n: s if dtype is None or n in self.arch.buffers else TensorSpec(s.shape, dtype)
            for n, s in stored.tensors.items()
        }
        regions = [
            Region(n, box, (0,), View(n, 0, row_major_strides(box.shape)))
            for n, box in boxes.items()
        ]
        memory = {
            n: torch.empty(box.shape, dtype=schema.DTYPES[specs[n].dtype])
            for n, box in boxes.items()
        }
        dtypes = {n: tensor.dtype for n, tensor in memory.items()}
        plan = plan_transfer(stored, ShardMap(specs, regions), (0,))
        Transfer(plan, 0, self.reader).run({}, memory, dtypes)
        return memory


def _block(shape: Sequence[int], place: int) -> Box:
    """Return a small block at the beginning, middle or end (0, 1, 2) of all dims."""
    start = tuple(max(size - _BLOCK, 0) * place // 2 for size in shape)
    return Box(start, tuple(min(a + _BLOCK, size) for a, size in zip(start, shape, strict=True)))


def hf_files(directory: Path) -> dict[str, Path]:
    """Return the small files of a model directory (configuration, tokenizer) by name, after
    checking that each can be opened.

    Raises:
        ModelError: one of these files cannot be read or copied.
    """
    candidates = {p.name: p for pattern in _HF_PATTERNS for p in directory.glob(pattern)}
    files = {n: p for n, p in sorted(candidates.items()) if n not in _NOT_COPIED}
    for file in files.values():
        problem = _why_not_copied(file)
        if problem:
            raise ModelError(
                f"model: {str(file)!r} {problem}; every checkpoint has a copy of the model's "
                f"{', '.join(_HF_PATTERNS)}: mend it, or move it away"
            )
    return files


def _why_not_copied(file: Path) -> str | None:
    try:
        if not file.is_file():  # opening a pipe may never end
            return "is not a file, or a broken link"
        file.open("rb").close()
        file.name.encode()
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except UnicodeEncodeError:
        return "has a name that is not valid text"
    return None


def open_weights(
    path: str | Path,
    *components: str,
    check_files: bool = True,
    head: Head = "language_model",
    new_head: bool = False,
    engine: str = "megatron",
) -> Weights:
    """Open a Hugging Face directory, or a component of a step directory.

    Args:
        path: directory of the model or step.
        components: for a step, open the first of these that it has; without any the actor, or the
            step's only model.
        check_files: for a step, compare all its files with the manifest; one rank is enough.
        head: output layer of the model. A value head may be missing, and the files may have other
            heads.
        new_head: a score head may also be missing, since it will be trained.
        engine: the training engine that it is for, as `read_architecture` takes it.

    Raises:
        ModelError: there is no such directory, or it lacks tensors of its config.json.
        CheckpointError: the step is damaged, or has no such component.
    """
    source = Path(path)
    if (source / schema.MANIFEST).is_file():
        step = Step(source, check_files)
        chosen = component_of(step, *(components or ("actor",)))
        directory = step.hf_directory(chosen)
        shard_map, reader = step.component(chosen), step.reader()
        arch = read_architecture(directory, engine).with_shapes(shard_map.tensors)
        weights = Weights(arch, shard_map, reader, directory, head, component=chosen)
        if any(".lora_" in name for name in shard_map.tensors):
            raise ModelError(
                f"{step.path}: its {chosen} holds adapters of {step.state.adapters[chosen].base} "
                "and no weights; give model.path that model, and lora.path what `verl_hpc export` "
                "writes of this step"
            )
    elif source.is_dir():
        arch = read_architecture(source, engine)
        file = source / "config.json"
        pad = read_json_object(file).get("pad_token_id") if head == "score" else None
        shard_map = safetensors_shard_map(source)
        weights = Weights(arch, shard_map, SafetensorsReader(), source, head, pad)
    else:
        raise ModelError(
            f"model.path = {source}: no such directory; give a Hugging Face model directory or a "
            "step directory (runs/NAME/checkpoints/latest)"
        )
    for problem in _problems(weights, new_head):
        raise ModelError(f"{source}: {problem}")
    if arch.is_mapped:  # others' files may have masks that their models do not read
        check_types(weights, source)
    return weights


def check_types(weights: Weights, source: str | Path) -> None:
    """Refuse tensors of a model in an element type that is not read.

    Raises:
        ModelError: naming the first one.
    """
    for name in weights.tensors.keys() & weights.shard_map.tensors.keys():
        dtype = weights.shard_map.tensors[name].dtype
        if dtype not in _WEIGHT_DTYPES:
            raise ModelError(
                f"{source}: tensor {name} is {dtype}; weights are read from "
                f"{', '.join(_WEIGHT_DTYPES)}, convert quantised ones first"
            )


def component_of(step: Step, *names: str) -> str:
    """Return the first of `names` that a step has as component, or else the first name.

    In a step with a single model, such as a reward model, that model stands for the actor.
    """
    models = [name for name in step.components if not name.endswith(".optimizer")]
    if "actor" in names and len(models) == 1:
        return models[0]
    return next((name for name in names if name in models), names[0])


def _problems(weights: Weights, new_head: bool) -> Iterator[str]:
    """Say how stored tensors differ from those of config.json."""
    there = weights.shard_map.tensors
    missing = [name for name in weights.tensors if name not in there]
    if missing == [SCORE_HEAD] and not new_head:
        yield (
            f"no {SCORE_HEAD} in it, so it gives no score; give a reward model that transformers' "
            "AutoModelForSequenceClassification saved, with num_labels 1"
        )
    elif missing and missing != [SCORE_HEAD]:
        yield (
            f"config.json calls for {len(missing)} tensors that are not there, first {missing[0]}; "
            "is the download whole, and is tie_word_embeddings right?"
        )
    for name, wanted in weights.tensors.items():
        spec = there.get(name, wanted)
        has, shape = f"tensor {name} has shape {list(spec.shape)}", list(wanted.shape)
        if spec.shape != wanted.shape and name == SCORE_HEAD:
            yield (
                f"{has}, so it does not give one score: {shape} is needed; give a model with "
                "num_labels 1"
            )
        elif spec.shape != wanted.shape:
            yield f"{has}; config.json calls for {shape}"
