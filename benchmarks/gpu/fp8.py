"""FP8 training by Transformer Engine against bfloat16: speed and loss, recipe by recipe."""

from __future__ import annotations

from benchmarks.gpu.setting import CannotRunError, Figure, Omitted, Setting, architecture, forget
from benchmarks.gpu.train import speed_engine, time_steps
from verl_hpc.config.model import Fp8Config
from verl_hpc.errors import ClusterError

RECIPES = ("delayed", "tensorwise", "blockwise", "mxfp8")
NUM_STEPS = 5


def run(setting: Setting) -> list[Figure | Omitted]:
    """Every recipe that this device has, on the weights and the batch of the bfloat16 run."""
    if not setting.on_gpu:
        raise CannotRunError("no CUDA device")
    from verl_hpc.engines.megatron.precision import has_transformer_engine

    if not has_transformer_engine():
        raise CannotRunError("module transformer_engine is missing or does not import")
    plain_seconds, plain_losses = _train(setting, None)
    figures: list[Figure | Omitted] = [Figure("bfloat16, one step", plain_seconds, "s")]
    for recipe in RECIPES:
        try:
            seconds, losses = _train(setting, Fp8Config(recipe=recipe))
        except ClusterError as error:
            figures.append(Omitted(recipe, str(error)))
            continue
        difference = abs(losses[-1] / plain_losses[-1] - 1)
        figures += [
            Figure(f"{recipe}, speed over bfloat16", plain_seconds / seconds, "x"),
            Figure(f"{recipe}, loss, relative difference", difference, at_most=0.03),
        ]
    return figures


def _train(setting: Setting, fp8: Fp8Config | None) -> tuple[float, list[float]]:
    engine = speed_engine(setting, architecture(setting.shapes.model), fp8)
    found = time_steps(setting, engine, NUM_STEPS)
    del engine
    forget(setting)
    return found
