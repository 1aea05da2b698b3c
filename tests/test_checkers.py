"""What type checkers make of an ordinary script: mypy --strict, and pyright where it is installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import dlsys as dl
import pytest
from helpers import python

SCRIPT = """from typing import assert_type

import dlsys as dl
import numpy as np
from dlsys import autodiff as ad
from dlsys import nn, optim
from dlsys.data import DataLoader, TensorDataset
from dlsys.nn import functional as F

x = dl.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
assert_type((x @ x + 1).relu().softmax(-1).sum(), dl.Tensor)
assert_type(x.numpy(), np.ndarray)
assert_type(2.0 * x[0, :] == 1, dl.Tensor)
assert_type(x.max(0).indices, dl.Tensor)
assert_type(x.split(1), list[dl.Tensor])
assert_type(x.shape, tuple[int, ...])
assert_type(dl.where(x.numpy() > 0, x, 0.0), dl.Tensor)
assert_type(dl.autograd.grad(x.sum(), x), tuple[dl.Tensor | None, ...])


@dl.no_grad()
def doubled(x: dl.Tensor) -> dl.Tensor:
    return x * 2


assert_type(doubled(x), dl.Tensor)
x.add_(1).mul_(2)
x.summ()  # wrong
dl.tensr(1)  # wrong
doubled("text")  # wrong


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
for (x,) in DataLoader(TensorDataset(np.zeros((8, 4), "float32")), batch_size=4):
    optimizer.zero_grad()
    loss = F.cross_entropy(net(x), dl.tensor([0, 1, 0, 1]))
    assert_type(loss, dl.Tensor)
    loss.backward()
    optimizer.step()
    schedule.step()
    print(float(loss), net.fc.weight.shape, net.head[1].weight.grad)
y = net(dl.randn(2, 4))
assert_type(F.dropout(F.silu(y), 0.1) * net.fc.weight, dl.Tensor)
output, (h, c) = nn.LSTM(4, 8)(dl.randn(3, 2, 4))
assert_type(output, dl.Tensor)
nn.Liner(2, 2)  # wrong
net.fc.wieght  # wrong
net.feature  # wrong
F.rellu(y)  # wrong
F.dropout(y, probability=0.1)  # wrong
y.half()  # wrong
W = ad.Parameter(np.ones((4, 2), "float32"), "W")
z = ad.relu_op(ad.Variable("X") @ W)
assert_type(ad.where_op(z > 1, z, 0.0), dl.Tensor)
executor = ad.Executor([z, *ad.gradients(ad.sum_op(z), [W])], ctx=dl.cpu(0))
print(executor.run({}, convert_to_numpy_ret_vals=True)[0].shape, executor.groups())
executor.rnu({})  # wrong
ad.relu_opp(z)  # wrong
"""
CHECKERS = {"mypy": ["-m", "mypy", "--strict"], "pyright": ["-m", "pyright"]}


@pytest.mark.slow
@pytest.mark.parametrize("checker", CHECKERS)
def test_checkers_accept_a_script_and_find_its_typing_errors(checker: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(checker) is None:
        pytest.skip(f"{checker} is not installed")
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    package = str(Path(dl.__file__).parents[1])
    (tmp_path / "pyrightconfig.json").write_text(f'{{"extraPaths": ["{package}"]}}', encoding="utf-8")
    installed = "site-packages" in package  # which mypy finds by itself, and refuses to be told
    environment = {} if installed else {"PYTHONPATH": package, "MYPYPATH": package}
    done = python(*CHECKERS[checker], "script.py", status=None, cwd=tmp_path, **environment)
    wanted = {i for i, line in enumerate(SCRIPT.splitlines(), 1) if "# wrong" in line}
    lines = [line for line in done.stdout.splitlines() if "script.py:" in line and "error" in line]
    found = {int(line.split("script.py:")[1].split(":")[0]) for line in lines}
    assert found == wanted, done.stdout + done.stderr
