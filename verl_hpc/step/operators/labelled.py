"""Train a policy on answers labelled good or bad, without pairs (KTO)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from verl_hpc.algorithms.kto import reference_point
from verl_hpc.engines.protocol import OutputOptions, Sums
from verl_hpc.step.batch import IMAGES, MASK, REF_LOG_PROBS, TOKENS, Columns, Samples, StepRows
from verl_hpc.step.operator import Metrics, operator
from verl_hpc.step.operators.examples import Example, ExampleSettings, assign_examples, encode_step
from verl_hpc.step.operators.infer import response_parts
from verl_hpc.step.operators.optimise import MiniBatch, OptimiseSettings, optimise
from verl_hpc.step.operators.pairs import LOSS, read_answers
from verl_hpc.step.placement import Placement
from verl_hpc.step.role import Role


@operator("samples", "sequences", "labels", "encoded", shared=("samples", "labels", "encoded"))
def labelled_examples(
    place: Placement, settings: ExampleSettings, rows: StepRows
) -> tuple[tuple[Samples, Columns, list[bool], list[Example]], Metrics]:
    """Encode a step's rows as `examples` does; also return each answer's label, and all examples as
    token ids.

    Raises:
        DataError: on every rank: a row without an answer or a label, an overlong prompt, or no row
            left.
    """
    encoded, samples, columns, metrics = encode_step(place, settings, rows)
    labels = [bool(example.label) for example in encoded]
    return (samples, columns, labels, encoded), metrics


@operator("mismatched_samples", "mismatched", shared=("mismatched_samples",))
def mismatched_answers(
    place: Placement,
    settings: ExampleSettings,
    rows: StepRows,
    samples: Samples,
    encoded: list[Example],
) -> tuple[tuple[Samples, Columns], Metrics]:
    """Combine each sample's prompt with an answer to another prompt of its mini-batch (of the first
    epoch): the answer of the next sample, cyclically, with another prompt. If all prompts are
    equal, take the next sample, and count it.

    The result does not depend on which rank has which sample.
    """
    swapped, num_same = list(encoded), 0
    for batch in samples.mini_batches:
        of_batch = [encoded[i].prompt for i in batch]
        for i, other in zip(batch, others(of_batch), strict=True):
            answer = encoded[batch[other]]
            mine = encoded[i]
            swapped[i] = replace(answer, prompt=mine.prompt, images=mine.images, label=None)
            num_same += mine.prompt == answer.prompt
    return assign_examples(place, settings, rows, swapped), {"kto/num_same_prompt": float(num_same)}


def others(prompts: Sequence[Sequence[int]]) -> list[int]:
    """Return for each prompt the next one, cyclically, that differs; the next one if all are
    equal."""
    count = len(prompts)
    following = [(i + 1) % count for i in range(count)]
    if all(prompt == prompts[0] for prompt in prompts):
        return following
    # A prompt equal to its successor takes the successor's; wrapping around needs a second pass.
    for i in [*reversed(range(count)), *reversed(range(count))]:
        after = (i + 1) % count
        following[i] = following[after] if prompts[i] == prompts[after] else after
    return following


@operator(changes_state=True)
def update_on_labels(
    place: Placement,
    actor: Role,
    settings: OptimiseSettings,
    samples: Samples,
    sequences: Columns,
    labels: list[bool],
    reference: Columns,
    mismatched_samples: Samples,
    mismatched: Columns,
    mismatched_reference: Columns,
) -> tuple[tuple[()], Metrics]:
    """Take optimizer steps on KTO's loss. Its reference point is computed before each step, from
    the mean log-ratio of all mismatched answers of the mini-batch over all ranks.

    Metrics: kto/kl (the reference point), kto/desirable (share of answers), kto/num_one_kind
    (optimizer steps with only good or only bad answers, which move the likelihood of all answers
    one way); rewards and log-probs as in recipe dpo, for the kinds that occurred.

    Raises:
        TrainingError: a loss or gradient is not finite.
    """
    kto, points = settings.config.algorithm.kto, list[torch.Tensor]()

    # KTO's reference point, from the policy as it is before the step.
    def prepare(batch: MiniBatch) -> None:
        members = batch.members
        total = _log_ratio(actor, mismatched_samples, mismatched, mismatched_reference, members)
        points.append(reference_point(place.reduce(total.to(place.device)) / len(members)))

    def loss(batch: MiniBatch) -> tuple[torch.Tensor, Sums]:
        answers = read_answers(batch, reference)
        desirable = torch.tensor(
            [labels[sequences.positions[row]] for row in batch.rows],
            dtype=torch.bool,
            device=place.device,
        )
        # Shares of all answers of the mini-batch; `_of_kinds` converts them to means of a kind.
        count = len(batch.members)
        losses = kto(answers.log_ratios, desirable, points[-1])
        rewards, log_probs = kto.rewards(answers).detach(), answers.log_probs.detach()
        metrics = {}
        for kind, chosen in (("chosen", desirable), ("rejected", ~desirable)):
            metrics[f"count/{kind}"] = chosen.sum().double() / count
            metrics[f"rewards/{kind}"] = rewards[chosen].sum().double() / count
            metrics[f"logps/{kind}"] = log_probs[chosen].sum().double() / count
        return losses.sum() / count, metrics

    of_all = optimise(
        place, actor, settings, samples, sequences, loss, prepare=prepare, loss_name=LOSS
    )
    metrics = _of_kinds(of_all)
    metrics["kto/kl"] = float(torch.stack(points).mean())
    batches = samples.all_epochs(settings.update_epochs)
    num_one_kind = sum(len({labels[i] for i in batch}) == 1 for batch in batches)
    metrics["kto/num_one_kind"] = float(num_one_kind)
    return (), metrics


def _log_ratio(
    actor: Role, samples: Samples, sequences: Columns, reference: Columns, members: Sequence[int]
) -> torch.Tensor:
    """Sum the log-ratios, float64, of this rank's answers at the positions `members`, under the
    current policy."""
    chosen = set(members)
    rows = [row for row, position in enumerate(sequences.positions) if position in chosen]
    mine = Columns(
        [sequences.positions[row] for row in rows],
        {TOKENS: [sequences[TOKENS][row] for row in rows]},
    )
    wanted = OutputOptions(images=sequences.values.get(IMAGES)).of(rows)
    outputs = actor.engine.infer(mine[TOKENS], wanted=wanted)
    of_responses = response_parts(samples, mine.positions, outputs, "log_probs")
    total = torch.zeros((), dtype=torch.float64)
    for row, log_probs in zip(rows, of_responses, strict=True):
        ratio = log_probs.double() - reference[REF_LOG_PROBS][row].double()
        total = total + (ratio * sequences[MASK][row]).sum()
    return total


def _of_kinds(metrics: Metrics) -> dict[str, float]:
    """Convert means over all answers to means over the answers of a kind; leave out kinds that did
    not occur."""
    counts = {kind: metrics[f"count/{kind}"] for kind in ("chosen", "rejected")}
    means = {"kto/desirable": counts["chosen"]}
    for name, value in metrics.items():
        group, _, kind = name.partition("/")
        if kind not in counts:
            means[name] = value
        elif group != "count" and counts[kind]:
            means[name] = value / counts[kind]
    if all(counts.values()):
        means["rewards/margins"] = means["rewards/chosen"] - means["rewards/rejected"]
    return means
