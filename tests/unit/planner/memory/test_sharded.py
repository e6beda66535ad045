"""Memory of models that fully_shard divides: what a rank keeps, saves, and gathers."""

import pytest

from tests.unit.config.trees import parse
from tests.unit.layout.models import architecture
from tests.unit.planner.memory.test_ledger import small
from verl_hpc.errors import ConfigError
from verl_hpc.layout.fsdp import fsdp_shard_map
from verl_hpc.layout.shard_map import ITEM_BYTES
from verl_hpc.layout.writers import assign_writers
from verl_hpc.placement.layouts import run_layouts


def test_shards_that_do_not_divide_the_ranks_are_refused():
    with pytest.raises(ConfigError, match="parallel.fsdp.shard_size = 3 does not divide the 4 ra"):
        small(4, **sharded(shard_size=3))


def sharded(**settings):
    return {"parallel": {"engine": "fsdp", "fsdp": settings}, "rollout__engine": "hf"}


@pytest.mark.parametrize("settings", [{}, {"shard_size": 2}, {"shard_size": 1}], ids=str)
def test_a_rank_keeps_its_rows_and_saves_its_share_of_them(settings):
    """Return the bytes that the shard map and the writers of a checkpoint give."""
    arch, changes = architecture(max_positions=4096), sharded(**settings)
    layout = run_layouts(parse(**changes), arch, 4).train["actor"]
    assert (layout.dp, layout.shard_size) == (4, settings.get("shard_size"))
    shard_map = fsdp_shard_map(arch, layout, dtype="float32")
    phases = {p.name: p for p in small(**changes).of_rank(0)}
    rows = sum(r.box.num_elements for r in shard_map.held_by(0))
    assert phases["update"].device["actor.weights"] == 4 * rows
    assert phases["update"].device["actor.moments"] == 8 * rows
    written = sum(r.box.num_elements for r in assign_writers(shard_map)[0])
    copies = layout.dp // layout.num_shards
    # Boxes are written as wholes.
    assert abs(written - rows / copies) <= max(r.box.num_elements for r in shard_map.held_by(0))
    saved = (ITEM_BYTES["float32"] + 12) * rows // copies
    assert phases["save"].host["actor.saved"] == saved
