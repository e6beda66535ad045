"""A picture of curves."""

import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest

from benchmarks.picture import COLOURS, LINE, picture_of, spread

SVG = "{http://www.w3.org/2000/svg}"


def test_every_curve_has_a_line_and_a_label_of_its_own():
    curves = {f"one < {i}": [(0, 0.3), (6, 0.3 + 0.001 * i)] for i in range(len(COLOURS))}
    root = ET.fromstring(picture_of("a title", curves, "steps", "accuracy"))
    assert root.get("aria-label") == "a title"
    labels = {e.text: float(e.get("y")) for e in root.iter(f"{SVG}text") if "one" in e.text}
    assert [*labels] == [f"{0.3 + 0.001 * i:.2f}  one < {i}" for i in range(len(COLOURS))]
    heights = sorted(labels.values())
    assert min(b - a for a, b in pairwise(heights)) > LINE - 0.11
    looks = {(p.get("stroke"), p.get("stroke-dasharray")) for p in root.iter(f"{SVG}path")}
    assert len(looks - {(None, None)}) == 2 * len(COLOURS)  # each curve, and the line to its label


@pytest.mark.parametrize(
    ("heights", "placed"),
    [
        ([], []),
        ([5.0], [5.0]),
        ([50.0, 10.0], [50.0, 10.0]),
        ([10.0, 10.0, 10.0], [0.0, 10.0, 20.0]),
        ([100.0, 12.0, 10.0], [100.0, 16.0, 6.0]),
        ([10.0, 18.0, 26.0], [8.0, 18.0, 28.0]),
    ],
)
def test_labels_are_moved_apart_in_order_and_no_further(heights, placed):
    assert spread(heights, 10.0) == pytest.approx(placed)
