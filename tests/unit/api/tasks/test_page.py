"""The page about several tasks, and the example: what they show runs."""

import re
import runpy
from pathlib import Path

from verl_hpc.api.tasks.settings import TYPES, TasksConfig

ROOT = Path(__file__).parents[4]


def test_the_block_of_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs/multi_task.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(compile(block, "block", "exec"), {"__name__": "page"})
    said = capsys.readouterr().out
    assert "share the weights of one module" in said
    assert re.search(r"^6 \{'solve': .*runs/multi_task$", said, re.MULTILINE)
    assert (tmp_path / "runs/multi_task/checkpoints/step_00000006/manifest.json").is_file()


def test_the_page_names_every_type():
    text = (ROOT / "docs/multi_task.md").read_text(encoding="utf-8")
    assert all(f"| `{name}` |" in text for name in TYPES)
    assert "checkpoint_every" in TasksConfig.model_fields


def test_the_example_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    main = runpy.run_path(str(ROOT / "examples/multi_task.py"))["main"]
    found = main(steps=5)
    assert len(found) == 5
    assert re.search(r"step +5 +vowels .*letters .*pick ", capsys.readouterr().out)
    assert (tmp_path / "runs/multi_task_example/metrics.jsonl").is_file()
