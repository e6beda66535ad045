"""What a run is made of, and whether it is still made of that when it goes on."""

from __future__ import annotations

from collections.abc import Mapping

from verl_hpc.checkpoint.weights import Weights
from verl_hpc.config.run import RunConfig
from verl_hpc.data.fingerprint import fingerprint as fingerprint_of_data
from verl_hpc.errors import ConfigError
from verl_hpc.runtime.control import Control

FIRST_WEIGHTS = "model.path"
DATA = ("data.train", "data.shuffle")
_NEVER_CHANGES = "recipe"
_SHOWN = ("recipe", "seed", "data.shuffle")
_REASONS = {
    "data.train": "other rows than those that the run has read from so far",
    FIRST_WEIGHTS: "other weights than those that the run started from, its KL reference",
}


def fingerprint(
    control: Control, config: RunConfig, first_weights: Weights | None
) -> dict[str, str]:
    """What may not change when a run goes on, by setting; the same on every rank.

    Whatever else may: learning rates, steps, layouts, the number of ranks.

    Args:
        control: of all ranks, which call this together; the first one reads the files.
        config: of the run.
        first_weights: what the run starts from; None leaves them out.

    Raises:
        DataError, CheckpointError: on every rank, if a file cannot be read.
    """

    data = config.data
    # Which rows of train are left depends on evaluation where those of both are dropped.
    drops = data.evaluation is not None and data.overlap == "drop"
    sources = [s for s in (data.train, data.evaluation if drops else None) if s is not None]

    def read() -> dict[str, str]:
        found = {
            "recipe": config.recipe,
            "seed": str(config.seed),
            "data.train": fingerprint_of_data(*sources),
            "data.shuffle": str(data.shuffle).lower(),
        }
        if first_weights is not None:
            found[FIRST_WEIGHTS] = first_weights.fingerprint()
        return found

    return control.broadcast(control.together(read if control.rank == 0 else dict))


def changed(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Settings whose values differ; what one of the two does not know is left out."""
    return [name for name in now if name in before and now[name] != before[name]]


def check_fingerprint(before: Mapping[str, str], now: Mapping[str, str], force: bool) -> None:
    """Whether a run may go on.

    Args:
        before: the fingerprint in its checkpoint.
        now: that of its configuration.
        force: accept another seed, other data and another reference.

    Raises:
        ConfigError: names every setting that changed.
    """
    found = changed(before, now)
    if not found or (force and _NEVER_CHANGES not in found):
        return
    changes = [
        f"{name} = {now[name]}, and was {before[name]}"
        if name in _SHOWN
        else f"{name}: {_REASONS[name]}"
        for name in found
    ]
    way_out = "" if _NEVER_CHANGES in found else ", or set checkpoint.resume: force"
    raise ConfigError(
        f"this run goes on from a checkpoint, and is not the same any more: {'; '.join(changes)}. "
        "Give back what it was, or start a run of another name (model.path: its newest step)"
        f"{way_out}"
    )
