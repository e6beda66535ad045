"""The tensors of a model's files as windows of its parameters.

transformers keeps a model's parameters otherwise than its files: experts in one tensor, parts of a
projection one under another, other prefixes. Its own conversions are asked how it would write them
back, and made to copy nothing. So each tensor of the files is a view of one parameter, and weights
are read, saved and sent where they lie.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import PrefixChange, revert_weight_conversion
from transformers.modeling_utils import remove_tied_weights_from_state_dict

from verl_hpc.errors import ModelError
from verl_hpc.layout.box import View, row_major_strides
from verl_hpc.layout.fsdp import Place


class _Uncopied(TorchFunctionMode):
    """Leaves out copies that only make a tensor contiguous."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        return args[0] if func is torch.Tensor.contiguous else func(*args, **(kwargs or {}))


def stored_views(model: PreTrainedModel, published: Collection[str]) -> dict[str, torch.Tensor]:
    """Return every tensor of a model's files, by its name there, as a view of the model's memory.

    Args:
        model: in memory or on the meta device, before `fully_shard`, which renames the classes
            that transformers' conversions are found by.
        published: names in the model's files. They decide whether a prefix that transformers
            takes away, or adds, was there, and whether experts were one tensor already.

    Raises:
        ModelError: transformers computes a tensor of the files from others, one is a number, or
            elements of the model are in none of them.
    """
    state = _saved(model)
    every = get_model_conversion_mapping(model, add_legacy=False)
    prefixes = [c for c in every if isinstance(c, PrefixChange)]
    others = [c for c in every if not isinstance(c, PrefixChange)]
    named: list[dict[str, torch.Tensor]] = []
    for conversions in (others, every, [], prefixes):
        model._weight_conversions = conversions or None
        with _Uncopied():
            named.append(dict(revert_weight_conversion(model, dict(state))))
    # Files of a model that was saved without its output layer, as gpt2's were.
    prefix = f"{model.base_model_prefix}."
    named += [{n.removeprefix(prefix): t for n, t in views.items()} for views in named]
    views = max(named, key=lambda views: len(views.keys() & set(published)))
    _check(model, state, views)
    return views


def _saved(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Tensors of the model that its files have, by the model's names; tied ones once."""
    ignored = set(model._keys_to_ignore_on_save or ())
    state = {name: tensor for name, tensor in model.state_dict().items() if name not in ignored}
    return dict(remove_tied_weights_from_state_dict(state, model))


def _owners(state: Mapping[str, torch.Tensor]) -> dict[int, str]:
    """Names by storage."""
    return {tensor.untyped_storage()._cdata: name for name, tensor in state.items()}


def _check(
    model: PreTrainedModel, state: Mapping[str, torch.Tensor], views: Mapping[str, torch.Tensor]
) -> None:
    owners, left = _owners(state), {name: tensor.numel() for name, tensor in state.items()}
    for name, view in views.items():
        owner = owners.get(view.untyped_storage()._cdata)
        if owner is None:
            raise ModelError(
                f"{type(model).__name__}: transformers computes {name} of its files anew, so that "
                "it lies in no parameter; models of this family are not trained here"
            )
        left[owner] -= view.numel()
    for name, elements in left.items():
        if elements:
            raise ModelError(
                f"{type(model).__name__}: its files have all but {elements} of the "
                f"{state[name].numel()} elements of {name}; models of this family are not trained "
                "here"
            )


def places_of(model: PreTrainedModel, views: Mapping[str, torch.Tensor]) -> dict[str, Place]:
    """Return where `stored_views` of a model lie in its parameters and buffers.

    Raises:
        ModelError: two dims of a tensor run over rows of its parameter, of which a rank would have
            no box.
    """
    state = _saved(model)
    owners, parameters = _owners(state), dict(model.named_parameters())
    places = {}
    for name, view in views.items():
        owner = owners[view.untyped_storage()._cdata]
        shape = tuple(state[owner].shape)
        place = View(owner, view.storage_offset(), tuple(view.stride()))
        if owner not in parameters:
            places[name] = Place(place)
            continue
        row_size = row_major_strides(shape)[0]
        sizes = zip(view.shape, view.stride(), strict=True)
        if sum(size > 1 and stride >= row_size for size, stride in sizes) > 1:
            raise ModelError(
                f"{type(model).__name__}: rows of {owner} are two dimensions of {name} in its "
                "files; models of this family are not trained here"
            )
        places[name] = Place(place, shape[0], row_size)
    return places
