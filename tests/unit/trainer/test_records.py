"""What a run leaves in its facts."""

from types import SimpleNamespace

import pytest

from tests.unit.config.trees import parse
from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.trainer.records import Result, _role_facts, run_facts
from verl_hpc.trainer.state import START


@pytest.mark.parametrize(
    ("ranks", "nodes", "told"), [(2, 1, "2 on 1 node"), (8, 2, "8 on 2 nodes")]
)
def test_facts_tell_ranks_and_nodes(ranks, nodes, told):
    layout = TrainLayout(dp=2)
    run = SimpleNamespace(
        config=parse(),
        arch=SimpleNamespace(num_parameters=7),
        session=SimpleNamespace(world=SimpleNamespace(size=ranks, num_nodes=nodes)),
        roles={name: SimpleNamespace(layout=layout) for name in ("actor", "critic")},
        layouts=SimpleNamespace(is_split=False, num_replicas=2, grouping="strided"),
        problems=SimpleNamespace(facts={}),
        kernels={},
    )
    facts = run_facts(run, Result(START, "finished"))
    assert (facts["ranks"], facts["num_ranks"], facts["num_nodes"]) == (told, ranks, nodes)
    assert facts["training layout"] == "tp 1, pp 1, dp 2, vpp 1"


def test_facts_tell_every_roles_layout_where_they_differ():
    run = SimpleNamespace(
        roles={
            "actor": SimpleNamespace(layout=TrainLayout(tp=2, dp=1)),
            "critic": SimpleNamespace(layout=TrainLayout(dp=2, first_rank=2)),
        },
        layouts=SimpleNamespace(is_split=True),
    )
    assert _role_facts(run) == {
        "actor layout": "tp 2, pp 1, dp 1, vpp 1 on ranks 0-1",
        "critic layout": "tp 1, pp 1, dp 2, vpp 1 on ranks 2-3",
    }
