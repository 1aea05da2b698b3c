"""What holds for tests of layers."""

from __future__ import annotations

import beside_torch
import numpy as np
import pytest


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    """Each test draws the same numbers, in whatever order the tests run."""
    beside_torch.rng.bit_generator.state = np.random.default_rng(0).bit_generator.state
