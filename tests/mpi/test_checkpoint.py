"""Steps written by one layout and opened by another; damage of every kind; a full disk."""

import json
import re
import resource
import shutil

import h5py
import numpy as np
import pytest
import torch

from tests.mpi.engines_for_tests import gathered, same
from tests.mpi.sft_for_tests import encode, sft_config, update
from tests.slow import all_slow
from verl_hpc.checkpoint.convert import export_step, import_model
from verl_hpc.checkpoint.read import Step
from verl_hpc.checkpoint.store import complete_steps
from verl_hpc.checkpoint.weights import open_weights
from verl_hpc.data.order import Position
from verl_hpc.errors import CheckpointError, ConfigError, ModelError
from verl_hpc.trainer.build import build_run
from verl_hpc.trainer.saves import save
from verl_hpc.trainer.state import Progress, restore

pytestmark = pytest.mark.world(4)

LAYOUTS = [
    dict(tensor_parallel=2, pipeline_parallel=2),
    dict(tensor_parallel=2, sequence_parallel=True),
    dict(pipeline_parallel=2, virtual_pipeline=2),
    dict(context_parallel=2),
]
FSDP = dict(engine="fsdp")
HYBRID = dict(engine="fsdp", fsdp={"shard_size": 2})
TOLERANCE = 1e-5
"""How far weights may differ after an update with a large epsilon (`configure`)."""

GENERATES = {"engine": "hf", "num_samples": 2, "max_prompt_tokens": 128, "max_response_tokens": 16}


@pytest.fixture
def configure(tiny_model, shared_directory, request):
    def make(parallel, **changes):
        changes = {"optimizer": {"lr": 1e-3, "warmup_steps": 2, "epsilon": 1e-3}} | changes
        model, directory = tiny_model("qwen2", True, num_hidden_layers=4), shared_directory / "runs"
        return sft_config(request.node.name, directory, model, parallel, **changes)

    return make


def train(run, first, count):
    metrics = {}
    for step in range(first, first + count):
        metrics = update(run, *encode(run, step, range(8 * step, 8 * step + 8)))
    return metrics


def parameters(here, run):
    """All logical tensors of the actor's weights, gathered the slow way."""
    engine = run.roles["actor"].training
    return gathered(here, engine.trained_map, engine.weights)


def state(here, run):
    """All master weights and moments of the actor, gathered the slow way."""
    engine = run.roles["actor"].training
    return gathered(here, engine.optimizer_map(), engine.optimizer_tensors())


@pytest.mark.parametrize(
    "layouts",
    [
        [LAYOUTS[0], FSDP, LAYOUTS[3], LAYOUTS[2]],
        *all_slow([LAYOUTS[0], LAYOUTS[1], LAYOUTS[2], FSDP, LAYOUTS[3], HYBRID]),
    ],
    ids=len,
)
def test_a_step_opens_in_the_next_layout_and_training_goes_on(here, configure, layouts):
    """From one engine to the other and back, too. A step has whole tensors, whatever saves it: each
    layout saves once and reads once."""
    goes_on_from_layout_to_layout(here, configure, layouts, TOLERANCE)


@pytest.mark.parametrize(
    "layouts",
    [
        (LAYOUTS[0], FSDP),
        pytest.param((FSDP, {}), marks=pytest.mark.world(2)),
        *all_slow([HYBRID, LAYOUTS[1]]),
        pytest.param(({}, FSDP), marks=[pytest.mark.world(2), pytest.mark.slow]),
    ],
    ids=str,
)
def test_master_weights_of_bfloat16_go_from_one_engine_to_the_other(here, configure, layouts):
    """To the last bit of float32, with both moments; what is computed with is their rounding."""
    model = configure({}).model.model_dump() | {"dtype": "bfloat16"}
    saver, reader = (build_run(here, configure(layout, model=model)) for layout in layouts)
    train(saver, 0, 2)
    save(saver, Progress(2, Position(0, 16)))
    assert restore(reader) == Progress(2, Position(0, 16))
    saved = state(here, saver)
    same(state(here, reader), saved)
    for name, tensor in parameters(here, reader).items():
        main = saved[f"main/{name}"]
        assert (main != main.bfloat16()).float().mean() > 0.9, name
        assert torch.equal(tensor.bfloat16(), main.bfloat16()), name


