"""The file of docs/recipes.md runs as it stands there."""

from pathlib import Path

import pytest
import yaml

from tests.unit.trainer.runs import block, loop, small_run

PAGE = Path(__file__).parents[4] / "docs/recipes.md"
TEXT = PAGE.read_text()


def test_the_recipe_of_the_page_trains(tmp_path, monkeypatch):
    (tmp_path / "judged.py").write_text(block(TEXT, "python", ""), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    run = small_run(tmp_path, steps=2, **yaml.safe_load(block(TEXT, "yaml", "judged.py")))
    assert [*run.roles] == ["actor", "judge"]
    result, lines = loop(run)
    assert result.outcome == "finished"
    for line in lines:
        # A quarter of the judge's score, three of the function's.
        mixed = 0.75 * line["critic/score/mean"] + 0.25 * line["judge/critic/score/mean"]
        assert line["mixed/mean"] == pytest.approx(mixed)
        assert line["critic/rewards/mean"] == pytest.approx(mixed)
        assert line["actor/grad_norm"] > 0


def test_the_distillation_of_the_page_trains(tmp_path):
    changes = yaml.safe_load(block(TEXT, "yaml", "recipe: distillation"))
    # Here are 12 tokens and one rank.
    changes["distillation"]["top_k"] = 12
    del changes["roles"]["teacher"]["parallel"]
    _, lines = loop(small_run(tmp_path, steps=2, **changes))
    assert all(line["actor/forward_kl"] > 0 for line in lines)


def test_the_page_names_every_recipe_and_example():
    from verl_hpc.config.sections import RECIPES

    assert all(f"| `{name}` |" in TEXT for name in RECIPES)
    pages = "".join(page.read_text() for page in PAGE.parent.glob("*.md"))
    for file in (PAGE.parents[1] / "examples").glob("*.py"):
        assert file.name in pages, file
