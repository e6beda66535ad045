"""Small mixtures of experts, and engines of them on given sizes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from tests.mpi.engines_for_tests import engine_of_sizes

FULL = {"recompute": "full"}
QWEN = {"num_experts": 8, "moe_intermediate_size": 32, "num_experts_per_tok": 2}
MODELS = {
    "normalised": ("qwen3_moe", QWEN | {"norm_topk_prob": True}),
    "raw": ("qwen3_moe", QWEN | {"norm_topk_prob": False}),
    "mixtral": ("mixtral", {"num_local_experts": 8, "intermediate_size": 32}),
}


def mixture(tiny_model, model: str):
    """A model's directory, and its family."""
    family, fields = MODELS[model]
    return tiny_model(family, num_hidden_layers=4, num_key_value_heads=4, **fields), family


def engine_on(here, directory, sizes, max_tokens: int = 64, **settings):
    """An engine with sequence parallelism wherever there is tensor parallelism."""
    sizes = {"sp": sizes.get("tp", 1) > 1, **sizes}
    return engine_of_sizes(here, directory, sizes, max_tokens=max_tokens, **settings)


def grid(num_ranks: int) -> Iterator[dict[str, int]]:
    """All layouts of TP, PP and ETP to 2, DP and EP to 4."""
    axes = (1, 2), (1, 2), (1, 2, 4), (1, 2, 4), (1, 2)
    for tp, pp, dp, ep, etp in product(*axes):
        if tp * pp * dp == num_ranks and tp * dp % (ep * etp) == 0:
            yield {"tp": tp, "pp": pp, "dp": dp, "ep": ep, "etp": etp}


def every_layout_of_world(metafunc) -> None:
    """`every` becomes each layout of the world; every third recomputes its layers."""
    if "every" not in metafunc.fixturenames:
        return
    from tests.mpi import plugin

    layouts = [
        sizes | (FULL if number % 3 == 0 else {})
        for number, sizes in enumerate(grid(plugin.session.world.size))
    ]
    metafunc.parametrize("every", layouts, ids=lambda sizes: "-".join(map(str, sizes.values())))
