"""Images of rows: how they are given, what of them is refused, and what tokens they become."""

import base64
import json
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from verl_hpc.config.data import FilesConfig
from verl_hpc.data.files import FilesSource
from verl_hpc.data.lengths import LengthCheck
from verl_hpc.data.overlap import count_overlap
from verl_hpc.data.prompts import Encoder, fit_prompt
from verl_hpc.data.tokenizer import load_tokenizer
from verl_hpc.errors import DataError, ModelError
from verl_hpc.hf import pictures
from verl_hpc.hf.images import image_reader
from verl_hpc.hf.pictures import decode, packed, unpacked
from verl_hpc.layout.architecture import read_architecture
from verl_hpc.layout.not_mapped import WITH_IMAGES
from verl_hpc.testing.vision import make_vision_model


def png(color: str = "red", size=(40, 30), mode: str = "RGB") -> bytes:
    file = BytesIO()
    Image.new("RGB", size, color).convert(mode).save(file, "png")
    return file.getvalue()


def source(path: Path, *rows: dict, **settings) -> FilesSource:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return FilesSource(FilesConfig(paths=[str(path)], **settings))


def ask(text: object = "what is <image>?", **columns) -> dict:
    return {"prompt": [{"role": "user", "content": text}], **columns}


def test_each_way_to_give_an_image_shows_the_same(tmp_path):
    (tmp_path / "a.png").write_bytes(png())
    coded = base64.b64encode(png()).decode()
    address = f"data:image/png;base64,{coded}"
    ways = ["a.png", str(tmp_path / "a.png"), f"file://{tmp_path}/a.png", address]
    ways += [{"base64": coded}, {"path": "a.png"}, {"bytes": None, "path": "a.png"}]
    rows = [ask(images=[way]) for way in ways] + [ask(images="a.png")]
    rows += [
        ask([{"type": "text", "text": "what is "}, part, {"type": "text", "text": "?"}])
        for part in (
            {"type": "image", "image": "a.png"},
            {"type": "image", "base64": coded},
            {"type": "image_url", "image_url": {"url": address}},
        )
    ]
    rows.append(ask([{"type": "text", "text": "what is "}, {"type": "image"}], images=["a.png"]))
    for problem in source(tmp_path / "rows.jsonl", *rows):
        assert problem.prompt[0]["content"].startswith("what is <image>")
        (image,) = decode(problem.images, problem.where)
        assert (image.mode, image.size, image.getpixel((0, 0))) == ("RGB", (40, 30), (255, 0, 0))


def test_verls_parquet_has_bytes_and_several_images_a_row(tmp_path):
    images = [{"bytes": png("red"), "path": None}, {"bytes": png("blue"), "path": "b.png"}]
    table = pa.Table.from_pylist([ask("<image> or <image>", images=images), ask("none")])
    parquet.write_table(table, tmp_path / "rows.parquet")
    rows = FilesSource(FilesConfig(paths=[str(tmp_path / "rows.parquet")]))
    colors = [image.getpixel((0, 0)) for image in decode(rows[0].images, "")]
    assert colors == [(255, 0, 0), (0, 0, 255)]
    assert not rows[1].images
    assert len(list(rows.scan())) == 2


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "RGBA", "1", "CMYK"])
def test_any_mode_becomes_rgb(tmp_path, mode):
    file = tmp_path / "a.tiff"
    Image.new("L", (4, 4), 200).convert(mode).save(file)
    (problem,) = source(tmp_path / "rows.jsonl", ask(images=["a.tiff"]))
    assert decode(problem.images, "")[0].mode == "RGB"


@pytest.mark.parametrize("mode", ["I;16", "I;16B", "I", "F"])
def test_an_image_that_rgb_would_clip_is_refused(tmp_path, mode):
    Image.new(mode, (4, 4)).save(tmp_path / "a.tiff")
    (problem,) = source(tmp_path / "rows.jsonl", ask(images=["a.tiff"]))
    with pytest.raises(DataError, match=f"line 1: images: .*a.tiff has mode {mode}; .* 8 bits"):
        decode(problem.images, problem.where)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (ask(images=[3]), r"images\[0\] is int 3; expected a path"),
        (ask(images=["https://x.org/a.png"]), "is an address; nodes of a job have no way out"),
        (ask(images=[{"base64": "?"}]), r"images\[0\] is not base64"),
        (ask("none", images=["a.png"]), "the prompt has 0 places .* and the row has 1 images"),
        (ask("<image><image>", images=["a.png"]), "the prompt has 2 places"),
        (ask([{"type": "image"}]), "the prompt has 1 places .* and the row has 0 images"),
        (ask([{"type": "image", "image": "a.png"}], images=["a.png"]), "in one place"),
        (ask([{"type": "video"}]), "models of video and sound are not supported"),
    ],
)
def test_a_row_is_refused_with_its_place(tmp_path, row, problem):
    with pytest.raises(DataError, match=f"rows.jsonl line 1: .*{problem}"):
        source(tmp_path / "rows.jsonl", row)[0]


def test_a_prompt_in_a_field_has_its_images(tmp_path):
    row = {"asked": {"chat": ask([{"type": "image", "path": "a.png"}])["prompt"]}}
    (problem,) = source(tmp_path / "rows.jsonl", row, prompt_key="asked.chat")
    assert [picture.path for picture in problem.images] == [str(tmp_path / "a.png")]


def test_words_of_a_row_without_images_stay_words(tmp_path):
    (problem,) = source(tmp_path / "rows.jsonl", ask("the tag <image>"))
    assert problem.prompt[0]["content"] == "the tag <image>" and not problem.images


