"""A transformers mixture of experts with routers that are observed, or obey a test."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from tests.mpi.conftest import Reference


def gates_of(reference: Reference) -> dict[int, torch.nn.Module]:
    """The routers by layer."""
    layers = enumerate(reference.model.model.layers)
    found = {i: getattr(x.mlp, "gate", getattr(x.mlp, "router", None)) for i, x in layers}
    return {i: gate for i, gate in found.items() if gate is not None}


def _scores(gate: torch.nn.Module, hidden: torch.Tensor) -> torch.Tensor:
    hidden = hidden.reshape(-1, hidden.shape[-1])
    bias = getattr(gate, "bias", None)
    logits = torch.nn.functional.linear(hidden, gate.weight, bias).float()
    return logits.sigmoid() if _is_sigmoid(gate) else logits.softmax(-1)


def _is_sigmoid(gate: torch.nn.Module) -> bool:
    return hasattr(gate, "e_score_correction_bias")


class Router:
    """The choices of a model's routers in its last pass, and those that replace them."""

    def __init__(self, k: int) -> None:
        self.k = k
        self.told: torch.Tensor | None = None
        """(tokens, layers, k); rows that are -1 go where the router likes."""
        self.chosen: dict[int, torch.Tensor] = {}
        """(tokens, k) by layer."""

    def forward(self, layer: int, gate: torch.nn.Module, hidden: torch.Tensor):
        scores = _scores(gate, hidden)
        own = type(gate).forward(gate, hidden)[2] if _is_sigmoid(gate) else scores.topk(self.k)[1]
        self.chosen[layer] = own
        used = own
        if self.told is not None:
            told = self.told[:, layer].long()
            used = torch.where(told < 0, own, told)
        values = scores.gather(1, used)
        if getattr(gate, "norm_topk_prob", True):
            values = values / values.sum(-1, keepdim=True)
        return scores, values * getattr(gate, "routed_scaling_factor", 1.0), used


@contextmanager
def routed_by(reference: Reference, k: int) -> Iterator[Router]:
    """Inside, the model's routers are a `Router`'s."""
    router, gates = Router(k), gates_of(reference)
    for layer, gate in gates.items():
        gate.forward = lambda hidden, layer=layer, gate=gate: router.forward(layer, gate, hidden)
    try:
        yield router
    finally:
        for gate in gates.values():
            del gate.forward


def choices(
    reference: Reference, sequences: Sequence[torch.Tensor], k: int, noise: float = 0.0
) -> list[torch.Tensor]:
    """What the model chooses for all tokens of each sequence but the last, (L - 1, layers, k)
    uint8; 0 in layers without experts.

    Args:
        noise: added to the routers' weights meanwhile, from one seed.
    """
    gates = list(gates_of(reference).values())
    num_layers = len(reference.model.model.layers)
    generator = torch.Generator().manual_seed(1)
    before = [gate.weight.detach().clone() for gate in gates]
    chosen = []
    with torch.no_grad(), routed_by(reference, k) as router:
        for gate in gates:
            gate.weight += noise * torch.randn(gate.weight.shape, generator=generator)
        for sequence in sequences:
            reference.log_probs(sequence)
            none = torch.zeros_like(next(iter(router.chosen.values())))
            rows = torch.stack([router.chosen.get(i, none) for i in range(num_layers)], dim=1)
            chosen.append(rows[:-1].to(torch.uint8))
        for gate, weight in zip(gates, before, strict=True):
            gate.weight.copy_(weight)
    return chosen


def told(experts: torch.Tensor) -> torch.Tensor:
    """Experts as `Router.told` takes them, where the last token is free."""
    free = torch.full((1, *experts.shape[1:]), -1)
    return torch.cat([experts.long(), free])
