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

from collections.abc import Iterator, Mapping

from verl_hpc.config.roles import RoleSettings
from verl_hpc.errors import ConfigError
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
    for name in _with_adapters(settings, layouts):
        lora = settings[name].lora
        assert lora is not None
        if lora.share_base is False:
            continue
        alike = (one for one in having if not any(_differing(settings, layouts, name, one)))
        base = next(alike, None)
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
    if any(lora is None or lora.share_base is False for lora in (one.lora, other.lora)):
        return False
    return _weights(one) == _weights(other)


def alone(settings: Settings, layouts: Layouts) -> list[str]:
    """Roles that must share their frozen weights and have no role to share them with."""
    bases = shared_bases(settings, layouts)
    shared = {*bases, *bases.values()}
    return [
        name
        for name in _with_adapters(settings, layouts)
        if (lora := settings[name].lora) is not None and lora.share_base and name not in shared
    ]


def check_bases(settings: Settings, layouts: Layouts) -> None:
    """Raises: ConfigError: lora.share_base is true, and cannot be honoured."""
    for name in alone(settings, layouts):
        everyone = _with_adapters(settings, layouts)
        if len(everyone) == 1:
            raise ConfigError(
                f"lora.share_base = true: of the roles of this run {name} alone has adapters, so "
                "that nobody else has its frozen weights; leave it out"
            )
        base, *later = everyone
        other = later[0] if name == base else name
        differs = "; ".join(_differing(settings, layouts, other, base))
        raise ConfigError(
            f"lora.share_base = true: the frozen weights of {other} and {base} cannot be in memory "
            f"once ({other}, {base}): {differs}. Make these the same, or leave lora.share_base out"
        )


def _with_adapters(settings: Settings, layouts: Layouts) -> list[str]:
    return [name for name, role in settings.items() if role.lora is not None and name in layouts]


def _differing(settings: Settings, layouts: Layouts, name: str, base: str) -> Iterator[str]:
    """Yield the settings that keep a role from sharing an earlier one's frozen weights, with both
    values."""
    theirs = _deciding(settings[base], layouts[base])
    for field, mine in _deciding(settings[name], layouts[name]).items():
        if mine != theirs[field]:
            yield f"{field} = {mine}, {theirs[field]}"
    heads = settings[name].head, settings[base].head
    if heads[0] == "language_model" != heads[1]:
        yield f"head = {heads[0]}, {heads[1]}"
    for one in (name, base):
        lora = settings[one].lora
        if lora is not None and lora.share_base is False:
            yield f"roles.{one}.lora.share_base = false"


def _deciding(role: RoleSettings, layout: TrainLayout) -> dict[str, object]:
    first, last = layout.first_rank, layout.first_rank + layout.num_ranks - 1
    return _weights(role) | {"ranks": f"{first}-{last}"} | layout.sizes_of_model


def _weights(role: RoleSettings) -> dict[str, object]:
    return {
        "path": role.model.path,
        "dtype": role.model.dtype,
        "offload.parameters": str(role.offload.parameters).lower(),
    }
