"""DPO and KTO compute the same on every layout and placement."""

import json
from random import Random

import pytest

from tests.mpi.recipe_runs import assert_same, run

pytestmark = pytest.mark.world(4)

LAYOUTS = {
    "dp4": {},
    "tp2-pp2": {"parallel": {"tensor_parallel": 2, "pipeline_parallel": 2}},
    "reference-apart": {"placement": {"actor": "0-1", "reference": "2-3"}},
}
SIZE = 6
RECIPES = {
    "dpo": {"preference": {"name": "dpo", "sft_weight": 0.1}},
    "kto": {"kto": {"desirable_weight": 2.0, "undesirable_weight": 0.5}},
}


def letters(random):
    return "".join(random.choices("abcdef", k=random.randint(1, 9)))


@pytest.fixture(scope="module")
def data(here, shared_directory):
    """Sources of pairs, of evaluation, and of answers by themselves."""
    random, sources = Random(0), {}
    for name, count in (("dpo", 2 * SIZE), ("evaluation", 5), ("kto", 2 * SIZE)):
        rows = [{"prompt": f"{name} {i}:"} for i in range(count)]
        for i, row in enumerate(rows):
            row |= {"chosen": letters(random) + "a", "rejected": letters(random) + "b"}
            if name == "kto":
                row |= {"completion": row["chosen"], "label": i % 3 == 0}
        path = shared_directory / f"{name}.jsonl"
        if here.world.rank == 0:
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        sources[name] = {"kind": "files", "paths": [str(path)]}
    here.control.barrier()
    return sources


@pytest.mark.parametrize("recipe", RECIPES)
def test_layouts_compute_the_same(here, tiny_model, shared_directory, data, recipe):
    rows_of = {
        name: run(
            here,
            f"{recipe}-{name}",
            tiny_model(),
            shared_directory,
            recipe=recipe,
            algorithm=RECIPES[recipe],
            **layout,
            rollout={"engine": "none", "max_prompt_tokens": 64, "max_response_tokens": 16},
            optimizer={"lr": 1e-3},
            # Several micro-batches on some ranks; with four, one has no sample of a mini-batch.
            batch={"size": SIZE, "mini_batches": 2, "max_tokens_per_micro_batch": 90},
            data={"shuffle": False, "train": data[recipe], "evaluation": data["evaluation"]},
            evaluation={"every": 2},
        )
        for name, layout in LAYOUTS.items()
    }
    # Not rewards/accuracies: before the first optimizer step it is that of rounding errors.
    rewards = ("rewards/chosen", "rewards/rejected", "rewards/margins")
    kto = ("kto/",) if recipe == "kto" else ()
    prefixes = ("preference/", *rewards, *kto, "logps/", "actor/", "val/")
    for name in ("tp2-pp2", "reference-apart"):
        assert_same(rows_of[name], rows_of["dp4"], prefixes)
    last = rows_of["dp4"][-1]
    assert last["preference/loss"] > 0 and last["val/margin"] != 0.0
    if recipe == "kto":
        assert last["kto/kl"] > 0
