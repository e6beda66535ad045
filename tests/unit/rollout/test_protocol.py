"""The replica that a rank belongs to."""

from verl_hpc.rollout.protocol import replica_of


def test_a_rank_is_in_one_replica_or_in_none():
    replicas = ((2, 4), (3, 5))
    assert [replica_of(replicas, rank) for rank in range(7)] == [None, None, 0, 1, 0, 1, None]