def test_a_damaged_missing_or_huge_image_is_named(tmp_path, monkeypatch):
    (tmp_path / "text.png").write_text("no image")
    (tmp_path / "cut.png").write_bytes(png(size=(400, 300))[:-200])
    (tmp_path / "a.png").write_bytes(png())
    names = ["text.png", "cut.png", "gone.png", "a.png"]
    rows = source(tmp_path / "rows.jsonl", *(ask(images=[name]) for name in names))
    monkeypatch.setattr(pictures, "MOST_PIXELS", 1000)
    whys = [
        "cannot be read .Unidentified",
        "pixels; at most",
        "no file ",
        "40 x 30 pixels; at most",
    ]
    for problem, why in zip(rows, whys, strict=True):
        with pytest.raises(DataError, match=f"{problem.where}: images: .*{why}"):
            decode(problem.images, problem.where)
    monkeypatch.undo()
    with pytest.raises(DataError, match="cut.png cannot be read"):
        decode(rows[1].images, "")


def test_prompts_of_the_same_words_and_other_images_differ(tmp_path):
    train = source(tmp_path / "a.jsonl", ask(images=["a.png"]), ask(images=["b.png"]))
    assert (
        count_overlap([train], source(tmp_path / "b.jsonl", ask(images=["c.png"]))).shared_prompts
        == 0
    )
    assert (
        count_overlap([train], source(tmp_path / "c.jsonl", ask(images=["b.png"]))).shared_prompts
        == 1
    )


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return {
        family: make_vision_model(tmp_path_factory.mktemp(family), family) for family in WITH_IMAGES
    }


def encoder_of(model: Path) -> Encoder:
    reader = image_reader(read_architecture(model))
    return Encoder(load_tokenizer(str(model), 300), images=reader)


@pytest.mark.parametrize("family", WITH_IMAGES)
def test_tokens_and_pixels_are_those_of_the_processor(tmp_path, models, family):
    encoder = encoder_of(models[family])
    (tmp_path / "a.png").write_bytes(png())
    rows = [
        ask(
            "a<image>b<image>",
            images=["a.png", {"base64": base64.b64encode(png("blue", (60, 60))).decode()}],
        )
    ]
    (problem,) = source(tmp_path / "rows.jsonl", *rows)
    ids, reader = encoder.prompt(problem), encoder._images
    image, text = {"type": "image"}, lambda words: {"type": "text", "text": words}
    parts = [text("a"), image, text("b"), image]
    written = encoder.tokenizer.apply_chat_template(
        [{"role": "user", "content": parts}], add_generation_prompt=True, tokenize=False
    )
    images = decode(problem.images, "")
    made = reader._processor(text=[written], images=[images], return_tensors="pt")
    assert ids == made["input_ids"][0].tolist()
    shown = encoder.image_prompt(problem, ids)
    assert 0 < shown.num_tokens < len(ids) and len(shown.unexpanded) < len(ids)
    assert unpacked(packed(shown)) == (problem.images, shown.num_tokens)
    pixels = reader.pixels(problem.images)
    assert all((value == made[name]).all() for name, value in pixels.items()) and pixels


def test_an_answer_to_an_image_is_learned_behind_its_tokens(tmp_path, models):
    encoder = encoder_of(models["qwen2_5_vl"])
    (tmp_path / "a.png").write_bytes(png())
    (tmp_path / "rows.jsonl").write_text(json.dumps(ask(images=["a.png"], answer="red")))
    (problem,) = FilesSource(FilesConfig(paths=[str(tmp_path / "rows.jsonl")]), "answer")
    prompt, (answer,) = encoder.example(problem)
    assert prompt == encoder.prompt(problem)
    assert encoder.tokenizer.decode(answer.ids) == "red<|im_end|>" and all(answer.mask)


def test_what_a_model_cannot_take_is_refused(tmp_path, models):
    (tmp_path / "a.png").write_bytes(png())
    text = {"prompt": "what is <image>", "images": ["a.png"]}
    marked = ask("<|image_pad|> and <image>", images=["a.png"])
    chat, bare, twice = source(tmp_path / "rows.jsonl", ask(images=["a.png"]), text, marked)
    encoder = encoder_of(models["qwen2_5_vl"])
    with pytest.raises(DataError, match="line 2: the row has images, and its prompt is a text"):
        encoder.prompt(bare)
    with pytest.raises(
        DataError, match="line 3: .* a prompt with 2 <.image_pad.>, and the row has 1"
    ):
        encoder.prompt(twice)
    with pytest.raises(DataError, match="line 1: the row has images, and the model reads none"):
        Encoder(encoder.tokenizer).prompt(chat)
    ids = encoder.prompt(chat)
    with pytest.raises(DataError, match=r"raise it, or .* to drop .images are not cut."):
        fit_prompt(ids, len(ids) - 1, "truncate_left", chat.where, has_images=True)
    with pytest.raises(DataError, match="the prompt has .* tokens"):
        LengthCheck(encoder, len(ids) - 1).check(chat)
    (tmp_path / "a.png").unlink()
    with pytest.raises(DataError, match="line 1: images: no file .*a.png"):
        LengthCheck(encoder, 1000).check(chat)


def test_a_model_without_its_processor_is_refused_where_an_image_needs_it(tmp_path, models):
    model = tmp_path / "model"
    model.mkdir()
    for file in models["qwen2_5_vl"].iterdir():
        if file.name != "preprocessor_config.json":
            (model / file.name).symlink_to(file)
    (tmp_path / "a.png").write_bytes(png())
    with_image, without = source(tmp_path / "rows.jsonl", ask(images=["a.png"]), ask("none"))
    assert encoder_of(model).prompt(without)
    with pytest.raises(ModelError, match="has no processor of images"):
        encoder_of(model).prompt(with_image)
