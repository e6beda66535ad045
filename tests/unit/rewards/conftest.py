from tests.unit.data.conftest import gsm8k_dir

__all__ = ["gsm8k_dir"]
