"""Streams of prompts: order, position, what is read ahead, URLs, and other sources."""

import json
from itertools import chain

import pyarrow as pa
import pytest
from pyarrow import parquet

import verl_hpc
from verl_hpc.data.order import Position
from verl_hpc.errors import ConfigError, DataError

ALL = [f"p{i}" for i in range(10)]
ROWS = [{"prompt": f"p{i}", "answer": f"a{i}"} for i in range(10)]


def write(path, rows=ROWS):
    if path.suffix == ".parquet":
        parquet.write_table(pa.Table.from_pylist(rows), path, row_group_size=3)
    else:
        path.write_text("\n".join(map(json.dumps, rows)))
    return path


def prompts(problems):
    return [problem.prompt for problem in problems]


@pytest.fixture(params=["parquet", "jsonl"])
def kind(request):
    return request.param


@pytest.mark.parametrize("workers", [0, 3])
def test_all_rows_come_in_order_and_the_position_is_exact(tmp_path, kind, workers):
    path = write(tmp_path / f"rows.{kind}")
    provider = verl_hpc.DataProvider(path, kind, prefetch_factor=2, num_workers=workers)
    assert prompts(provider.read(4)) == ["p0", "p1", "p2", "p3"]
    assert provider.state_dict() == {"epoch": 0, "offset": 4}  # whatever was read ahead
    later = prompts(provider.read(4)) + prompts(provider.read(3))
    again = verl_hpc.DataProvider(path, kind, num_workers=workers)
    again.load_state_dict({"epoch": 0, "offset": 4})
    assert prompts(again.read(4)) + prompts(again.read(3)) == later
    assert later[-1] == "p0" and provider.read(1)[0].ground_truth == "a1"
    provider.close()


def test_an_epoch_is_iterated_in_batches(tmp_path, kind):
    path = write(tmp_path / f"rows.{kind}")
    provider = verl_hpc.DataProvider(path, kind, batch_size=4, shuffle=True, seed=3)
    epochs = [[prompts(batch) for batch in provider] for _ in range(2)]
    for batches in epochs:
        assert [len(batch) for batch in batches] == [4, 4, 2]
        assert sorted(chain(*batches)) == ALL
    assert epochs[0] != epochs[1]


