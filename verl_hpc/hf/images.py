"""Images as a model reads them: tokens in its prompts, and pixels beside them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from verl_hpc.errors import DataError
from verl_hpc.hf.pictures import COLUMN, Picture, decode
from verl_hpc.hf.processors import load_processor
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.not_mapped import WITH_IMAGES

_KEPT = 16
"""Prompts whose pixels a process keeps: the samples of one share them."""
_BLANK = 64
"""Pixels of a side of an image that shows nothing."""

Images = tuple[Sequence[Picture], int]
"""Images of one prompt, and how many of its tokens are theirs."""


class ImageReader:
    """A model's processor, which is loaded where the first image needs it.

    Args:
        directory: of the model.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.pixels = lru_cache(maxsize=_KEPT)(self._pixels)

    @cached_property
    def _processor(self) -> Any:
        return load_processor(self._directory)

    def expanded(self, ids: list[int], pictures: Sequence[Picture], where: str) -> list[int]:
        """Return a prompt with as many tokens for each image as the model has features of it.

        Args:
            ids: a prompt in which the model's own placeholder stands for each image.
            pictures: the images.
            where: name of the row in errors.

        Raises:
            DataError: an image cannot be read, or there are other placeholders than images.
            ModelError: the model's directory has no processor.
        """
        if not pictures:
            return ids
        tokenizer, mark = self._processor.tokenizer, self._processor.image_token
        places = ids.count(tokenizer.convert_tokens_to_ids(mark))
        if places != len(pictures):
            raise DataError(
                f"{where}: the chat template makes a prompt with {places} {mark}, and the row has "
                f"{len(pictures)} images ({COLUMN}); write <image> in its place"
            )
        text = tokenizer.decode(ids, skip_special_tokens=False)
        if tokenizer.encode(text, add_special_tokens=False) != ids:
            raise DataError(
                f"{where}: the tokenizer does not make the same tokens of {text!r:.60} again, so "
                "that images cannot be put into it; remove the row"
            )
        images = [decode(pictures, where)]
        made = self._processor(text=[text], images=images, add_special_tokens=False)
        return list(made["input_ids"][0])

    def num_tokens(self, ids: Sequence[int]) -> int:
        """Count the tokens of images in a prompt with some."""
        return sum(ids.count(token) for token in self._processor.image_token_ids)

    def _pixels(self, pictures: tuple[Picture, ...]) -> dict[str, torch.Tensor]:
        """Return what the model is given of images beside tokens: pixels, and sizes in patches."""
        return self._of_images(decode(pictures, "a prompt of this step"))

    def _of_images(self, images: Sequence[Any]) -> dict[str, torch.Tensor]:
        text = self._processor.image_token * len(images)
        made = self._processor(text=[text], images=[images], return_tensors="pt")
        return {
            name: value
            for name, value in made.items()
            if name not in ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids")
        }

    @cached_property
    def blank(self) -> tuple[torch.Tensor, int, dict[str, torch.Tensor]]:
        """Return the tokens of a prompt that is an image alone, the number of the image's own, and
        its pixels."""
        from PIL import Image

        image = Image.new("RGB", (_BLANK, _BLANK))
        made = self._processor(text=[self._processor.image_token], images=[[image]])
        ids = list(made["input_ids"][0])
        return torch.tensor(ids), self.num_tokens(ids), self._of_images([image])


def image_reader(arch: Architecture) -> ImageReader | None:
    """Return the reader of a model's images; None for a model that reads none."""
    if arch.family not in WITH_IMAGES:
        return None
    assert arch.published is not None and arch.published.directory is not None
    return ImageReader(arch.published.directory)


class ImageInputs:
    """What a model is given beside tokens, where some of its prompts have images.

    A model may write the token that stands for a part of an image, as any other: only those of a
    prompt's images are replaced by features, and have positions of three axes.

    Args:
        model: which is changed: asked where images are, it answers what is known here.
        reader: of its images.
    """

    def __init__(self, model: PreTrainedModel, reader: ImageReader) -> None:
        self._reader, self._token = reader, int(model.config.image_token_id)
        inner = model.base_model
        names = inspect.signature(inner.forward).parameters
        self._kinds = next(n for n in ("mm_token_type_ids", "token_type_ids") if n in names)
        self._are_images: torch.Tensor | None = None
        where_placed = inner.get_placeholder_mask

        def placed(input_ids: torch.Tensor | None, *args: Any, **others: Any) -> Any:
            if input_ids is not None and self._are_images is not None:
                other = 0 if self._token else 1
                stray = (input_ids == self._token) & ~self._are_images
                input_ids = input_ids.masked_fill(stray, other)
            return where_placed(input_ids, *args, **others)

        inner.get_placeholder_mask = placed

    def with_blank(
        self, rows: Sequence[torch.Tensor], images: Sequence[Images]
    ) -> tuple[list[torch.Tensor], list[Images]]:
        """Add a prompt with an image where none has one: ranks that gather a tower's parameters
        from each other all compute it."""
        if any(pictures for pictures, _ in images):
            return list(rows), list(images)
        ids, count, _ = self._reader.blank
        return [*rows, ids.to(rows[0].device)], [*images, ((), count)]

    @contextmanager
    def given(
        self, tokens: torch.Tensor, images: Sequence[Images]
    ) -> Iterator[dict[str, torch.Tensor]]:
        """Return what the model is given beside (B, T) tokens, inside this context.

        Args:
            tokens: padded rows.
            images: of each row; one without images, but with a number of tokens, has a blank one.
        """
        counts = torch.tensor([count for _, count in images], device=tokens.device)
        hits = tokens == self._token
        self._are_images = hits & (hits.cumsum(1) <= counts[:, None])
        parts = [
            self._reader.pixels(tuple(pictures)) if pictures else self._reader.blank[2]
            for pictures, count in images
            if count
        ]
        kinds = self._are_images.long()
        if self._kinds == "token_type_ids" and tokens.device.type == "cpu":
            kinds = torch.zeros_like(kinds)  # vLLM is causal among an image's tokens on CPUs
        beside = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        try:
            yield {n: t.to(tokens.device) for n, t in beside.items()} | {self._kinds: kinds}
        finally:
            self._are_images = None
