"""Adapters of PEFT's that would be read as others than they are."""

import json

import pytest
from safetensors.numpy import save_file

from verl_hpc.checkpoint.peft import open_adapter
from verl_hpc.config.lora import LoraConfig
from verl_hpc.errors import ModelError


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"init_lora_weights": "pissa"}, "init_lora_weights = 'pissa' changes the model's own"),
        ({"init_lora_weights": "olora"}, "path_initial_model_for_weight_conversion"),
        ({"alora_invocation_tokens": [1]}, r"alora_invocation_tokens = \[1\] adapts"),
        ({"use_dora": True}, "use_dora = True computes another product"),
    ],
)
def test_an_adapter_of_another_kind_is_refused(tmp_path, changes, words):
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 16.0, "init_lora_weights": True}
    save_file({}, tmp_path / "adapter_model.safetensors")
    lora = LoraConfig(rank=8, alpha=16.0, path=str(tmp_path))
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    open_adapter(lora, {}, None)
    (tmp_path / "adapter_config.json").write_text(json.dumps(config | changes))
    with pytest.raises(ModelError, match=words):
        open_adapter(lora, {}, None)
