"""`config` lists and explains settings, and resolves a file."""

import yaml

from tests.unit.cluster.requests import ROOT


def test_all_settings_are_listed_with_their_defaults_and_variants(prints):
    settings = prints("config").splitlines()
    schedule = ["optimizer.schedule", "constant", "constant", "|", "linear", "|", "cosine"]
    assert schedule in [line.split() for line in settings]
    lines = [line for line in settings if line.startswith("algorithm.loss.clip_low ")]
    assert len(lines) == 5
    expected = ["cispo", "clip_cov", "gmpo", "gspo", "ppo_clip"]
    assert [line.rpartition("   if algorithm.loss.name is ")[2] for line in lines] == expected


def test_one_setting_is_explained_with_its_meaning(prints):
    text = prints("config", "--explain", "optimizer.min_lr")
    assert text.startswith("optimizer.min_lr = 0.0   (number >= 0")
    assert "Learning rate at the end of the schedule." in text
    assert "optimizer.lr" not in text


def test_a_section_is_explained_in_full_and_a_part_of_a_name_is_found(prints):
    assert "rollout.verify.probe =" in prints("config", "--explain", "rollout.verify")
    assert "site.restarts.most = 8" in prints("config", "--explain", "restarts")
    text = prints("config", "--explain", "roles")
    assert "roles.NAME.head = null   (language_model | value | score or null" in text
    assert "roles.NAME.optimizer.lr = 1e-06" in text


def test_a_word_that_means_nothing_is_answered_with_what_is_near(refuses):
    assert "did you mean optimizer.lr" in refuses("config", "--explain", "optimzer.lr")
    assert "no such setting" in refuses("config", "--explain", "qqq")
    said = refuses("config", "--explain", "hint")
    assert len(said) < 300
    assert "`python -m verl_hpc config`" in said
    assert "the nearest: checkpoint.keep, " in said


def test_a_file_is_resolved_with_overrides_which_do_not_go_alone(prints, refuses):
    text = prints("config", "--config", str(ROOT / "configs/run/grpo_8b.yaml"), "optimizer.lr=3e-6")
    assert yaml.safe_load(text)["optimizer"]["lr"] == 3e-6
    assert refuses("config", "optimizer.lr=1").startswith("ConfigError: ")


def test_a_setting_of_a_file_has_its_value_and_who_gave_it(prints):
    file = str(ROOT / "configs/run/grpo_8b.yaml")
    text = prints("config", "--config", file, "--explain", "parallel")
    assert f"parallel.tensor_parallel = 2   [{file}]" in text
    assert "parallel.pipeline_parallel = 1   [default]" in text
    text = prints("config", "--config", file, "--explain", "optimizer.lr", "optimizer.lr=2")
    assert "optimizer.lr = 2.0   [command line]" in text


def test_what_a_search_has_found_says_so(tmp_path, prints):
    header = "# Layout found by: the command\n# Why: fast\n# Settings found: parallel, seed\n"
    include = f"include: [{ROOT / 'configs/run/grpo_8b.yaml'}]\n"
    (tmp_path / "found.yaml").write_text(f"{header}{include}parallel: {{tensor_parallel: 4}}\n")
    words = ["--config", str(tmp_path / "found.yaml"), "--explain"]
    text = prints("config", *words, "parallel.tensor_parallel")
    assert "tensor_parallel = 4   [plan]\nfound by: the command\nwhy: fast\n" in text
    assert "found by" not in prints("config", *words, "optimizer.lr")
