"""A `config.json` that is not what it should be ends in one error that names the field."""

import pytest

from tests.unit.layout.models import LLAMA_31_ROPE, PUBLISHED
from verl_hpc.errors import ModelError
from verl_hpc.layout.architecture import architecture_from, read_architecture

LLAMA = PUBLISHED["Llama-3.1-8B"][0]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"hidden_size": 0}, "hidden_size = 0: "),
        ({"hidden_size": "64"}, "hidden_size = '64': .*integer"),
        ({"hidden_size": None}, "hidden_size = None: "),
        ({"hidden_size": True}, "hidden_size = True: "),
        ({"num_attention_heads": 3}, "num_attention_heads = 3 does not divide hidden_size = 4096"),
        ({"num_key_value_heads": 0}, "num_key_value_heads = 0: "),
        ({"num_key_value_heads": 5}, "num_key_value_heads = 5 does not divide"),
        ({"head_dim": 7}, "head_dim = 7 is odd"),
        ({"vocab_size": 10**12}, "vocab_size = 1000000000000: "),
        ({"num_hidden_layers": 2.5}, "num_hidden_layers = 2.5: "),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers = 1000000000: "),
        ({"rms_norm_eps": None}, "rms_norm_eps = None: "),
        ({"rms_norm_eps": 0}, "rms_norm_eps = 0: "),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps = nan: "),
        ({"rope_theta": "x"}, "rope_theta = 'x': "),
        ({"rope_parameters": {"rope_theta": "x"}}, "rope_theta = 'x': "),
        ({"rope_parameters": {"partial_rotary_factor": "half"}}, "partial_rotary_factor = 'half'"),
        ({"rope_parameters": {"rope_type": ["yarn"]}}, r"rope_type = \['yarn'\]: "),
        ({"rope_scaling": [1]}, "rope_scaling = "),
        ({"rope_scaling": {**LLAMA_31_ROPE, "factor": "8"}}, "factor = '8': "),
        ({"rope_scaling": {"rope_type": "llama3"}}, "factor: is needed"),
        ({"rope_scaling": {"type": "linear"}}, "factor: is needed"),
        ({"rope_scaling": {"type": "yarn", "factor": 4}}, "original_max_position_embeddings: is"),
        ({"max_position_embeddings": "512"}, "max_position_embeddings = '512'"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings = 'false'"),
        ({"dtype": "int8"}, "dtype = 'int8'"),
        ({"hidden_act": None}, "hidden_act = None"),
        ({"model_type": ["llama"]}, "model_type = "),
        ({"layer_types": "full_attention"}, "layer_types = "),
        ({"layer_types": [[]]}, r"layer_types.0 = \[\]"),
        ({"pad_token_id": 128256}, "pad_token_id = 128256 .*vocab_size = 128256"),
        ({"return_dict": False}, "return_dict = False"),
        ({"sliding_window": "x"}, "sliding_window = 'x'"),
    ],
)
def test_fields_that_cannot_be(changes, told):
    with pytest.raises(ModelError, match=f"^dir/config.json:(.|\n)*{told}") as caught:
        architecture_from({**LLAMA, **changes}, "dir/config.json")
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("name", PUBLISHED)
def test_null_stands_for_a_default_where_transformers_takes_it(name):
    config, _ = PUBLISHED[name]
    optional = ("num_local_experts", "sliding_window", "rope_scaling", "head_dim")
    nulls = {field: None for field in optional if field not in config}
    assert architecture_from({**nulls, **config}) == architecture_from(config)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[]", "holds list; expected a JSON object"),
        ("{", r"config.json is not JSON \(.*whole\?$"),
        ("[" * 100_000, "is not JSON"),
        ('{"model_type": ' + "9" * 5000 + "}", "is not JSON"),
        (b"\xff\xfe{}", r"config.json is not JSON \(.*whole\?$"),
    ],
)
def test_files_that_are_no_configuration(tmp_path, text, told):
    content = text if isinstance(text, bytes) else text.encode()
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ModelError, match=told):
        read_architecture(tmp_path)


def test_a_link_to_itself(tmp_path):
    (tmp_path / "config.json").symlink_to("config.json")
    with pytest.raises(ModelError, match=r"no config.json"):
        read_architecture(tmp_path)
