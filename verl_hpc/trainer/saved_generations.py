"""Save all answers of an evaluation, each written by a rank that has it."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from verl_hpc.generation.answers import stop_reason
from verl_hpc.metrics.generations import Generation, Part, forget_parts, join_parts, write_part
from verl_hpc.step.batch import TOKENS, Columns, Samples
from verl_hpc.step.problems import StepProblems
from verl_hpc.step.scores import Scores
from verl_hpc.trainer.context import RunContext

_logger = logging.getLogger(__name__)


class SavedGenerations:
    """Writes the answers of one evaluation. All generating ranks call every method.

    If a file cannot be written (full disk, quota) a warning is logged, and the run continues.
    """

    def __init__(self, run: RunContext, step: int) -> None:
        assert run.rollout is not None
        self._run, self._step, self._place = run, step, run.rollout.place
        self._directory = run.config.run_directory
        self._parts: list[Part] = []
        self._num_sets = 0
        self._failure = ""

    def add(
        self,
        name: str,
        problems: StepProblems,
        samples: Samples,
        sequences: Columns,
        scores: Scores,
    ) -> None:
        """Write this group's answers to a set.

        Args:
            name: the set's name.
            problems: its rows; a sample's group is the index of its row.
        """
        place, number = self._place, self._num_sets
        self._num_sets += 1
        self._parts += [(number, group) for group in range(len(place.groups))]
        if not place.leads_group or self._failure:
            return
        generations = self._generations(name, problems, samples, sequences, scores)
        try:
            write_part(self._directory, self._step, (number, place.index), generations)
        except OSError as error:
            self._failure = f"rank {place.rank}: {error}"

    def finish(self) -> None:
        """Join the parts to the final file once every rank has written its own."""
        failures = [failure for failure in self._place.allgather(self._failure) if failure]
        if not self._place.leads:
            return
        try:
            if not failures:
                join_parts(self._directory, self._step, self._parts)
                return
            forget_parts(self._directory)
        except OSError as error:
            failures.append(str(error))
        _logger.warning(
            "the answers of the evaluation of step %s are not saved: %s", self._step, failures[0]
        )

    def _generations(
        self,
        name: str,
        problems: StepProblems,
        samples: Samples,
        sequences: Columns,
        scores: Scores,
    ) -> Iterator[Generation]:
        decode, numbers = self._run.tokenizer.decode, numbers_of(samples)
        stop = self._run.config.rollout.stop
        rows = sorted({samples.samples[position].group for position in sequences.positions})
        truths = {row: p.ground_truth for row, p in zip(rows, problems.read(rows), strict=True)}
        for position, tokens in zip(sequences.positions, sequences[TOKENS], strict=True):
            sample = samples.samples[position]
            answer = tokens[sample.prompt_length :].tolist()
            yield Generation(
                step=self._step,
                set=name,
                row=sample.group,
                sample=numbers[position],
                prompt=str(decode(tokens[: sample.prompt_length].tolist())),
                ground_truth=str(truths[sample.group]),
                response=str(decode(answer)),
                num_tokens=sample.response_length,
                truncated=sample.truncated,
                score=scores.values[position],
                extra=scores.details[position],
                stop_reason=stop_reason(self._run.tokenizer, answer, sample.truncated, stop),
            )


def numbers_of(samples: Samples) -> list[int]:
    """Return each sample's index among the answers to its prompt, by position."""
    numbers: list[int] = []
    seen: dict[int, int] = {}
    for sample in samples:
        numbers.append(seen.get(sample.group, 0))
        seen[sample.group] = numbers[-1] + 1
    return numbers
