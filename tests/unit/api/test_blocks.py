"""The 33 code blocks of five tutorials of verl, as the tutorials write them: blocks/ has a file for
each, which asserts what its tutorial shows.

The first word of a file says how it fares: it works, it works when something is changed, or it is
refused by an error that says what serves. Names of models, sizes and devices are those of tests.
"""

import json
import os
import re
import runpy
import sys
from collections import Counter
from pathlib import Path

import fsspec
import pyarrow as pa
import pytest
import torch.distributed as dist
from pyarrow import parquet
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

from tests.unit.api.conftest import SIZES
from verl_hpc.errors import VerlHpcError
from verl_hpc.testing.tiny import make_tiny_model

BLOCKS = sorted(Path(__file__).with_name("blocks").glob("*.py"))
TEXTS = {block.stem: block.read_text() for block in BLOCKS}
FATES = {name: re.match(r'"""(works|changed|refused)(, slow)?: ', t) for name, t in TEXTS.items()}
TASKS = ("preference_alignment", "code_generation", "fact_checking")


@pytest.fixture(scope="module")
def place(model_dir, tmp_path_factory):
    """The directory that blocks run in, with their models and data."""
    path = tmp_path_factory.mktemp("blocks")
    (path / "tiny").symlink_to(model_dir)
    heads = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2}
    make_tiny_model(path / "wide", "qwen2", **SIZES | heads)
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    tokenizer.save_pretrained(path / "gpt2")
    ends = {"bos_token_id": tokenizer.eos_token_id, "eos_token_id": tokenizer.eos_token_id}
    sizes = {"n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 512}
    config = GPT2Config(vocab_size=len(tokenizer), **sizes, **ends)
    GPT2LMHeadModel(config).save_pretrained(path / "gpt2")
    rows = [{"prompt": f"{n} + 1 =", "answer": f"The answer is {n + 1}."} for n in range(64)]
    for name in ("data", "rlhf-dataset"):
        (path / name).mkdir()
    for part in (0, 1):
        file = path / f"rlhf-dataset/part-{part}.parquet"
        parquet.write_table(pa.Table.from_pylist(rows[32 * part : 32 * part + 32]), file)
        with fsspec.open(f"memory://your-bucket/rlhf-dataset/{file.name}", "wb") as copy:
            copy.write(file.read_bytes())
    (path / "data/gsm8k_train.jsonl").write_text("\n".join(map(json.dumps, rows[:8])))
    tasks = [row | {"task": TASKS[i % 3]} for i, row in enumerate(rows[:30])]
    (path / "data/multi_task.jsonl").write_text("\n".join(map(json.dumps, tasks)))
    return path


@pytest.fixture
def there(place, monkeypatch):
    """Stand in that directory, and leave this process as it was."""
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "breakpointhook", sys.breakpointhook)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(os.path.abspath, filter(None, sys.path))))
    before = dict(os.environ)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()
    os.environ.clear()
    os.environ.update(before)


def marked(name):
    return pytest.param(name, marks=[pytest.mark.slow] if FATES[name][2] else [])


@pytest.mark.parametrize("name", [marked(name) for name in TEXTS])
def test_a_block_of_a_tutorial(name, there):
    file = str(Path(__file__).with_name("blocks") / f"{name}.py")
    if FATES[name][1] != "refused":
        runpy.run_path(file, run_name="block")
        return
    (words,) = re.findall(r"^# says: (.*)$", TEXTS[name], re.M)
    with pytest.raises((VerlHpcError, ImportError), match=f"(?s){words}"):
        runpy.run_path(file, run_name="block")


def test_the_page_counts_them():
    page = Path(__file__).parents[3].joinpath("docs/python_api.md").read_text()
    count = Counter(fate[1] for fate in FATES.values())
    counts = f"{count['works']} work, {count['changed']} work when changed, {count['refused']} are"
    assert len(BLOCKS) == 33 and count["refused"] <= 6 and counts in page
