"""What a run leaves in its facts."""

from types import SimpleNamespace

import pytest

from tests.unit.config.trees import parse
from verl_hpc.trainer.records import Result, run_facts
from verl_hpc.trainer.state import START


@pytest.mark.parametrize(
    ("ranks", "nodes", "told"), [(2, 1, "2 on 1 node"), (8, 2, "8 on 2 nodes")]
)
def test_facts_tell_ranks_and_nodes(ranks, nodes, told):
    workers = SimpleNamespace(
        config=parse(),
        arch=SimpleNamespace(num_parameters=7),
        session=SimpleNamespace(world=SimpleNamespace(size=ranks, num_nodes=nodes)),
        layouts=SimpleNamespace(
            train=SimpleNamespace(tp=1, pp=1, dp=2, vpp=1), num_replicas=2, grouping="strided"
        ),
        problems=SimpleNamespace(facts={}),
        kernels={},
    )
    facts = run_facts(workers, Result(START, "finished"))
    assert (facts["ranks"], facts["num_ranks"], facts["num_nodes"]) == (told, ranks, nodes)