def goes_on_from_layout_to_layout(here, configure, layouts, far=1e-4):
    """Each layout saves for the next, the last for the first: parameters bit for bit; one more
    step gives what it would have given, within `far`, and in the same layout bit for bit."""
    runs = [build_run(here, configure(layout)) for layout in layouts]
    train(runs[0], 0, 3)
    saved = parameters(here, runs[0])
    for step, (saver, reader) in enumerate(zip(runs, [*runs[1:], runs[0]], strict=True), start=3):
        expected = saved_and_trained(here, saver, step, saved, far)
        if step == 3:
            assert restore(saver) == Progress(step, Position(0, 8 * step % 64))
            assert train(saver, step % 8, 1) == expected[1]
            same(parameters(here, saver), expected[2])
        saved = goes_on(here, reader, step, expected, far)


def saved_and_trained(here, run, step, saved, far):
    """Save a step and take one more: the parameters saved, and the metrics and parameters after."""
    save(run, Progress(step, Position(0, 8 * step % 64)))
    metrics = train(run, step % 8, 1)
    trained = parameters(here, run)
    assert any((trained[n] - w).abs().max() > 3 * far for n, w in saved.items()), "no test"
    return saved, metrics, trained


def goes_on(here, reader, step, expected, far):
    """Restore a step and take one more, as `saved_and_trained` did; the parameters after it."""
    saved, metrics, trained = expected
    # On GPUs a copy is kept of what was offloaded while a rollout engine was built.
    changing = reader.roles["actor"].training.host._changing
    changing._is_copied = True
    assert restore(reader) == Progress(step, Position(0, 8 * step % 64))
    assert not changing._is_copied, "old weights would come back"
    same(parameters(here, reader), saved)
    assert reader.roles["actor"].training.optimizer.num_steps == step
    again = train(reader, step % 8, 1)
    assert again["sft/loss"] == pytest.approx(metrics["sft/loss"], abs=1e-5)
    assert again["actor/grad_norm"] == pytest.approx(metrics["actor/grad_norm"], rel=far or 1e-4)
    assert again["actor/lr"] == metrics["actor/lr"]
    now = parameters(here, reader)
    same(now, trained, far)  # Adam divides by the second moment: tiny gradients differ most
    return now


@pytest.mark.parametrize("layout", [LAYOUTS[0], *all_slow(LAYOUTS[1])], ids=str)
def test_every_byte_is_written_once_and_plain_hdf5_tools_show_whole_tensors(
    here, configure, layout
):
    run = build_run(here, configure(layout))
    path, whole = save(run, Progress(1, Position(0, 8))), parameters(here, run)
    with h5py.File(path / "index.h5") as file:
        table = file["regions"]
        sizes = (table["stop"][:] - table["start"][:]).clip(min=1).prod(axis=1)
        assert sizes.sum() == 4 * run.arch.num_parameters
        files = np.bincount(table["file"][:], weights=sizes)
        for name, tensor in whole.items():
            np.testing.assert_array_equal(file["actor"][name][...], tensor.numpy())
            assert file["actor"][name].attrs["dtype"] == "float32"
    assert len(files) == 4
    assert files.max() < 1.6 * files.min(), "one rank writes much more than another"


def damage_flip(path):
    with h5py.File(path, "r+") as file:
        dataset = next(d for d in _datasets(file) if d.name.startswith("/actor/") and d.size > 64)
        offset = dataset.id.get_chunk_info(0).byte_offset
    data = bytearray(path.read_bytes())
    data[offset + 40] ^= 4
    path.write_bytes(bytes(data))


