"""The commands a user types one after another: SFT until a goal, report, export, import."""

import json

import pytest

from tests.jobs.launch import trained, verl_hpc, write_config


def command(*words):
    done = verl_hpc(*words)
    return done.returncode, done.stdout, done.stderr


SIZES = {"train": 40, "evaluation": 8}


@pytest.fixture(scope="module")
def run(tmp_path_factory, model):
    """A run directory that SFT left behind."""
    directory = tmp_path_factory.mktemp("sft")
    task = {"kind": "reasoning_gym", "task": "chain_sum"}
    task["options"] = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    config = {
        "name": "sft",
        "recipe": "sft",
        "steps": 6,
        "directory": str(directory),
        "model": {"path": str(model), "dtype": "float32"},
        "parallel": {"tensor_parallel": 2},
        "optimizer": {"lr": 1e-3},
        "batch": {"size": 8},
        "rollout": {"max_prompt_tokens": 80, "max_response_tokens": 6, "kv_cache_gib": 0.02},
        "data": {n: task | {"split": n, "size": size} for n, size in SIZES.items()},
        "evaluation": {"every": 2, "stop_at": 0.0},
        "metrics": {"terminal": "lines", "tensorboard": False},
    }
    trained(2, write_config(directory / "config.yaml", config))
    return directory / "sft"


def test_a_run_ends_at_its_goal_and_leaves_a_report(run):
    """The goal is a score that every model has, so the first evaluation meets it."""
    rows = [json.loads(row) for row in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2]
    assert "val/score/mean" in rows[-1]
    assert [row["prompt_length/num_dropped"] for row in rows] == [0.0, 0.0]
    assert rows[1]["sft/loss"] < rows[0]["sft/loss"]
    assert "SFT loss" in (run / "report.html").read_text()
    facts = json.loads((run / "facts.json").read_text())["evaluation data"]
    expected = {"rows": 8, "different prompts": 8, "prompts found in training": 0}
    assert facts == expected | {"rows dropped from training": 0}
    status, told, _ = command("report", run)
    assert status == 0
    assert str(run / "report.html") in told


def test_export_loads_in_transformers_and_imports_again(run, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    step, exported = run / "checkpoints/latest", tmp_path / "exported"
    status, _, complaint = command("export", "--step", step, "--out", exported)
    assert status == 0, complaint
    model, report = AutoModelForCausalLM.from_pretrained(exported, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    tokenizer = AutoTokenizer.from_pretrained(exported)
    ids = tokenizer("1 + 1 =", return_tensors="pt")
    assert model.generate(**ids, max_new_tokens=2).shape[1] > ids["input_ids"].shape[1]

    status, _, complaint = command("import", "--hf", exported, "--out", tmp_path / "imported")
    assert status == 0, complaint
    status, _, complaint = command("export", "--step", step, "--out", exported)
    assert status == 1
    assert str(exported) in complaint and "Traceback" not in complaint
