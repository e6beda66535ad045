import json
import os
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from verl_hpc.config.data import FilesConfig

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def gsm8k_dir() -> Path:
    default = REPOSITORY.parent / "shared" / "data" / "gsm8k"
    path = Path(os.environ.get("VERL_HPC_GSM8K", default))
    if not (path / "train.jsonl").is_file():
        pytest.skip(f"no GSM8K at {path}; set VERL_HPC_GSM8K to a directory with train.jsonl")
    return path


@pytest.fixture(scope="session")
def tokenizer():
    """One token a byte; begins nothing by itself, ends a turn with <|im_end|>."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    words = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    backend = Tokenizer(models.BPE(vocab={w: i for i, w in enumerate(words)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(w, special=True, normalized=False) for w in special])
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>")
    fast.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    return fast


def verl_row(index: int) -> dict:
    return {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": f"{index} + 1?"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(index + 1)},
        "extra_info": {"split": "train", "index": index, "answer": f"#### {index + 1}"},
    }


def write_jsonl(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_parquet(path: Path, rows: list[dict], row_group_size: int = 3) -> Path:
    parquet.write_table(pa.Table.from_pylist(rows), path, row_group_size=row_group_size)
    return path


def files(*paths: Path, **settings) -> FilesConfig:
    return FilesConfig(paths=[str(path) for path in paths], **settings)


def damage_row_group(path: Path, group: int, column: int) -> None:
    """Overwrite the pages of one column in a row group of a Parquet file."""
    chunk = parquet.read_metadata(path).row_group(group).column(column)
    content, size = bytearray(path.read_bytes()), chunk.total_compressed_size
    begin = chunk.dictionary_page_offset or chunk.data_page_offset
    content[begin : begin + size] = b"\xff" * size
    path.write_bytes(content)


def learned(answer) -> list[int]:
    """The token ids of an answer that are learned."""
    return [token for token, counts in zip(answer.ids, answer.mask, strict=True) if counts]