def _datasets(group):
    items = []
    group.visititems(lambda _, item: items.append(item))
    return [item for item in items if isinstance(item, h5py.Dataset)]


def damage_truncate(path):
    path.write_bytes(path.read_bytes()[:-1000])


def damage_number(path):
    """One digit is another; all else is as it was."""
    text = path.read_text()
    path.write_text(re.sub("[1-8]", lambda digit: str(int(digit[0]) + 1), text, count=1))


DAMAGES = {
    "flipped bit": ("rank_00002.h5", damage_flip),
    "another step in the state": ("state.json", damage_number),
}
"""All ranks turn to the step before. Kinds of damage: tests/unit/checkpoint/test_damage.py."""


def test_a_damaged_step_is_noticed_and_the_one_before_is_used(here, configure):
    """Every damage in turn, of the same step."""
    run = build_run(here, configure(LAYOUTS[0]))
    good = parameters(here, run)
    save(run, Progress(1, Position(0, 8)))
    train(run, 1, 1)
    newest = save(run, Progress(2, Position(0, 16)))
    whole = newest.with_name("whole")
    if here.world.rank == 0:
        shutil.copytree(newest, whole)
    fresh = build_run(here, configure(LAYOUTS[2]))
    for damage, (name, spoil) in DAMAGES.items():
        if here.world.rank == 0:
            spoil(newest / name)
        here.control.barrier()
        for weight in fresh.roles["actor"].training.weights.values():
            weight.fill_(torch.nan)
        assert restore(fresh) == Progress(1, Position(0, 8)), damage
        same(parameters(here, fresh), good)
        here.control.barrier()
        if here.world.rank == 0:
            shutil.rmtree(newest, ignore_errors=True)
            shutil.copytree(whole, newest)
        here.control.barrier()
    assert restore(fresh) == Progress(2, Position(0, 16)), "nothing else was amiss"


def test_a_damaged_step_is_neither_exported_nor_are_its_runs_started_over(
    here, configure, shared_directory
):
    run = build_run(here, configure(LAYOUTS[0]))
    path = save(run, Progress(1, Position(0, 8)))
    if here.world.rank == 0:
        damage_flip(path / "rank_00001.h5")
        with pytest.raises(CheckpointError, match=r"rank_00001.h5: damaged"):
            export_step(path, shared_directory / "never")
        assert not (shared_directory / "never").exists()
        damage_truncate(path / "rank_00001.h5")
    here.control.barrier()
    with pytest.raises(CheckpointError, match=r"none of the 1 steps below .* rank_00001.h5 has"):
        restore(run)


def test_another_model_is_refused_and_no_older_step_tried(here, configure, tiny_model):
    run = build_run(here, configure(LAYOUTS[0]))
    save(run, Progress(1, Position(0, 8)))
    save(run, Progress(2, Position(0, 16)))
    other = {"path": str(tiny_model("llama", True, num_hidden_layers=4)), "dtype": "float32"}
    for resume, message in (
        ("auto", r'config\.json: family = "llama", and was "qwen2"'),
        ("force", r"model\.path: .*/step_00000002 is of another model: "),
    ):
        fresh = build_run(here, configure(LAYOUTS[0], model=other, checkpoint={"resume": resume}))
        with pytest.raises(ConfigError, match=message):
            restore(fresh)


def test_resume_modes(here, configure):
    run = build_run(here, configure(LAYOUTS[0], checkpoint={"resume": "must"}))
    with pytest.raises(CheckpointError, match="checkpoint.resume = must, and .* has no steps"):
        restore(run)
    run = build_run(here, configure(LAYOUTS[0]))
    assert restore(run) is None
    save(run, Progress(1, Position(0, 8)))
    run = build_run(here, configure(LAYOUTS[0], checkpoint={"resume": "never"}))
    with pytest.raises(ConfigError, match="resume = never, and .* has steps up to step_00000001"):
        restore(run)


