"""What type checkers make of ordinary scripts: mypy --strict, and pyright where it is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import dlsys as dl
import pytest

SCRIPTS = {
    "tensors.py": """
from typing import assert_type

import dlsys as dl
import numpy as np

x = dl.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
assert_type(x, dl.Tensor)
assert_type(x.sum(), dl.Tensor)
assert_type((x @ x + 1).relu().softmax(-1), dl.Tensor)
assert_type(x.numpy(), np.ndarray)
assert_type(2.0 * x[0, :] == 1, dl.Tensor)
assert_type(x.max(0).indices, dl.Tensor)
assert_type(x.split(1), list[dl.Tensor])
assert_type(x.shape, tuple[int, ...])
assert_type(dl.where(x.numpy() > 0, x, 0.0), dl.Tensor)
assert_type(dl.autograd.grad(x.sum(), x), tuple[dl.Tensor | None, ...])
(x * 2).mean().backward()


@dl.no_grad()
def doubled(x: dl.Tensor) -> dl.Tensor:
    return x * 2


assert_type(doubled(x), dl.Tensor)
x.add_(1).mul_(2)
x.summ()  # wrong
dl.tensr(1)  # wrong
doubled("text")  # wrong
""",
    "training.py": """
from typing import assert_type

import dlsys as dl
import numpy as np
from dlsys import nn, optim
from dlsys.data import DataLoader, TensorDataset
from dlsys.nn import functional as F


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 8)
        self.head = nn.Sequential(nn.ReLU(), nn.Linear(8, 2))

    def forward(self, x: dl.Tensor) -> dl.Tensor:
        return self.head(F.relu(self.fc(x)))


net = Net()
optimizer = optim.Adam(net.parameters(), lr=1e-3)
schedule = optim.lr_scheduler.StepLR(optimizer, 2)
loader = DataLoader(TensorDataset(np.zeros((8, 4), "float32")), batch_size=4)
for (x,) in loader:
    optimizer.zero_grad()
    y = net(x)
    assert_type(y, dl.Tensor)
    loss = F.cross_entropy(y, dl.tensor([0, 1, 0, 1]))
    assert_type(loss, dl.Tensor)
    loss.backward()
    optimizer.step()
    schedule.step()
    print(float(loss), net.fc.weight.shape, net.head[1].weight.grad)
y = net(dl.randn(2, 4))
assert_type(F.dropout(F.silu(y), 0.1), dl.Tensor)
assert_type(net.fc.weight * 2, dl.Tensor)
output, (h, c) = nn.LSTM(4, 8)(dl.randn(3, 2, 4))
assert_type(output, dl.Tensor)
nn.Liner(2, 2)  # wrong
net.fc.wieght  # wrong
net.feature  # wrong
F.rellu(y)  # wrong
F.dropout(y, probability=0.1)  # wrong
y.half()  # wrong
""",
    "graphs.py": """
from typing import assert_type

import dlsys as dl
import numpy as np
from dlsys import autodiff as ad

X = ad.Variable("X")
W = ad.Parameter(np.ones((4, 2), "float32"), "W")
y = ad.relu_op(X @ W)
assert_type(y, dl.Tensor)
assert_type(ad.where_op(y > 1, y, 0.0).softmax(-1), dl.Tensor)
(gradient,) = ad.gradients(ad.sum_op(y), [W])
executor = ad.Executor([y, gradient], ctx=dl.cpu(0))
values = executor.run({X: np.ones((3, 4), "float32")}, convert_to_numpy_ret_vals=True)
executor.compile_funcs({X: (3, 4)})
print(values[0].shape, executor.groups())
executor.rnu({})  # wrong
ad.relu_opp(y)  # wrong
""",
}
CHECKERS = {"mypy": [sys.executable, "-m", "mypy", "--strict"], "pyright": ["pyright"]}


@pytest.mark.slow
@pytest.mark.parametrize("checker", CHECKERS)
def test_checkers_accept_scripts_and_find_typing_errors(checker: str, tmp_path: Path) -> None:
    if checker == "pyright" and shutil.which("pyright") is None:
        pytest.skip("pyright is not installed")
    for name, text in SCRIPTS.items():
        (tmp_path / name).write_text(text.lstrip(), encoding="utf-8")
    package = str(Path(dl.__file__).parents[1])
    (tmp_path / "pyrightconfig.json").write_text(f'{{"extraPaths": ["{package}"]}}', encoding="utf-8")
    installed = "site-packages" in package  # which mypy finds by itself, and refuses to be told
    environment = {**os.environ, **({} if installed else {"PYTHONPATH": package, "MYPYPATH": package})}
    command = [*CHECKERS[checker], *SCRIPTS]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900)
    lines = [line for line in done.stdout.splitlines() if "error" in line and ":" in line and "Found" not in line]
    for name, text in SCRIPTS.items():
        wanted = {i for i, line in enumerate(text.lstrip().splitlines(), 1) if "# wrong" in line}
        found = {int(line.split(f"{name}:")[1].split(":")[0]) for line in lines if f"{name}:" in line}
        assert found == wanted, f"{name}: {done.stdout}{done.stderr}"
