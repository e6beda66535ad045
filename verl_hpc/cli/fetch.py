"""Download models into the cache that runs read; for a node with network.

Compute nodes have no network: a run whose model.path (or model.tokenizer, roles.NAME.path,
lora.path) is the name of a model on a hub finds it in the cache that this fills: HF_HUB_CACHE, or
hub/ below HF_HOME, or MODELSCOPE_CACHE. Only configuration, tokenizer and safetensors are fetched;
what is there already is not fetched again, and an interrupted download is resumed. HF_TOKEN, for
models whose publisher asks for it, is read from the environment.

examples:
  python -m verl_hpc fetch Qwen/Qwen3-8B
  python -m verl_hpc fetch meta-llama/Llama-3.1-8B@main modelscope:Qwen/Qwen3-8B
"""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names",
        nargs="+",
        metavar="ORG/NAME[@REVISION]",
        help="models on Hugging Face's Hub, or modelscope:ORG/NAME",
    )


def run(arguments: argparse.Namespace) -> int:
    from verl_hpc.sources.cache import source_of
    from verl_hpc.sources.fetch import fetch

    for text in arguments.names:
        fetched = fetch(text)
        weights = f"{fetched.num_tensors} tensors" if fetched.num_tensors else "no weights"
        source = source_of(fetched.directory) or text
        print(f"{source}: {_size(fetched.num_bytes)}, {weights}, whole\n  {fetched.directory}")
    return 0


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:,.2f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e6:,.2f} MB"
