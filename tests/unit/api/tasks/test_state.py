from verl_hpc.api.tasks.state import joined, split


def test_parts_come_back_from_the_names_that_checkpoints_have():
    parts = {"data": {"batches": 2.0, "loader/count": 8.0}, "guard_0": {"best/task/a/kl": 0.5}}
    found = joined(parts)
    assert found == {"data/batches": 2.0, "data/loader/count": 8.0, "guard_0/best/task/a/kl": 0.5}
    assert split(found) == parts
    assert joined({"empty": {}}) == {}
