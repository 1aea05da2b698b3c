"""Programs written for PyTorch, run as they are by PyTorch and by dlsys: the numbers that they return agree.

A program is a function `run_NAME(prepare, train)` in a file beside this one: ordinary code for PyTorch that returns the
losses of some 20 steps and other results. It is run twice, with its file's imports and with those of `dlsys`, and
nothing else is changed. `prepare` gives both networks the same parameters, `train` is the loop that many share; all
other random numbers are NumPy's.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dlsys as dl
import numpy as np
import pytest
from optional import torch

FILES = sorted(set(Path(__file__).parent.glob("*.py")) - {Path(__file__)})
PROGRAMS = {name: path for path in FILES for name in re.findall(r"^def run_(\w+)", path.read_text(), re.MULTILINE)}
IMPORTS = (  # patterns of lines that import, and what stands for them
    (r"^(import|from) torch\.utils\.data\b", r"\1 dlsys.data"),
    (r"^import torch$", "import dlsys as torch"),
    (r"^(import|from) torch\b", r"\1 dlsys"),
)


def prepared(library: Any, model: Any) -> Any:
    """The model with parameters that follow from their names and shapes: vectors near 1, if a weight, or 0, others
    of variance 1 / their last extents."""
    for name, parameter in model.named_parameters():
        shape = tuple(parameter.shape)
        noise = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape)
        if len(shape) > 1:
            values = noise / np.sqrt(np.prod(shape[1:]))
        else:
            values = float(name.endswith("weight")) + 0.1 * noise
        with library.no_grad():
            parameter.copy_(library.from_numpy(np.asarray(values, "float32")))
    return model


def train(optimizer: Any, loss_of: Callable[[], Any]) -> list[float]:
    """The losses of 20 steps."""
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def results(library: Any, name: str) -> list[np.ndarray]:
    """The results of a program, with its file's own imports or with those of dlsys."""
    source = PROGRAMS[name].read_text()
    if library is dl:
        for pattern, replacement in IMPORTS:
            source = re.sub(pattern, replacement, source, flags=re.MULTILINE)
    namespace: dict[str, Any] = {"__name__": f"programs.{name}"}
    exec(compile(source, str(PROGRAMS[name]), "exec"), namespace)
    return arrays(namespace[f"run_{name}"](lambda model: prepared(library, model), train))


def arrays(values: Any) -> list[np.ndarray]:
    """Numbers and tensors in lists, tuples and dictionaries, one behind another; a list of numbers is one array."""
    if isinstance(values, dict):
        values = list(values.values())
    if isinstance(values, (list, tuple)) and not all(isinstance(value, (int, float)) for value in values):
        return [array for value in values for array in arrays(value)]
    return [np.asarray(values.detach() if hasattr(values, "detach") else values)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # a warning stops no program
@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_program_agrees_with_torch(name: str) -> None:
    torch.manual_seed(0)  # which skips the test where there is no PyTorch
    dl.manual_seed(0)
    expected = results(torch, name)
    assert all(np.isfinite(array).all() for array in expected)
    found = results(dl, name)
    assert len(found) == len(expected)
    for number, (a, b) in enumerate(zip(found, expected, strict=True)):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5, err_msg=f"result {number}")
