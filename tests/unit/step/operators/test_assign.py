"""Who gets which samples."""

import logging
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.config.trees import parse
from verl_hpc.errors import DataError
from verl_hpc.step.batch import Sample, Samples, StepRows
from verl_hpc.step.operators.assign import (
    AssignSettings,
    assign,
    assign_groups,
    length_metrics,
    share,
)
from verl_hpc.testing.local_run import local_place

PLACE = local_place("rollout")


CONFIG = parse(rollout__max_prompt_tokens=100)


def settings(mini_batches=1, seed=0, shuffle="none", epochs=1, **num_groups):
    changes = {"shuffle_mini_batches": shuffle, "update_epochs": epochs}
    batch = CONFIG.batch.model_copy(update=changes | {"mini_batches": mini_batches})
    config = CONFIG.model_copy(update={"batch": batch, "seed": seed})
    return AssignSettings(config, num_groups, 64)


def responses(lengths, per_prompt=2):
    samples = tuple(
        Sample(i, i // per_prompt, 10, length, length > 50) for i, length in enumerate(lengths)
    )
    return Samples(samples, {"rollout": [0] * len(lengths)})


def assigned(lengths, num_prompts=None, **changes):
    given = responses(lengths)
    rows = StepRows(4, range(num_prompts or len({s.group for s in given})))
    return assign(PLACE, settings(**changes), rows, given)


@pytest.mark.parametrize(("count", "shares"), [(8, 4), (7, 3), (2, 4), (0, 2), (5, 1)])
def test_shares_are_neighbours_and_nearly_equal(count, shares):
    parts = [share(count, i, shares) for i in range(shares)]
    assert [i for part in parts for i in part] == list(range(count))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_every_placement_has_all_samples_once():
    found, _ = assigned([5, 60, 7, 8, 9, 60, 11, 12], mini_batches=2, train=2, critic=4)
    assert set(found.owners) == {"rollout", "train", "critic"}
    assert found.owners["rollout"] == [0] * 8
    for place, count in {"train": 2, "critic": 4}.items():
        owned = [found.owned_by(place, group) for group in range(count)]
        assert sorted(i for part in owned for i in part) == list(range(8))
        # Every group has a part in every optimizer step.
        for batch in found.mini_batches:
            assert all(any(i in batch for i in part) for part in owned)


def test_groups_have_equal_work():
    found, _ = assigned([100, 1, 100, 1], train=2)
    work = [sum(found.samples[i].length for i in found.owned_by("train", g)) for g in range(2)]
    assert work[0] == work[1]


def sharing(prompts, count):
    """Owners of samples given as (prompt length, response lengths) prompt by prompt."""
    rows = [(group, prompt, n) for group, (prompt, lengths) in enumerate(prompts) for n in lengths]
    samples = tuple(Sample(i, *row, False) for i, row in enumerate(rows))
    given = replace(settings(train=count), hidden_size=10**6, shares_prompts=True)
    return assign_groups(given, samples).owners["train"]


def test_samples_of_a_prompt_stay_together_where_that_is_less_work():
    # 20 + 4 x 5 tokens on either rank, and not 20 + 20 + 4 x 5.
    assert sharing([(20, [5] * 4), (20, [5] * 4)], 2) == [0] * 4 + [1] * 4
    # Four of one prompt are 20 + 4 x 5 on one rank; two and two are 20 + 2 x 5.
    assert sharing([(20, [5] * 4)], 2).count(0) == 2
    # One prompt a rank would leave one of them 2 + 3 x 90 tokens.
    owners = sharing([(2, [90, 90, 90]), (2, [1, 1, 1])], 2)
    assert max(owners[:3].count(rank) for rank in (0, 1)) == 2


def test_lengths_are_metrics():
    _, metrics = assigned([4, 60, 6, 10], train=1)
    lengths = {"response_length": (20.0, 60.0, 4.0, 0.25), "prompt_length": (10.0, 10.0, 10.0, 0.0)}
    expected = {"perf/total_num_tokens": 120.0, "prompt_length/num_dropped": 0.0}
    for what, values in lengths.items():
        names = [f"{what}/{end}" for end in ("mean", "max", "min", "clip_ratio")]
        expected |= dict(zip(names, values, strict=True))
    assert metrics == expected


def test_prompts_that_fill_their_room_are_counted():
    samples = [Sample(i, i, length, 1, False) for i, length in enumerate([10, 9, 3, 10])]
    assert length_metrics(samples, 10)["prompt_length/clip_ratio"] == 0.5


@pytest.mark.parametrize(("num_prompts", "dropped"), [(2, 0), (5, 3)])
def test_prompts_that_were_dropped_are_counted_and_told(caplog, num_prompts, dropped):
    with caplog.at_level(logging.WARNING):
        _, metrics = assigned([4, 4, 4, 4], num_prompts, train=1)
    assert metrics["prompt_length/num_dropped"] == dropped
    told = "step 4: 3 of 5 prompts dropped, longer than rollout.max_prompt_tokens = 100"
    assert (told in caplog.text) == bool(dropped)


def test_a_step_without_samples_is_refused():
    with pytest.raises(DataError, match=r"step 4: every prompt of data.train was dropped.*= 100"):
        assigned([], 3, train=1)


@given(
    lengths=st.lists(st.integers(1, 50), min_size=1, max_size=20),
    groups=st.integers(1, 4),
    mini_batches=st.integers(1, 4),
    together=st.sampled_from([1, 2, 3]),
)
def test_neighbours_have_one_owner_and_one_mini_batch(lengths, groups, mini_batches, together):
    samples = [
        Sample(i, i // together, 3, n, False)
        for i, n in enumerate(n for n in lengths for _ in range(together))
    ]
    given = settings(mini_batches, train=groups, critic=1)
    assigned = assign_groups(given, samples, together=together)
    assert [i for batch in assigned.mini_batches for i in batch] == list(range(len(samples)))
    assert set(assigned.owners["train"]) <= set(range(groups))
    assert set(assigned.owners["critic"]) == {0}
    for batch in assigned.mini_batches:
        assert len(batch) % together == 0
    for first in range(0, len(samples), together):
        assert len(set(assigned.owners["train"][first : first + together])) == 1
    # Each mini-batch goes to as many groups as it has something for.
    for batch in assigned.mini_batches:
        assert len({assigned.owners["train"][i] for i in batch}) == min(
            groups, len(batch) // together
        )


# Shuffled mini-batches


def dealt(samples, shuffle="samples", mini_batches=2, epochs=3, together=1, step=4, **changes):
    """Mini-batches as sets, by epoch."""
    groups = changes.pop("groups", 2)
    given = settings(mini_batches, shuffle=shuffle, epochs=epochs, train=groups, **changes)
    assigned = assign_groups(given, samples, together=together, step=step)
    batches = [frozenset(batch) for batch in assigned.all_epochs(epochs)]
    each = len(batches) // epochs
    return [batches[each * number : each * (number + 1)] for number in range(epochs)]


def test_fewer_epochs_than_were_dealt():
    given = settings(2, shuffle="samples", epochs=3)
    found = assign_groups(given, responses([7] * 8, 2).samples)
    assert found.all_epochs(1) == list(found.mini_batches)
    assert found.all_epochs(3)[:2] == list(found.mini_batches)


PER_PROMPT = 3
SIXTY = responses([7] * 60, PER_PROMPT).samples


@given(
    num_prompts=st.integers(1, 8),
    per_prompt=st.sampled_from([1, 2, 4]),
    mini_batches=st.integers(1, 4),
    epochs=st.integers(1, 3),
    shuffle=st.sampled_from(["none", "samples", "groups"]),
    pairs=st.booleans(),
    step=st.integers(0, 5),
)
def test_every_sample_is_dealt_once_an_epoch(
    num_prompts, per_prompt, mini_batches, epochs, shuffle, pairs, step
):
    together = 2 if pairs and per_prompt > 1 else 1
    samples = responses([5] * (num_prompts * per_prompt), per_prompt).samples
    dealt_to = [
        dealt(samples, shuffle, mini_batches, epochs, together, step, groups=count)
        for count in (1, 2, 5)
    ]
    assert dealt_to[0] == dealt_to[1] == dealt_to[2], "the layout deals nothing"
    for epoch in dealt_to[0]:
        assert sorted(i for batch in epoch for i in batch) == list(range(len(samples)))
        unit = per_prompt if shuffle == "groups" else together
        sizes = [len(batch) for batch in epoch]
        assert max(sizes) - min(sizes) <= unit
        for batch in epoch:
            for first in range(0, len(samples), unit):
                assert len(batch & set(range(first, first + unit))) in (0, unit)


def test_the_order_is_of_seed_step_and_epoch():
    found = dealt(SIXTY)
    assert dealt(SIXTY) == found
    assert len(set(map(tuple, found))) == 3, "another order in each epoch"
    assert dealt(SIXTY, seed=1) != found
    assert dealt(SIXTY, step=5) != found
    assert dealt(SIXTY, epochs=2) == found[:2]


@pytest.mark.parametrize("shuffle", ["samples", "groups"])
def test_groups_stay_whole_only_where_that_is_asked(shuffle):
    parted = [
        first
        for epoch in dealt(SIXTY, shuffle)
        for batch in epoch
        for first in range(0, 60, PER_PROMPT)
        if 0 < len(batch & set(range(first, first + PER_PROMPT))) < PER_PROMPT
    ]
    assert bool(parted) == (shuffle == "samples")


def test_dealt_mini_batches_are_not_those_of_neighbours():
    plain = [frozenset(range(30)), frozenset(range(30, 60))]
    assert dealt(SIXTY, "none") == [plain] * 3
    assert all(
        epoch != plain for shuffle in ("samples", "groups") for epoch in dealt(SIXTY, shuffle)
    )


def test_work_is_equal_in_the_first_epoch():
    samples = responses([100, 1] * 10).samples
    found = assign_groups(settings(2, shuffle="samples", train=2), samples)
    for batch in found.mini_batches:
        work = [
            sum(samples[i].length for i in batch if found.owners["train"][i] == g) for g in (0, 1)
        ]
        assert abs(work[0] - work[1]) <= 100
