"""Verdicts on ranks' cores, and the file that tells them to whoever submitted the job."""

import json

import pytest

from tests.unit.runtime.test_binding import binding
from verl_hpc.doctor.job import read_result
from verl_hpc.errors import ClusterError
from verl_hpc.runs.verdict import fails, ok
from verl_hpc.runtime.preflight.examine import judge_binding, result_path, write_result


def test_ranks_with_cores_of_their_own():
    verdict = judge_binding([binding(r, range(8 * r, 8 * r + 8), asked=8) for r in range(4)])
    assert (verdict.state, verdict.found) == ("ok", "at least 8 a rank, no two ranks on one")


def test_ranks_that_are_not_bound_and_whose_node_lacks_cores():
    verdict = judge_binding([binding(r, range(64), asked=8) for r in range(4)])
    assert verdict.state == "ok"
    assert "not bound: ranks share them" in verdict.found
    verdict = judge_binding([binding(r, {r}, asked=8, there=2) for r in range(2)])
    assert verdict.state == "fails"
    assert "cores_per_node" in verdict.todo
    assert verdict.nodes == (), "the profile is at fault"


def test_a_result_is_read_as_it_was_written(tmp_path):
    verdicts = [ok("ranks", "fine"), fails("clocks", "off", "tell them", ["n2"])]
    path = result_path(tmp_path, "7")
    write_result(path, verdicts)
    assert path.name == "preflight-7.json"
    assert read_result(path) == verdicts
    tree = json.loads(path.read_text())
    assert tree["failing_nodes"] == [{"node": "n2", "reason": "clocks: off"}]
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(ClusterError, match=r"--out .*none: No such file"):
        write_result(result_path(tmp_path / "none", "7"), [])
