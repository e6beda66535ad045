"""Generate with a module's own `generate` and its current weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import PreTrainedConfig

from verl_hpc.config.rollout import RolloutConfig
from verl_hpc.errors import DataError, ModelError
from verl_hpc.layout.shard_map import ShardMap
from verl_hpc.rollout.hf import HfEngine
from verl_hpc.rollout.protocol import Request, Response, Sampling


class ModuleRollout(HfEngine):
    """A module of this process as `RolloutEngine`: the trained module itself, so no weights are
    transferred.

    Args:
        module: has transformers' `generate(input_ids, attention_mask=, ...)`. A user's may return
            only token ids, (B, prompt and response); log-probs then come from `module(input_ids,
            attention_mask)`.
        ends: tokens that end a response; the first also pads.
        config: sampling and limits.
        weights: its parameters by logical name.
        shard_map: map of these weights.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        ends: Sequence[int],
        config: RolloutConfig,
        weights: Mapping[str, torch.Tensor],
        shard_map: ShardMap,
    ) -> None:
        first = next(module.parameters())
        self.shard_map, self._weights = shard_map, weights
        self.replicas: tuple[tuple[int, ...], ...] = ((0,),)
        self.dtype, self._device = first.dtype, first.device
        self.at_a_time = config.max_num_seqs or 256
        self._model: Any = module.eval()
        self._images = None
        self._ends = list(ends)
        self._filtered = bool(config.filters)
        settings = getattr(module, "config", None)
        self.attention: str = getattr(settings, "_attn_implementation", None) or "the module's"
        text = settings.get_text_config() if isinstance(settings, PreTrainedConfig) else None
        self._positions: int | None = getattr(text, "max_position_embeddings", None)

    @property
    def weights(self) -> Mapping[str, torch.Tensor]:
        return self._weights

    def _continue(self, requests: Sequence[Request], sampling: Sampling) -> list[Response]:
        longest = max(len(request.prompt) for request in requests)
        if self._positions is not None and longest + sampling.max_tokens > self._positions:
            raise DataError(
                f"a prompt of {longest} tokens, with max_response_length = {sampling.max_tokens}, "
                f"is above the {self._positions} positions of the actor's model; shorten the "
                "prompt, or lower max_response_length"
            )
        return super()._continue(requests, sampling)

    def _read(
        self, output: Any, mask: torch.Tensor, sampling: Sampling
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not isinstance(output, torch.Tensor):
            return super()._read(output, mask, sampling)
        batch, width = mask.shape
        if output.ndim != 2 or output.shape[0] != batch or output.shape[1] <= width:
            raise ModelError(
                f"the actor's generate gives {tuple(output.shape)} for prompts of ({batch}, "
                f"{width}); expected prompts and at least one new token each, ({batch}, "
                f"more than {width})"
            )
        new = output[:, width:]
        # Padded on the right: positions of a user's module may not follow from the mask.
        rows = [
            torch.cat([row[:width][mine.bool()], row[width:]])
            for row, mine in zip(output, mask.to(output.device), strict=True)
        ]
        padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        lengths = torch.tensor([len(row) for row in rows], device=padded.device)
        whole = (torch.arange(padded.shape[1], device=padded.device) < lengths[:, None]).long()
        result = self._model(padded, attention_mask=whole)
        logits = getattr(result, "logits", result).float()
        temperature = 1.0 if self._filtered else sampling.temperature or 1.0
        log_probs = []
        for i, n in enumerate(lengths.tolist()):
            of_row = logits[i, n - new.shape[1] - 1 : n - 1] / temperature
            log_probs.append(of_row.log_softmax(-1).gather(-1, new[i][:, None])[:, 0])
        return new, torch.stack(log_probs)

    def close(self) -> None:
        """Do nothing: the module belongs to the caller."""
