from tests.unit.data.conftest import tokenizer

__all__ = ["tokenizer"]