def test_another_data_set_seed_or_recipe_is_refused(here, configure):
    """All that changed is named; other rows are noticed even if there are as many."""
    save(build_run(here, configure(LAYOUTS[0])), Progress(1, Position(0, 8)))
    gym = {"kind": "reasoning_gym", "task": "chain_sum", "size": 64}
    for changes, words in [
        ({"seed": 7, "data": {"train": gym | {"size": 63}}}, ["data.train", "seed = 7, and was 0"]),
        (
            {"recipe": "rl", "rollout": GENERATES, "reward": {"function": "exact_match"}},
            ["recipe = rl, and was sft"],
        ),
    ]:
        run = build_run(here, configure(LAYOUTS[0], **changes))
        with pytest.raises(ConfigError, match="is not the same any more") as caught:
            restore(run)
        assert caught.value.agreed
        for word in [*words, "a run of another name"]:
            assert word in str(caught.value)
        assert ("resume: force" in str(caught.value)) == ("recipe" not in changes)


def test_the_reward_may_change_and_the_log_says_so(here, configure, caplog):
    changes = {"recipe": "rl", "rollout": GENERATES, "reward": {"function": "exact_match"}}
    first = build_run(here, configure(LAYOUTS[0], **changes))
    path = save(first, Progress(1, Position(0, 8)))
    changes |= {"reward": {"function": "reasoning_gym"}}
    changes |= {"model": {"path": str(path), "dtype": "float32"}}  # its copies are the same
    assert restore(build_run(here, configure(LAYOUTS[0], **changes)))
    told = [r.message for r in caplog.records if "reward.function = reasoning_gym" in r.message]
    assert len(told) == (here.world.rank == 0)


def test_another_seed_and_data_set_can_be_forced(here, configure):
    """New data are read from their beginning."""
    save(build_run(here, configure(LAYOUTS[0])), Progress(1, Position(0, 8)))
    other = {"train": {"kind": "reasoning_gym", "task": "chain_sum", "size": 20}}
    changes = {"seed": 7, "data": other}
    run = build_run(here, configure(LAYOUTS[0], checkpoint={"resume": "force"}, **changes))
    assert restore(run) == Progress(1, Position(0, 0))
    save(run, Progress(2, Position(0, 4)))
    run = build_run(here, configure(LAYOUTS[0], **changes))
    assert restore(run) == Progress(2, Position(0, 4))


def test_weights_have_one_fingerprint_whatever_holds_them(here, configure):
    known = open_weights(configure(LAYOUTS[0]).model.path).fingerprint()
    for step, layout in enumerate((LAYOUTS[0], LAYOUTS[2]), start=1):
        run = build_run(here, configure(layout))
        path = save(run, Progress(step, Position(0, 8)))
        assert here.world.rank != 0 or open_weights(path).fingerprint() == known
    train(run, 0, 2)  # the first one's learning rate is 0
    path = save(run, Progress(3, Position(0, 16)))
    assert here.world.rank != 0 or open_weights(path).fingerprint() != known


@pytest.mark.slow
def test_a_reference_that_has_moved_is_noticed(here, configure):
    """model.path may be the newest step of another run that is still training."""
    first = build_run(here, configure(LAYOUTS[0]))
    latest = save(first, Progress(1, Position(0, 8))).parent / "latest"
    changes = {
        "name": "moving-reference",
        "recipe": "rl",
        "model": {"path": str(latest), "dtype": "float32"},
        "rollout": GENERATES,
        "reward": {"function": "exact_match"},
    }
    with_kl = changes | {"algorithm": {"kl": {"placement": "loss"}}}
    save(build_run(here, configure(LAYOUTS[0], **with_kl)), Progress(1, Position(0, 8)))
    run = build_run(here, configure(LAYOUTS[1], **with_kl), resumes=True)
    assert restore(run) == Progress(1, Position(0, 8))
    train(first, 0, 2)
    save(first, Progress(2, Position(0, 16)))
    run = build_run(here, configure(LAYOUTS[1], **with_kl), resumes=True)
    with pytest.raises(ConfigError, match=r"model.path: other weights .* its KL reference"):
        restore(run)
    # Without a reference the first weights no longer matter.
    run = build_run(here, configure(LAYOUTS[1], **changes), resumes=True)
    assert restore(run) == Progress(1, Position(0, 8))


