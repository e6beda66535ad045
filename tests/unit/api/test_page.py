"""The page about these names, and the example: what they show runs."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_blocks_of_the_page_run_one_after_the_other(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs/python_api.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict = {"__name__": "page"}
    for number, block in enumerate(blocks):
        exec(compile(block, f"block {number}", "exec"), names)
    said = capsys.readouterr().out
    assert "checkpoints/search-rl/step_00000001" in said
    assert "{'epoch': 0, 'offset': 8}" in said and "\n18\n" in said
    assert len(blocks) == 6