@pytest.fixture(scope="module")
def s3_server():
    """Where a store of moto's listens, which keeps it in memory."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    yield "http://{}:{}".format(*server.get_host_and_port())
    server.stop()


def test_rows_of_a_bucket_of_a_local_s3_server(kind, tmp_path, s3_server):
    import boto3

    names = {"region_name": "us-east-1", "endpoint_url": s3_server}
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
    client = boto3.client("s3", **names, **keys)
    client.create_bucket(Bucket="bucket")
    client.upload_file(str(write(tmp_path / f"rows.{kind}")), "bucket", f"rows.{kind}")
    options = {"key": "test", "secret": "test", "client_kwargs": names}
    for path in (f"s3://bucket/rows.{kind}", "s3://bucket/", f"s3://bucket/*.{kind}"):
        provider = verl_hpc.DataProvider(path, kind, storage_options=options)
        assert prompts(provider.read(10)) == ALL and len(provider) == 10


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"data_path": "nowhere.parquet"}, "no such file"),
        ({"data_path": "memory://nowhere/"}, "//nowhere/: cannot be read .FileNotFoundError"),
        ({"file_format": "csv"}, "file_format = 'csv'; choose parquet or jsonl"),
        ({"data_path": "nope://x/rows.parquet"}, "nope"),
        ({"prompt_key": "question"}, "no column 'question'"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, given, words):
    path = write(tmp_path / "rows.parquet")
    with pytest.raises(DataError, match=words):
        verl_hpc.DataProvider(**{"data_path": str(path), **given})


def test_a_trainer_reads_its_provider_and_goes_on_where_it_was(make_trainer, tmp_path, model_dir):
    path = write(tmp_path / "rows.jsonl")
    seen = []

    def reward(response, reference):
        seen.append(reference)
        return 0.0

    def trainer(**more):
        provider = verl_hpc.DataProvider(path, "jsonl")
        return make_trainer(data_provider=provider, reward_fn=reward, rollout_batch_size=3, **more)

    first = trainer()
    first.train(1)
    first.save_checkpoint(tmp_path, save_optimizer=True, save_training_state=True)
    expected = first.train(2)
    assert seen == [f"a{i}" for i in range(9)]
    second = trainer(actor_model=verl_hpc.HfModelAdapter(str(model_dir)))
    second.load_checkpoint(tmp_path)
    assert second.train(2) == expected
    assert seen[9:] == [f"a{i}" for i in range(3, 9)]


@pytest.mark.parametrize("bad", [{"answer": "no prompt"}, "no mapping", None])
def test_a_read_that_fails_leaves_the_position_of_a_source(bad):
    class Rows(verl_hpc.PromptSource):
        def rows(self):
            return iter([*ROWS[:2], bad, *ROWS[3:5]])

    source = Rows()
    assert prompts(source.read(1)) == ["p0"]
    for _ in range(2):
        with pytest.raises(DataError, match="Rows row 2: "):
            source.read(3)
    assert source.position == Position(0, 1) and prompts(source.read(1)) == ["p1"]
    source.seek(Position(0, 3))
    assert prompts(source.read(2)) == ["p3", "p4"]
    with pytest.raises(DataError, match="0 of 1 rows were left; ask for fewer"):
        source.read(1)


def test_batches_of_like_length_keep_within_the_budget():
    dataset = [{"input_ids": [0] * n} for n in (5, 1, 9, 2, 2, 8, 1, 5)]
    sampler = verl_hpc.DynamicBatchSampler(dataset, max_tokens_per_batch=12, shuffle=True)
    batches = list(sampler)
    assert len(sampler) == len(batches)
    assert sorted(chain(*batches)) == list(range(8))
    for batch in batches:
        assert max(sampler.lengths[i] for i in batch) * len(batch) <= 12
    assert any(len(batch) > 2 for batch in batches)
    from torch.utils.data import DataLoader

    loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=list)
    assert sum(len(batch) for batch in loader) == 8
    orders = []
    for epoch in range(4):
        sampler.set_epoch(epoch)
        orders.append(list(sampler))
    assert any(order != orders[0] for order in orders)
    with pytest.raises(DataError, match="row 2 has 9 tokens"):
        verl_hpc.DynamicBatchSampler(dataset, 8)


def test_tasks_are_mixed_by_weight_and_resumed(tmp_path):
    rows = [
        {"prompt": f"{task[0]}{i}", "task": task} for i in range(8) for task in ("math", "code")
    ]
    path = write(tmp_path / "rows.jsonl", rows)

    def made(**weights):
        return verl_hpc.get_dataloader(path, weights, batch_size=4)

    loader = made(math=3, code=1, none=0)
    assert loader.weights == {"math": 0.75, "code": 0.25}
    first = next(iter(loader))
    assert len(first) == 4 and {p.extra["task"][0] for p in first} == {p.prompt[0] for p in first}
    state = loader.state_dict()
    rows = loader.read(160)
    assert sum(p.extra["task"] == "math" for p in rows) == 120
    again = made(math=3, code=1)
    again.load_state_dict(state)
    assert prompts(again.read(160)) == prompts(rows)
    again.seek(Position(0, 4))
    assert prompts(again.read(160)) == prompts(rows)
    with pytest.raises(ConfigError, match=r"state\['count'\] = .*1\.7"):
        again.load_state_dict({"count": 1.7})
    with pytest.raises(DataError, match="expected what state_dict"):
        again.load_state_dict(state | {"math": 1})
    with pytest.raises(DataError, match="mth: .* has no rows of it; did you mean math"):
        made(mth=1)
    with pytest.raises(DataError, match="expected one above 0"):
        made(math=0, code=0)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_read_that_failed_costs_no_rows(tmp_path, workers):
    path = write(tmp_path / "rows.jsonl")
    provider = verl_hpc.DataProvider(path, "jsonl", num_workers=workers)
    assert prompts(provider.read(2)) == ["p0", "p1"]
    kept = tmp_path / "kept"
    provider.seek(provider.position)
    path.rename(kept).touch()
    path.write_text("x" * kept.stat().st_size)
    with pytest.raises(DataError, match="not JSON"):
        provider.read(2)
    kept.rename(path)
    assert prompts(provider.read(2)) == ["p2", "p3"]
    provider.close()


def test_a_directory_is_read_as_its_files(tmp_path):
    for half, rows in enumerate((ROWS[:5], ROWS[5:])):
        write(tmp_path / f"part-{half}.parquet", rows)
    (tmp_path / "other.txt").touch()
    provider = verl_hpc.DataProvider(f"{tmp_path}/", "parquet")
    assert prompts(provider.read(10)) == ALL
