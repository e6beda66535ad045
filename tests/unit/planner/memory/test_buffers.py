from hypothesis import given
from hypothesis import strategies as st

from verl_hpc.planner.memory.buffers import Buffer, bucket_elements
from verl_hpc.planner.memory.parameters import Parameter
from verl_hpc.planner.memory.pipeline import most_in_flight

SIZES = st.lists(st.integers(1, 3000), min_size=1, max_size=12)


def parameters(sizes, own=()):
    return [Parameter(str(i), size, own_bucket=i in own) for i, size in enumerate(sizes)]


def test_parameters_begin_at_multiples_of_64_and_buckets_end_at_multiples_of_128():
    buffer = Buffer(parameters([10, 100, 65]), 2, None)
    # 65 first, then 100 from 128 on, then 10 from 256 on: 266, padded to 384.
    assert buffer.buckets == [(0, 384)]
    assert buffer.owned(0) == [65, 64]
    assert buffer.owned(1) == [36, 10]


def test_buckets_of_a_shared_embedding_and_of_a_size():
    own = Buffer(parameters([200, 10, 10], own={0}), 1, None)
    assert own.buckets == [(0, 128), (128, 384)]
    full = Buffer(parameters([100] * 4), 1, 150)
    assert full.buckets == [(0, 256), (256, 512)]
    assert bucket_elements(8) == 40_000_000
    assert bucket_elements(512) == 512_000_000


@given(SIZES, st.integers(1, 9), st.one_of(st.none(), st.integers(1, 4000)), st.integers(0, 11))
def test_replicas_own_every_element_once(sizes, replicas, bucket_size, own):
    buffer = Buffer(parameters(sizes, {own}), replicas, bucket_size)
    owned = [sum(buffer.owned(replica)) for replica in range(replicas)]
    assert sum(owned) == sum(sizes)
    assert buffer.num_elements % replicas == 0


def test_one_forward_one_backward():
    assert [most_in_flight(4, 1, stage, (10,)) for stage in range(4)] == [40, 30, 20, 10]
    assert most_in_flight(4, 1, 0, (10,), 2) == 20


def test_interleaved_chunks_are_held_until_their_backward_pass():
    # Ten forward passes, then one more before the first backward pass.
    assert most_in_flight(4, 2, 0, (10, 10)) == 110
    assert most_in_flight(4, 2, 3, (10, 10)) == 50
    # Four of the first chunk, four of the second, four of the first, and then backward passes
    # of the second.
    assert most_in_flight(4, 2, 0, (10, 0)) == 80
    assert most_in_flight(4, 2, 0, (0, 10)) == 40


@given(st.integers(2, 6), st.integers(2, 4), st.integers(1, 3))
def test_no_more_is_held_than_there_is(stages, chunks, rounds):
    count = rounds * stages
    for stage in range(stages):
        most = most_in_flight(stages, chunks, stage, (1,) * chunks, count)
        assert 1 <= most <= count * chunks
        assert most <= (stages - stage - 1) * 2 + (chunks - 1) * stages + 1
