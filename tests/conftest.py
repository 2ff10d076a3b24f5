"""Fixtures that several test files share."""

from __future__ import annotations

import pytest
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ngram_ref.engine.models import load_model


@pytest.fixture(scope="session")
def default_model() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The default model in float32 on the CPU, loaded once; tests that use it carry the marker `model`."""
    return load_model(device="cpu", dtype="float32")
