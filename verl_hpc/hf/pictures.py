"""Images as rows give them: a path, or the bytes of a file.

They travel between ranks in this form, and are decoded by the rank that needs the pixels.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from verl_hpc.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

COLUMN = "images"
"""Column of a row's images."""
MOST_PIXELS = 64 * 2**20
"""Pixels of the largest image; decoded it takes three bytes for each."""
_DECODED = 16
"""Decoded images that a process keeps: the samples of a prompt share them."""


@dataclass(frozen=True)
class Picture:
    """An image as a row gives it."""

    path: str = ""
    """File; empty where there is `content`."""
    content: bytes = b""
    """Bytes of a file in any format that Pillow reads."""

    @property
    def name(self) -> str:
        """Name in errors."""
        return self.path or f"image of {len(self.content):,} bytes"


@dataclass(frozen=True)
class ImagePrompt:
    """What of a prompt is no tokens."""

    pictures: tuple[Picture, ...]
    num_tokens: int
    """Tokens of the prompt that are of images."""
    unexpanded: Sequence[int]
    """Token ids of the prompt with a placeholder for each image, for engines that count an image's
    tokens themselves."""


def check_there(pictures: Sequence[Picture], where: str) -> None:
    """Raises: DataError: the file of an image is not there."""
    for picture in pictures:
        if picture.path and not Path(picture.path).is_file():
            raise DataError(
                f"{where}: {COLUMN}: no file {picture.path}; paths are relative to the data's file"
            )


def decode(pictures: Sequence[Picture], where: str) -> list[Image]:
    """Return images in RGB, upright.

    Raises:
        DataError: one is not there, is none that Pillow reads, or has too many pixels or bits.
    """
    check_there(pictures, where)
    try:
        return [_decode(picture) for picture in pictures]
    except DataError as error:
        raise DataError(f"{where}: {COLUMN}: {error}") from None


@lru_cache(maxsize=_DECODED)
def _decode(picture: Picture) -> Image:
    from PIL import Image, ImageOps

    try:
        with Image.open(picture.path or BytesIO(picture.content)) as image:
            if image.width * image.height > MOST_PIXELS:
                raise DataError(
                    f"{picture.name} has {image.width} x {image.height} pixels; at most "
                    f"{MOST_PIXELS:,} are read; make it smaller"
                )
            if image.mode in ("F", "I") or image.mode.startswith("I;16"):  # convert would clip
                raise DataError(
                    f"{picture.name} has mode {image.mode}; images with 8 bits a channel are read "
                    "(grey, palette, RGB, RGBA, CMYK and others): scale its values to 0 to 255, "
                    "and save it as 8-bit grey or RGB"
                )
            upright = ImageOps.exif_transpose(image)
            return upright.convert("RGB")
    except DataError:
        raise
    except Exception as error:  # every format has errors of its own
        raise DataError(
            f"{picture.name} cannot be read ({type(error).__name__}: {error}); make it again, or "
            "remove the row"
        ) from None


def packed(images: ImagePrompt | None) -> bytes:
    """Return a prompt's images, and the number of their tokens, as bytes to send between ranks."""
    if images is None:
        return b""
    given = [
        {"path": p.path} if p.path else {"base64": base64.b64encode(p.content).decode()}
        for p in images.pictures
    ]
    return json.dumps({"num_tokens": images.num_tokens, "pictures": given}).encode()


def unpacked(content: bytes) -> tuple[tuple[Picture, ...], int]:
    """Invert `packed`."""
    if not content:
        return (), 0
    given = json.loads(content)
    pictures = (
        Picture(value.get("path", ""), base64.b64decode(value.get("base64", "")))
        for value in given["pictures"]
    )
    return tuple(pictures), int(given["num_tokens"])
