"""Weights of families without a layer table: vLLM cuts and fuses them itself, by their names."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
import vllm._custom_ops as ops
from vllm import ModelRegistry
from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader
from vllm.model_executor.models.transformers import base

from verl_hpc.errors import ConfigError, ModelError
from verl_hpc.hf.model import class_name
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.not_mapped import WITH_IMAGES
from verl_hpc.rollout.vllm_latent import LatentLayers
from verl_hpc.rollout.vllm_settings import in_one_line


@cache
def keep_buffers() -> None:
    """Let weights of no meaning be those that a model's files have, once a process.

    vLLM gives random numbers to buffers as well, such as the mean and deviation of pixels, which
    no file would bring back.
    """
    load = DummyModelLoader.load_weights

    def load_weights(loader: DummyModelLoader, model: torch.nn.Module, config: Any) -> None:
        kept = [(buffer, buffer.clone()) for buffer in model.buffers()]
        load(loader, model, config)
        for buffer, value in kept:
            buffer.copy_(value)

    DummyModelLoader.load_weights = load_weights


class ByName:
    """Loads tensors into an engine's model by their names in its files.

    Args:
        model: the model, built with weights of no meaning.
        dtype: element type of the weights.
    """

    def __init__(self, model: torch.nn.Module, dtype: torch.dtype) -> None:
        self._model, self._latent = model, LatentLayers(model, dtype)
        self._names = {n: id(p) for n, p in model.named_parameters(remove_duplicate=False)}
        derived = self._latent.derived
        self._unfilled = {p: name for name, p in self._names.items() if p not in derived}
        """Parameters that no tensor has filled yet, each with one of its names."""

    @staticmethod
    def options(arch: Architecture, is_eager: bool, on_cpu: bool) -> dict[str, Any]:
        """Return what an engine of this family needs, and prepare vLLM for it.

        vLLM computes families that it has no class of its own for with transformers' class, and
        would prepare that for compilation in the whole process: a training engine's model of the
        class would fail then.

        Raises:
            ConfigError: vLLM has no class of its own, and compiles.
        """
        name = class_name(arch.family)
        known = (
            ModelRegistry.models[name].load_model_cls() if name in ModelRegistry.models else None
        )
        if known is None or issubclass(known, base.Base):
            if not is_eager:
                raise ConfigError(
                    f"rollout.enforce_eager = false: vLLM has no class of its own for a "
                    f"{arch.family}, and would compile transformers', which training uses in the "
                    "same process; set it to true"
                )
            base.Base._decorate_cls_for_torch_compile = lambda *_, **__: None
        keep_buffers()
        options: dict[str, Any] = {}
        # A cache of prefixes cuts prompts of recurrent layers in pieces, which CPUs cannot.
        if on_cpu and getattr(known, "is_hybrid", False):
            options["enable_prefix_caching"] = False
        if arch.family in WITH_IMAGES:
            options["limit_mm_per_prompt"] = {"video": 0}
        return options

    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Load some of the model's tensors.

        Raises:
            ModelError: vLLM's model does not know one.
        """
        try:
            with torch.no_grad():
                loaded = self._model.load_weights(tensors.items())
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # every class of models loads in its own way
            raise ModelError(
                f"rollout.engine = vllm: its {type(self._model).__name__} does not take the "
                f"model's tensors by their names: {type(error).__name__}: {in_one_line(error)}; "
                "choose rollout.engine: hf"
            ) from error
        for name in loaded or ():
            self._unfilled.pop(self._names.get(name, 0), None)

    def finish(self) -> None:
        """Compute what vLLM derives from weights, once all are loaded.

        Raises:
            ModelError: a parameter of vLLM's model was filled by no tensor.
        """
        if self._unfilled:
            raise ModelError(
                f"rollout.engine = vllm: {len(self._unfilled)} parameters of its "
                f"{type(self._model).__name__} are filled by no tensor of the model, first "
                f"{min(self._unfilled.values())}; choose rollout.engine: hf"
            )
        self._latent.derive()
        for layer in self._model.modules():
            # vLLM packs a convolution in place; plain values were written over it.
            if hasattr(layer, "_cpu_unpacked_conv_weight"):
                plain = layer.weight.detach().view_as(layer._cpu_unpacked_conv_weight).clone()
                layer._cpu_unpacked_conv_weight.copy_(plain)
                layer.weight.data = ops.causal_conv1d_weight_pack(plain)
