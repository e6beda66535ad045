"""Pairs of a right and a wrong answer of a model, and how a model answers and compares them.

A model is that of a checkpoint of the quickstart, read by transformers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

SOURCES = {"rl": 4000, "evaluation": None}
"""Files of problems, and how many of each are asked for pairs; None asks all."""
SAMPLES, TEMPERATURE = 4, 0.6
"""Answers to each of them; the temperature is that of the quickstart's rollouts."""
LONGEST = 8
"""Tokens of an answer, as rollout.max_response_tokens of the quickstart."""
BATCH = 512
"""Prompts that are answered at a time."""
Row = Mapping[str, str]


class Reader:
    """A language model with its tokenizer, on this machine's CPU."""

    def __init__(self, directory: Path) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils import logging

        logging.disable_progress_bar()
        self.tokenizer: Any = AutoTokenizer.from_pretrained(directory)
        self.decoder: Any = AutoModelForCausalLM.from_pretrained(directory)

    def answers(
        self, prompts: Sequence[str], num_samples: int = 1, seed: int | None = None
    ) -> list[list[str]]:
        """Answers to each prompt, in order: one that is greedy, or samples with a seed."""
        import torch

        sampling = {"do_sample": True, "temperature": TEMPERATURE, "top_k": 0}
        options = {"do_sample": False} if seed is None else sampling
        torch.manual_seed(seed or 0)
        found: dict[int, list[str]] = {}
        for chosen, ids in self._batches(prompts):
            written = self.decoder.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=LONGEST,
                num_return_sequences=num_samples,
                **options,
            )[:, ids.shape[1] :]
            texts = self.tokenizer.batch_decode(written, skip_special_tokens=True)
            for k, i in enumerate(chosen):
                found[i] = texts[k * num_samples : (k + 1) * num_samples]
        return [found[i] for i in range(len(prompts))]

    def log_prob(self, prompt: str, answer: str) -> float:
        """Of an answer and its end, summed over tokens."""
        import torch

        before, after = (self.tokenizer(text)["input_ids"] for text in (prompt, answer))
        ids = torch.tensor([[*before, *after, self.tokenizer.eos_token_id]])
        with torch.no_grad():
            log_probs = self.decoder(ids).logits.log_softmax(-1)[0, len(before) - 1 : -1]
        return float(log_probs.gather(-1, ids[0, len(before) :, None]).sum())

    def _batches(self, prompts: Sequence[str]) -> Iterator[tuple[list[int], torch.Tensor]]:
        """Positions and token ids of prompts of one length, so that nothing is padded."""
        import torch

        encoded = [self.tokenizer(prompt)["input_ids"] for prompt in prompts]
        for length in sorted({len(ids) for ids in encoded}):
            alike = [i for i, ids in enumerate(encoded) if len(ids) == length]
            for first in range(0, len(alike), BATCH):
                chosen = alike[first : first + BATCH]
                yield chosen, torch.tensor([encoded[i] for i in chosen])


@contextmanager
def model_of(step: Path) -> Iterator[Reader]:
    """The model of a checkpoint's step directory."""
    from verl_hpc.checkpoint.convert import export_step

    with TemporaryDirectory() as directory:
        exported = Path(directory) / "model"
        export_step(step, exported)
        yield Reader(exported)


def write_pairs(step: Path, data: Path, out: Path, seed: int) -> None:
    """Write rl.jsonl and evaluation.jsonl, with rows {"prompt", "chosen", "rejected"}.

    Args:
        step: directory of a checkpoint, whose model gives the answers.
        data: directory with problems in files of the same names.
        seed: of the answers.
    """
    out.mkdir(parents=True, exist_ok=True)
    with model_of(step) as model:
        for name, most in SOURCES.items():
            rows = read_rows(data / f"{name}.jsonl", most)
            given = model.answers([row["prompt"] for row in rows], SAMPLES, seed)
            lines = (json.dumps(pair) + "\n" for pair in pairs(rows, given))
            (out / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")


def measured(step: Path, problems: Sequence[Row], compared: Sequence[Row]) -> tuple[float, float]:
    """How well a checkpoint's model does.

    Returns:
        The share of problems to which its greedy answer is right, and the share of pairs of which
        it finds the chosen answer likelier than the rejected one.
    """
    with model_of(step) as model:
        given = model.answers([row["prompt"] for row in problems])
        right = [is_right(row, text) for row, (text,) in zip(problems, given, strict=True)]
        preferred = [
            model.log_prob(pair["prompt"], pair["chosen"])
            > model.log_prob(pair["prompt"], pair["rejected"])
            for pair in compared
        ]
    return sum(right) / len(right), sum(preferred) / len(preferred)


def read_rows(file: Path, most: int | None = None) -> list[Row]:
    """The first so many rows of a file of JSON lines; None reads all."""
    with file.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in islice(lines, most)]


def pairs(rows: Iterable[Row], given: Iterable[Sequence[str]]) -> list[dict[str, str]]:
    """One pair for each row that has right and wrong answers among those that were given."""
    found = []
    for row, texts in zip(rows, given, strict=True):
        wrong = [text for text in texts if not is_right(row, text)]
        told = [text for text in wrong if text.strip()]
        if told and len(wrong) < len(texts):
            found.append({"prompt": row["prompt"], "chosen": row["answer"], "rejected": told[0]})
    return found


def is_right(row: Row, text: str) -> bool:
    """As the reward function exact_match has it."""
    return text.strip() == row["answer"]
