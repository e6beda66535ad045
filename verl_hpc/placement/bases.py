"""Roles with adapters that share one copy of their frozen weights in memory.

They share where the frozen weights are identical: the same model in the same element type, sharded
in the same way on the same ranks, and on the device at the same times. The first of these roles
holds them, and the others compute with its memory; a role with a one-number head has no output
layer to share::

    actor, critic, prm with adapters      critic -> actor, prm -> actor
    the critic on a layout of its own     prm -> actor
    the actor on a layout of its own      neither
"""

from __future__ import annotations

from collections.abc import Mapping

from verl_hpc.config.roles import RoleSettings
from verl_hpc.layout.megatron import TrainLayout

Settings = Mapping[str, RoleSettings]
Layouts = Mapping[str, TrainLayout]


def shared_bases(settings: Settings, layouts: Layouts) -> dict[str, str]:
    """Map each role that computes with another's frozen weights to that other role.

    Args:
        settings: of every role, in the order in which engines are built.
        layouts: of every role, or of those on one set of ranks.
    """
    bases: dict[str, str] = {}
    having: list[str] = []
    for name, role in settings.items():
        if name not in layouts or not _may_share(role):
            continue
        base = next((one for one in having if _can_share(settings, layouts, name, one)), None)
        if base is None:
            having.append(name)
        else:
            bases[name] = base
    return bases


def shared_bases_text(bases: Mapping[str, str]) -> list[str]:
    """Describe in a line each role that computes with another's frozen weights."""
    return [
        f"{name} computes with {base}'s frozen weights, which are in memory once"
        for name, base in bases.items()
    ]


def may_share(one: RoleSettings, other: RoleSettings) -> bool:
    """Whether there are layouts on which two roles have their frozen weights in memory once."""
    return _may_share(one) and _may_share(other) and _weights(one) == _weights(other)


def _can_share(settings: Settings, layouts: Layouts, name: str, base: str) -> bool:
    """Whether a role can compute with an earlier one's frozen weights."""
    role, other, mine, theirs = settings[name], settings[base], layouts[name], layouts[base]
    return (
        _weights(role) == _weights(other)
        and (mine.first_rank, mine.num_ranks) == (theirs.first_rank, theirs.num_ranks)
        and mine.sizes_of_model == theirs.sizes_of_model
        and (role.head != "language_model" or other.head == "language_model")
    )


def _may_share(role: RoleSettings) -> bool:
    """Whether a role has frozen weights for others; fully_shard keeps those of each role apart."""
    is_sharded = role.parallel.engine == "fsdp"
    return role.lora is not None and role.lora.share_base and not is_sharded


def _weights(role: RoleSettings) -> tuple[object, ...]:
    return role.model.path, role.model.dtype, role.offload.parameters
