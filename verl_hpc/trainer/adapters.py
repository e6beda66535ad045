"""Initialise adapters: A at random and B zero, or from files in PEFT's format."""

from __future__ import annotations

import hashlib
import math

import torch

from verl_hpc.checkpoint.peft import open_adapter
from verl_hpc.layout.heads import HEAD_TENSORS
from verl_hpc.layout.shard_map import TensorSpec
from verl_hpc.runtime.session import Session
from verl_hpc.step.role import Role
from verl_hpc.trainer.fill import fill
from verl_hpc.transfer.memory import window


def fill_adapters(session: Session, role: Role, seed: int) -> None:
    """Fill the adapters of a role's engine; every rank calls it.

    Raises:
        ModelError: on every rank, if lora.path does not hold a matching adapter.
    """
    lora, engine = role.settings.lora, role.training
    assert lora is not None
    if lora.path is None:
        if engine is not None:
            _draw(role, session.world.rank, seed)
    else:
        _load(session, role)
    if engine is not None:
        engine.weights_changed()


def _load(session: Session, role: Role) -> None:
    lora, engine = role.settings.lora, role.training
    assert lora is not None
    head = HEAD_TENSORS.get(role.settings.head)
    wanted = {n: s for n, s in role.trained_map.tensors.items() if n != head}
    stored, reader = session.control.together(lambda: open_adapter(lora, wanted, head))
    names = [name for name in role.trained_map.tensors if name in stored.tensors]
    target = role.trained_map.restricted_to(names)
    held = engine.weights if engine else {}
    fill(session, stored.restricted_to(names), reader, target, held)


def _draw(role: Role, rank: int, seed: int) -> None:
    """Initialise adapters as PEFT does: A from U(-1/sqrt(inputs), 1/sqrt(inputs)) (Kaiming's with a
    = sqrt(5)), B zero.

    Each A has its own generator, so that it is equal in every layout.
    """
    assert role.training is not None
    for region in role.trained_map.held_by(rank):
        to = window(role.training.weights, region.view, region)
        if region.tensor.endswith(".lora_A.weight"):
            name = f"{seed} {role.name} {region.tensor}"
            whole = first_a(name, role.trained_map.tensors[region.tensor])
            to.copy_(whole[region.box.slices])
        elif region.tensor.endswith(".lora_B.weight"):
            to.zero_()


def first_a(name: str, spec: TensorSpec) -> torch.Tensor:
    """Return an initial A, (rank, inputs) float32, on the host.

    Args:
        name: seeds its random numbers.
        spec: shape of A.
    """
    number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") >> 1
    bound = 1 / math.sqrt(spec.shape[1])
    generator = torch.Generator().manual_seed(number)
    return torch.empty(spec.shape).uniform_(-bound, bound, generator=generator)
