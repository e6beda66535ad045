"""Random schedules of asynchronous steps: what is trained on is what was sampled, and not older
than rollout.staleness allows."""

import pytest
import torch

from tests.pieces import take
from tests.slow import mostly_slow
from tests.unit.trainer.schedules import ARCH, MAX_PROMPT_TOKENS, draw, play
from verl_hpc.data.order import Order, Position
from verl_hpc.testing.local import TinyModel
from verl_hpc.testing.local_run import LetterTokenizer

SCHEDULES = [draw(seed) for seed in range(63)]
"""Every fifth is synchronous, 50 are not."""


@pytest.mark.parametrize("schedule", mostly_slow(SCHEDULES, every=3), ids=lambda s: f"{s.seed}")
def test_a_schedule(schedule):
    played = play(schedule, slow="train")
    rows_are_those_of_synchronous_steps(schedule, played)
    every_token_is_trained_on_once(schedule, played)
    versions_are_the_weights_that_sampled(schedule, played)
    assert played.counted == list(range(1, schedule.steps + 1)), "a checkpoint has another step's"
    assert same(played, play(schedule, slow="rollout")), "what a rank is given depends on time"


def rows_are_those_of_synchronous_steps(schedule, played):
    """Assert that rows come in their order, with all responses to those that are not dropped."""
    order, position = Order(len(schedule.prompts), schedule.seed, True), Position()
    encode = LetterTokenizer().encode
    assert len(played.trained) == schedule.steps
    for number, (rows, samples, sequences) in enumerate(played.trained, 1):
        wanted, position = order.take(position, schedule.batch)
        assert (rows.step, rows.rows) == (number, wanted)
        prompts = [encode(schedule.prompts[row]) for row in wanted]
        slots = [
            (group * schedule.num_samples + i, group)
            for group, prompt in enumerate(prompts)
            if len(prompt) <= MAX_PROMPT_TOKENS
            for i in range(schedule.num_samples)
        ]
        assert [(s.index, s.group) for s in samples] == slots
        for tokens, sample in zip(sequences["tokens"], samples, strict=True):
            assert tokens[: sample.prompt_length].tolist() == prompts[sample.group]


def every_token_is_trained_on_once(schedule, played):
    """With its first log-prob, bit for bit, and the version under which an engine gave it."""
    left = dict(played.pieces)
    for step, samples, i, columns in rows_of(played):
        sample = samples.samples[i]
        tokens, log_probs, versions = take(left, schedule.seed, step, sample)
        assert columns["tokens"][sample.prompt_length :].tolist() == tokens
        assert columns["rollout_log_probs"].tolist() == log_probs
        assert columns["mask"].tolist() == [1] * len(tokens)
        if schedule.staleness:
            assert columns["versions"].tolist() == versions
        assert sample.truncated == (tokens[-1] != 0)
        assert 0 not in tokens[:-1] and len(tokens) <= schedule.max_response_tokens
    assert not left, "tokens that nobody trained on"


def versions_are_the_weights_that_sampled(schedule, played):
    """At most `staleness` steps behind the weights that train, and they give the log-probs."""
    for step, samples, i, columns in rows_of(played):
        length = samples.samples[i].prompt_length
        versions = columns.get("versions", torch.full_like(columns["mask"], step - 1, dtype=int))
        lags = step - 1 - versions
        assert int(lags.min()) >= 0 and int(lags.max()) <= schedule.staleness
        assert versions.tolist() == sorted(versions.tolist())
        for version in set(versions.tolist()):
            model = TinyModel(ARCH)
            for name, weight in model.weights.items():
                weight.copy_(played.weights[version][name])
            rows = model(columns["tokens"])[length - 1 : -1].log_softmax(-1)
            ours = rows.gather(-1, columns["tokens"][length:, None])[:, 0]
            at = versions == version
            torch.testing.assert_close(columns["rollout_log_probs"][at], ours[at])


def rows_of(played):
    """Every sample of every step: (step, samples, position, its columns)."""
    for rows, samples, sequences in played.trained:
        assert list(sequences.positions) == list(range(len(samples)))
        for i in sequences.positions:
            columns = {name: values[i] for name, values in sequences.values.items()}
            yield rows.step, samples, i, columns


def same(one, other):
    def plain(played):
        return [
            (rows, samples.samples, {n: [v.tolist() for v in c] for n, c in columns.values.items()})
            for rows, samples, columns in played.trained
        ]

    return plain(one) == plain(other)


def test_the_schedules_have_what_they_are_to_show():
    """Each staleness is reached by some token, some responses have several versions, and some
    prompts are dropped."""
    reached, num_versions, dropped = {}, 0, 0
    for schedule in SCHEDULES[:25]:
        played = play(schedule)
        for step, _, _, columns in rows_of(played):
            versions = columns.get("versions")
            if versions is None:
                continue
            lag = step - 1 - int(versions.min())
            reached[schedule.staleness] = max(reached.get(schedule.staleness, 0), lag)
            num_versions = max(num_versions, len(set(versions.tolist())))
        dropped += any(len(prompt) > MAX_PROMPT_TOKENS for prompt in schedule.prompts)
        if schedule.staleness:
            assert played.lags[0] == 0
            assert max(played.lags) <= schedule.staleness
    assert reached == {n: n for n in (1, 2, 3, 4)}
    assert num_versions > 2 and dropped > 2


@pytest.mark.parametrize(
    "schedule", mostly_slow(SCHEDULES[1:15], every=3), ids=lambda s: f"{s.seed}"
)
def test_a_run_that_resumes_trains_on_what_it_would_have(schedule):
    undisturbed = play(schedule)
    for step in (1, 2):
        resumed = play(schedule, restart=step)
        assert same(undisturbed, resumed) and undisturbed.lags == resumed.lags
        every_token_is_trained_on_once(schedule, resumed)
