"""transformers' processors of a model directory, also where torchvision is not installed."""

from __future__ import annotations

import importlib
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from transformers import AutoProcessor, ProcessorMixin
from transformers.utils import is_torchvision_available

from verl_hpc.errors import ModelError

_TORCHVISION_IN = ("gemma3", "qwen2_vl")
"""Families whose image processor vLLM imports from a module that needs torchvision."""


@cache
def do_without_torchvision() -> None:
    """Let processors and vLLM do without torchvision where it is not installed, once a process.

    transformers resizes images with Pillow then. Processors of videos need torchvision: they are
    left out, and vLLM, which asks one for sizes, is given the image processor's.
    """
    if is_torchvision_available():
        return
    every = ProcessorMixin.get_attributes.__func__

    def without_videos(cls: type) -> list[str]:
        return [name for name in every(cls) if name != "video_processor"]

    ProcessorMixin.get_attributes = classmethod(without_videos)
    ProcessorMixin.video_processor = property(lambda self: self.image_processor)
    for family in _TORCHVISION_IN:
        models = f"transformers.models.{family}"
        with_pillow = importlib.import_module(f"{models}.image_processing_pil_{family}")
        module = ModuleType(f"{models}.image_processing_{family}")
        for name, value in vars(with_pillow).items():
            if not name.startswith("__"):
                setattr(module, name.removesuffix("Pil"), value)
        sys.modules[module.__name__] = module


def load_processor(directory: Path) -> Any:
    """Load the processor of a model directory.

    Raises:
        ModelError: it has none, or transformers refuses it.
    """
    do_without_torchvision()
    try:
        processor = AutoProcessor.from_pretrained(
            directory, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # every class of processors checks its files in its own way
        raise ModelError(
            f"model: {directory} has no processor of images that transformers takes: "
            f"{type(error).__name__}: {error}; copy preprocessor_config.json and "
            "processor_config.json of the model beside its config.json, and if it says that "
            "torchvision is missing install that"
        ) from error
    if getattr(processor, "image_processor", None) is None:
        raise ModelError(
            f"model: {directory} has no processor of images; copy preprocessor_config.json of the "
            "model beside its config.json"
        )
    return processor
