"""What transformers' models are built from."""

import pytest

from tests.unit.layout.models import architecture
from verl_hpc.engines.fsdp.build import transformers_config
from verl_hpc.layout.families import FAMILIES


def test_a_family_that_drops_out_by_default_does_not(monkeypatch):
    """As that of Seed-OSS, a tenth of attention and of what each block adds."""
    monkeypatch.setitem(FAMILIES, "seed_oss", FAMILIES["qwen2"])
    config = transformers_config(architecture(family="seed_oss", hidden_size=16))
    assert (config.attention_dropout, config.residual_dropout) == (0.0, 0.0)


@pytest.mark.parametrize(
    "family", [f for f, family in FAMILIES.items() if not family.table.expert_rows]
)
def test_no_family_drops_anything(family):
    fields = transformers_config(architecture(family=family, hidden_size=16)).to_dict()
    assert [f for f, v in fields.items() if f.endswith(("dropout", "pdrop")) and v] == []