def test_old_steps_go_and_torn_ones_with_them(here, configure):
    run = build_run(here, configure(LAYOUTS[0], checkpoint={"keep": 2}))
    root = save(run, Progress(1, Position(0, 8))).parent
    if here.world.rank == 0:
        (root / ".step_00000009.partial").mkdir()
        (root / "step_00000008").mkdir()  # no manifest: a deletion that was cut short
    for step in (2, 3, 4):
        save(run, Progress(step, Position(0, 8)))
    if here.world.rank == 0:
        names = sorted(p.name for p in root.iterdir())
        assert names == ["latest", "step_00000003", "step_00000004"]
        assert (root / "latest").resolve().name == "step_00000004"


@pytest.mark.parametrize("full_on", [2, *all_slow(0)])
def test_a_full_disk_on_one_rank_fails_on_all_and_harms_no_earlier_step(here, configure, full_on):
    """A limit on file size stands in for the disk: writes beyond it fail alike."""
    run = build_run(here, configure(LAYOUTS[0]))
    good = save(run, Progress(1, Position(0, 8)))
    train(run, 1, 1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if here.world.rank == full_on:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        message = r"could not write step_00000002 to .*\(rank " + str(full_on)
        with pytest.raises(CheckpointError, match=message):
            save(run, Progress(2, Position(0, 16)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    here.control.barrier()
    assert complete_steps(good.parent) == [good]
    assert [p.name for p in good.parent.iterdir() if "partial" in p.name] == []
    assert restore(run) == Progress(1, Position(0, 8))
    save(run, Progress(2, Position(0, 16)))


def test_export_is_what_transformers_loads_and_import_brings_it_back(
    here, configure, shared_directory
):
    run = build_run(here, configure(LAYOUTS[0]))
    train(run, 0, 2)
    whole = parameters(here, run)
    path = save(run, Progress(2, Position(0, 16)))
    out, back = shared_directory / "exported", shared_directory / "imported"
    if here.world.rank == 0:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        count = export_step(path.parent / "latest", out, shard_bytes=40_000)
        assert len(list(out.glob("*.safetensors"))) > 1
        model = AutoModelForCausalLM.from_pretrained(out)
        tokenizer = AutoTokenizer.from_pretrained(out)
        assert tokenizer.decode(tokenizer.encode("7+5")) == "7+5"
        loaded = dict(model.named_parameters())
        assert sum(p.numel() for p in loaded.values()) == count
        same({name: loaded[name].detach() for name in whole}, whole)
        with pytest.raises(CheckpointError, match="exists; choose a directory that does not"):
            export_step(path, out)
        half = shared_directory / "half"
        assert export_step(path, half, dtype="bfloat16") == count
        assert json.loads((half / "config.json").read_text())["dtype"] == "bfloat16"
    here.control.barrier()
    step = import_model(here.control, out, back)
    assert Step(step).component("actor").num_bytes == 4 * run.arch.num_parameters
    again = build_run(here, configure(LAYOUTS[1], model={"path": str(step), "dtype": "float32"}))
    same(parameters(here, again), whole)


def test_a_model_that_lacks_tensors_is_refused(here, configure, shared_directory, tiny_model):
    source, broken = tiny_model("qwen2", True), shared_directory / "broken"
    if here.world.rank == 0:
        shutil.copytree(source, broken)
        config = json.loads((broken / "config.json").read_text())
        config["num_hidden_layers"] += 1
        (broken / "config.json").write_text(json.dumps(config))
    here.control.barrier()
    changed = configure(LAYOUTS[0], model={"path": str(broken), "dtype": "float32"})
    with pytest.raises(ModelError, match=r"calls for \d+ tensors that are not there, first model"):
        build_run(here, changed)
