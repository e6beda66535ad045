"""The file of docs/recipes.md runs as it stands there."""

import re
from pathlib import Path

import pytest
import yaml

from tests.unit.trainer.runs import loop, small_run

PAGE = Path(__file__).parents[4] / "docs/recipes.md"


def block(language):
    (text,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    return text


def test_the_recipe_of_the_page_trains(tmp_path, monkeypatch):
    (tmp_path / "judged.py").write_text(block("python"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    run = small_run(tmp_path, steps=2, **yaml.safe_load(block("yaml")))
    assert [*run.roles] == ["actor", "judge"]
    result, lines = loop(run)
    assert result.outcome == "finished"
    for line in lines:
        # A quarter of the judge's score, three of the function's.
        mixed = 0.75 * line["critic/score/mean"] + 0.25 * line["judge/critic/score/mean"]
        assert line["mixed/mean"] == pytest.approx(mixed)
        assert line["critic/rewards/mean"] == pytest.approx(mixed)
        assert line["actor/grad_norm"] > 0


def test_the_page_names_every_recipe_and_example():
    from verl_hpc.config.run import RECIPES

    text = PAGE.read_text()
    assert all(f"| `{name}` |" in text for name in RECIPES)
    for file in (PAGE.parents[1] / "examples").glob("*.py"):
        assert f"`{file.name}`" in text, file
