"""docs/extending.md: its files run as they stand there, and what it names is there."""

import re
from pathlib import Path

import pytest
import torch
from typing_extensions import get_protocol_members

from tests.generated import generated
from tests.unit.trainer.runs import loop
from verl_hpc.config.load import parse_config
from verl_hpc.config.plain_yaml import read_yaml
from verl_hpc.config.rollout import RolloutConfig
from verl_hpc.engines.module import ModuleEngine
from verl_hpc.engines.protocol import TrainingEngine
from verl_hpc.layout.architecture import read_architecture
from verl_hpc.rollout.protocol import RolloutEngine, Sampling
from verl_hpc.runtime.world import World
from verl_hpc.testing.local import tiny_architecture
from verl_hpc.testing.local_run import local_run
from verl_hpc.testing.tiny import make_tiny_model

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/extending.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def test_the_files_of_the_page_train(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for text in blocks("python"):
        (name,) = re.findall(r'^"""(\w+\.py): ', text)
        Path(name).write_text(text, encoding="utf-8")
    words = re.findall(r"for word in (.*?);", PAGE)[0].split()
    rows = [f'{{"prompt": "{word}", "answer": "{word}"}}\n' for word in words]
    Path("rows.jsonl").write_text("".join(rows), encoding="utf-8")
    (text,) = blocks("yaml")
    off = {"metrics": {"terminal": "off", "report": False}}
    result, lines = loop(local_run(parse_config(read_yaml(text) | off)))
    assert (result.outcome, len(lines)) == ("finished", 3)
    assert all(line["actor/grad_norm"] > 0 for line in lines)
    assert all(line["actor/ratio"] == pytest.approx(1) for line in lines)
    assert all(0 < line["mine/score_spread"] <= 1 for line in lines)
    assert max(line["reward/turns"] for line in lines) > 1


@pytest.mark.parametrize(
    ("heading", "protocol"),
    [("A training engine", TrainingEngine), ("A rollout engine", RolloutEngine)],
)
def test_the_page_has_the_members_of_a_protocol_and_no_others(heading, protocol):
    rows = re.findall(r"^\| [^|]+ \| (`.*`) \|$", section(heading), re.MULTILINE)
    members = get_protocol_members(protocol)
    assert sorted(re.findall(r"`(\w+)`", "".join(rows))) == sorted(members)


def section(heading):
    return PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]


@pytest.mark.parametrize(
    ("heading", "names"), [("A training engine", "megatron|fsdp"), ("A rollout engine", "vllm|hf")]
)
def test_the_page_has_every_file_that_asks_for_an_engine_by_name(heading, names):
    asks = re.compile(rf'\b(?:engine|trainer) [!=]= "(?:{names})"')
    files = [f for f in (ROOT / "verl_hpc").rglob("*.py") if asks.search(f.read_text("utf-8"))]
    found = {str(file.relative_to(ROOT)) for file in files}
    assert len(found) > 5
    of_tables = {"verl_hpc/layout/layer_table.py"}  # of parameters' names
    assert sorted(f for f in found - of_tables if f"`{f}`" not in section(heading)) == []


def test_the_rollout_engine_of_the_page_takes_the_likeliest_token(tmp_path):
    (text,) = [text for text in blocks("python") if "(HfEngine)" in text]
    names = {}
    exec(compile(text, "likeliest.py", "exec"), names)
    model = make_tiny_model(tmp_path, num_hidden_layers=1)
    config = RolloutConfig(engine="hf", max_prompt_tokens=4, max_response_tokens=8)
    arguments = read_architecture(model), str(model), str(model), ((0,),), config, "float32"
    engine = names["Likeliest"](World(0, 1, 0, 1, 0, (0,), "host", "cpu"), *arguments)
    one, other = (generated(engine, [[5, 6]], Sampling(8), [seed])[0] for seed in (1, 2))
    assert one == other
    (outputs,) = trained_from(engine).infer([torch.tensor([5, 6, *one.tokens])])
    torch.testing.assert_close(torch.tensor(one.log_probs), outputs.log_probs[1:])


def trained_from(engine):
    """A training engine of the same weights."""
    return ModuleEngine(
        engine._model, tiny_architecture(), "language_model", None, torch.device("cpu")
    )


NAMES = {
    "verl_hpc/layout/families.py": "FAMILIES",
    "verl_hpc/layout/not_mapped.py": "NOT_MAPPED",
    "tests/unit/layout/test_architecture.py": "REFUSED test_tensors_are_those_of_transformers",
    "tests/unit/layout/models.py": "PUBLISHED",
    "tests/mpi/mixtures.py": "MODELS",
    "verl_hpc/config/model.py": "Engine",
    "verl_hpc/config/rollout.py": "Engine",
    "verl_hpc/engines/factory.py": "build_engine engine_shard_map describe_kernels",
    "verl_hpc/layout/rollout.py": "whole_shard_map rollout_shard_map",
    "verl_hpc/rollout/factory.py": "import_engine build_rollout",
}


def test_files_and_names_of_the_page_are_there():
    named = re.findall(r"`((?:verl_hpc|tests)/[\w/.]+)`", PAGE)
    assert len(named) > 20
    assert [name for name in named if not (ROOT / name).exists()] == []
    for file, names in NAMES.items():
        text = (ROOT / file).read_text(encoding="utf-8")
        for name in names.split():
            assert f"`{name}`" in PAGE
            assert re.search(rf"^(?:def )?{name}\b", text, re.MULTILINE), (name, file)
