"""Programs written for PyTorch, run as they are by PyTorch and by dlsys: the numbers that they return agree.

A program is a file beside this one: ordinary code for PyTorch whose `run(prepare)` returns the losses of some 20 steps
and other results. It is run twice, with its own imports and with those of `dlsys`, and nothing else is changed.
`prepare` gives both networks the same parameters; all other random numbers are NumPy's.
"""

from __future__ import annotations

import re
import zlib
from pathlib import Path
from typing import Any

import dlsys as dl
import numpy as np
import pytest
from dlsys.errors import GraphError
from optional import torch

OUT = {
    "graph_conv": ("fill_diagonal_", "a computed tensor is not written: adj.fill_diagonal_(1)"),
    "plateau": ("no attribute 'clone'", "a state_dict has NumPy's arrays, which are copies"),
    "sampling": ("only leaves are written|cumsum", "a computed tensor is not written: mask[..., 1:] = x"),
    "state_dict_surgery": ("only leaves are written", "a view is a value: weight[:10].copy_(x) does not reach weight"),
    "topk_accuracy": ("only leaves are written", "a computed tensor is not written: correct.mul_(100)"),
}
"""Programs that stop, what the error says, and why that stays; docs/pytorch.md says what to write."""
PROGRAMS = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path != Path(__file__))
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


def results(library: Any, name: str) -> list[np.ndarray]:
    """What a program returns, with its own imports or with those of dlsys."""
    source = (Path(__file__).parent / f"{name}.py").read_text()
    if library is dl:
        for pattern, replacement in IMPORTS:
            source = re.sub(pattern, replacement, source, flags=re.MULTILINE)
    namespace: dict[str, Any] = {"__name__": f"programs.{name}"}
    exec(compile(source, f"{name}.py", "exec"), namespace)
    return arrays(namespace["run"](lambda model: prepared(library, model)))


def arrays(values: Any) -> list[np.ndarray]:
    """Numbers and tensors in lists, tuples and dictionaries, one behind another; a list of numbers is one array."""
    if isinstance(values, dict):
        values = list(values.values())
    if isinstance(values, (list, tuple)) and not all(isinstance(value, (int, float)) for value in values):
        return [array for value in values for array in arrays(value)]
    return [np.asarray(values.detach() if hasattr(values, "detach") else values)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # a warning stops no program
@pytest.mark.parametrize("name", PROGRAMS)
def test_program_agrees_with_torch(name: str) -> None:
    torch.manual_seed(0)  # which skips the test where there is no PyTorch
    dl.manual_seed(0)
    expected = results(torch, name)
    assert all(np.isfinite(array).all() for array in expected)
    if name in OUT:
        told, reason = OUT[name]
        with pytest.raises((AttributeError, GraphError, ImportError), match=told):
            results(dl, name)
        pytest.xfail(reason)
    found = results(dl, name)
    assert len(found) == len(expected)
    for number, (a, b) in enumerate(zip(found, expected, strict=True)):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5, err_msg=f"result {number}")


def test_nine_of_ten_programs_run() -> None:
    assert set(OUT) <= set(PROGRAMS)
    assert len(PROGRAMS) >= 60 and len(OUT) <= len(PROGRAMS) / 10
