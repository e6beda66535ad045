"""One flipped bit anywhere in a step is noticed, or changes nothing that is read."""

import json
import random
import shutil

import h5py
import pytest

from tests.unit.checkpoint.steps import STATE, contents, reseal, spoil_chunk, write_step
from tests.unit.ranks import on_ranks
from verl_hpc.checkpoint import schema
from verl_hpc.checkpoint.convert import import_model
from verl_hpc.checkpoint.manifest import sum_of, write_manifest
from verl_hpc.checkpoint.read import Step
from verl_hpc.errors import CheckpointError, DamageError


@pytest.fixture(scope="module")
def intact(original, tmp_path_factory):
    return contents(original, tmp_path_factory.mktemp("intact") / "out")


FLIPS = {
    "rank_*.h5": 2400,
    "ahead_*.h5": 1200,
    "index.h5": 1200,
    "state.json": 1200,
    "config.yaml": 100,
    "hf/*": 300,
    "manifest.json": 1200,
}


def flip(step, intact, tmp_path, pattern, count):
    """How flips ended; everything but noticed and harmless is a failure."""
    chance = random.Random(f"{pattern}")
    ends = {"noticed": 0, "harmless": 0}
    files = sorted(step.glob(pattern))
    for number in range(count):
        file = files[chance.randrange(len(files))]
        good = file.read_bytes()
        spoilt = bytearray(good)
        place, bit = chance.randrange(len(good)), chance.randrange(8)
        spoilt[place] ^= 1 << bit
        file.write_bytes(spoilt)
        out = tmp_path / str(number)
        try:
            content = contents(step, out)
        except CheckpointError:
            ends["noticed"] += 1
        except Exception as error:
            pytest.fail(f"{file.name} byte {place} bit {bit}: {error!r}")
        else:
            wrong = [name for name in intact if content.get(name) != intact[name]]
            assert not wrong, f"{file.name} byte {place} bit {bit}: {wrong[:3]} read back wrong"
            ends["harmless"] += 1
        finally:
            file.write_bytes(good)
            shutil.rmtree(out, ignore_errors=True)
    return ends


@pytest.mark.parametrize("pattern", FLIPS)
def test_a_flipped_bit_is_noticed_or_harmless(step, intact, tmp_path, pattern):
    assert flip(step, intact, tmp_path, pattern, 25)["noticed"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(("pattern", "count"), FLIPS.items())
def test_thousands_of_flipped_bits(step, intact, tmp_path, pattern, count):
    assert flip(step, intact, tmp_path, pattern, count)["noticed"] > 0


def test_a_chunk_of_zeros_is_noticed(step, tmp_path):
    """What a crash of the machine may leave of a file; its zero of a checksum is even right."""
    spoil_chunk(step / "rank_00001.h5", bytes)
    with h5py.File(step / "index.h5") as file:
        assert not file["actor/model.norm.weight"][...].any(), "plain HDF5 notices it already"
    with pytest.raises(DamageError, match="another checksum than what was written"):
        contents(step, tmp_path / "out")


def test_a_file_of_another_save_is_noticed(step, model, tmp_path):
    other = write_step(model, tmp_path / "others", seed=1)
    shutil.copyfile(other / "rank_00001.h5", step / "rank_00001.h5")
    assert Step(step).number == 6, "sizes are the same"
    with pytest.raises(DamageError, match=r"rank_00001\.h5: damaged \(of another save"):
        contents(step, tmp_path / "out")


@pytest.mark.parametrize("number", [3, 5])
def test_a_step_of_another_format_is_refused_and_is_no_damage(step, monkeypatch, number):
    manifest = Step(step).manifest
    with monkeypatch.context() as patch:
        patch.setattr(schema, "FORMAT_VERSION", number)
        write_manifest(step, manifest)
    message = f"format {number} of checkpoints, this program reads"
    with pytest.raises(CheckpointError, match=message) as caught:
        Step(step)
    assert not isinstance(caught.value, DamageError)


STATES = [
    *("[]", "{}", "null", '{"step": 6}'),
    STATE.model_dump_json().replace('"step":6', '"step":"6"'),
    STATE.model_dump_json().replace('"step":6', '"step":-1'),
    STATE.model_dump_json().replace('"epoch":0', '"epoch":"x"'),
    STATE.model_dump_json().replace("kl_coefficient", "kl_coefficien"),
    STATE.model_dump_json().replace("0.1", "[]"),
    "[" * 100_000,
]


@pytest.mark.parametrize("text", STATES)
def test_a_state_that_is_none_is_damage_though_its_checksum_is_right(step, text):
    (step / "state.json").write_text(text)
    reseal(step)
    with pytest.raises(DamageError, match=r"state\.json: damaged"):
        Step(step).state  # noqa: B018


@pytest.mark.parametrize(
    "change",
    [
        {"step": "6"},
        {"num_ranks": 0},
        {"num_ranks": "2"},
        {"files": []},
        {"files": {"../x": {"bytes": 1, "sha256": None}}},
        {"files": {"/etc/passwd": {"bytes": 1, "sha256": None}}},
        {"files": {"index.h5": 5}},
        {"files": {"index.h5": {"bytes": -1, "sha256": None}}},
        {"save_id": None},
        {"more": 1},
    ],
)
def test_a_manifest_that_is_none_is_damage_though_its_checksum_is_right(step, change):
    content = json.loads((step / "manifest.json").read_text()) | change
    del content["sha256"]
    content["sha256"] = sum_of(content)
    (step / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(DamageError, match=r"manifest\.json: damaged"):
        Step(step)


@pytest.mark.parametrize("text", ["", "[]", "null", "{}", '{"format": 2}', "[" * 100_000])
def test_a_manifest_of_something_else_is_damage(step, text):
    (step / "manifest.json").write_text(text)
    with pytest.raises(DamageError, match=r"manifest\.json: damaged"):
        Step(step)


def test_no_run_goes_on_from_an_imported_model(model, tmp_path):
    (step,) = on_ranks(1, lambda control: import_model(control, model, tmp_path / "imported"))
    assert Step(step).component("actor").num_bytes > 0
    with pytest.raises(CheckpointError, match=r"an imported model.*model\.path") as e:
        Step(step).state  # noqa: B018
    assert not isinstance(e.value, DamageError)


def test_a_step_under_the_name_of_another_is_damaged(step):
    renamed = step.rename(step.with_name("step_00000099"))
    with pytest.raises(DamageError, match="step_00000099: is step 6 by its manifest"):
        Step(renamed)
    (step.parent / "latest").symlink_to(renamed.rename(step).name)
    assert Step(step.parent / "latest").number == Step(step).number == 6


def test_what_is_missing_is_told_with_its_size(step):
    size = (step / "hf/config.json").stat().st_size
    (step / "hf/config.json").unlink()
    with pytest.raises(DamageError, match=f"config.json is missing, {size} bytes were written"):
        Step(step)
