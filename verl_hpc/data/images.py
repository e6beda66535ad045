"""Images of a row, and their places in its prompt.

A place is `<image>` in the text, as verl has it, or a part `{type: image}` of a message's content.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from verl_hpc.data.messages import IMAGE_KINDS, PLACEHOLDER, is_chat_list, kind_of
from verl_hpc.errors import DataError
from verl_hpc.hf.pictures import COLUMN, Picture

_FIELDS = ("bytes", "base64", "image", "image_url", "url", "path")
"""Fields in which a mapping may have an image, the first that is given."""
_EXPECTED = "a path, the bytes of a file, or {bytes, path}, {path}, {base64} or a data: address"


def pictures_of(row: Mapping[str, Any], chat: Any, directory: Path | None) -> tuple[Picture, ...]:
    """Return the images of a row, in the order of its prompt.

    Args:
        row: values by column.
        chat: messages of the row, whose parts may have images in place of the column.
        directory: what paths are relative to; None for a row that came from no local file.

    Raises:
        DataError: an image is given in no form that is read, or there are some in both places.
    """
    parts = list(_parts(chat)) if is_chat_list(chat) else []
    given = row.get(COLUMN)
    of_column = [] if given is None else list(given) if isinstance(given, list) else [given]
    of_parts = [(f"part {i} of the prompt", p) for i, p in enumerate(parts) if p is not None]
    if of_parts and of_column:
        raise DataError(
            f"{COLUMN} has images, and so have parts of the prompt; give them in one place"
        )
    named = [(f"{COLUMN}[{i}]", value) for i, value in enumerate(of_column)] or of_parts
    return tuple(_picture(value, name, directory) for name, value in named)


def check_places(prompt: str | Sequence[Mapping[str, Any]], pictures: int, has_parts: bool) -> None:
    """Check that a prompt has a place for each image; without images `<image>` is text.

    Raises:
        DataError: there are more places than images, or fewer.
    """
    places = _num_places(prompt)
    if places != pictures and (pictures or has_parts):
        raise DataError(
            f"the prompt has {places} places for images ({PLACEHOLDER}, or parts of type image), "
            f"and the row has {pictures} images ({COLUMN}); give it one place for each"
        )


def check_answers(*answers: str | Sequence[Mapping[str, Any]] | None) -> None:
    """Raises: DataError: an answer of a row with images has a place for one."""
    if any(_num_places(answer) for answer in answers if answer is not None):
        raise DataError(
            "an answer has an image, and images are in prompts alone; leave it out, or end the "
            "prompt behind it"
        )


def _num_places(said: str | Sequence[Mapping[str, Any]]) -> int:
    texts = [said] if isinstance(said, str) else [str(m.get("content", "")) for m in said]
    return sum(text.count(PLACEHOLDER) for text in texts)


def has_image_parts(chat: Any) -> bool:
    """Whether messages of a row have parts that stand for images."""
    return is_chat_list(chat) and any(True for _ in _parts(chat))


def _parts(chat: Sequence[Any]) -> Iterator[Any]:
    """Yield each part of messages that stands for an image, or None for one without the image."""
    for message in chat:
        content = message.get("content") if isinstance(message, Mapping) else None
        for part in content if isinstance(content, list) else ():
            if isinstance(part, Mapping) and part.get("type") in IMAGE_KINDS:
                yield part if any(part.get(name) is not None for name in _FIELDS) else None


def _picture(value: Any, name: str, directory: Path | None) -> Picture:
    if isinstance(value, Mapping):
        for field in _FIELDS:
            if (given := value.get(field)) is None:
                continue
            if field == "base64":
                return Picture(content=_decoded_base64(given, name))
            return _picture(given, f"{name}.{field}", directory)
    if isinstance(value, bytes) and value:
        return Picture(content=value)
    if not isinstance(value, str) or not value:
        raise DataError(f"{name} is {kind_of(value)}; expected {_EXPECTED}")
    if value.startswith("data:"):
        return Picture(content=_decoded_base64(value.partition("base64,")[2], name))
    if "://" in value and not value.startswith("file://"):
        raise DataError(
            f"{name} = {value!r:.60} is an address; nodes of a job have no way out: fetch the "
            "image, and give its path"
        )
    path = Path(value.removeprefix("file://"))
    if not path.is_absolute() and directory is None:
        raise DataError(
            f"{name} = {value!r:.60} is a relative path, and the row is in no local file; give a "
            "whole path"
        )
    return Picture(path=str(path if directory is None else directory / path))


def _decoded_base64(text: Any, name: str) -> bytes:
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise DataError(f"{name} is not base64 ({error})") from None
    if not content:
        raise DataError(f"{name} is empty; expected {_EXPECTED}")
    return content
