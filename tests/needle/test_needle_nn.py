"""needle's initial values, layers, optimizers, recurrent networks, attention, data: hw2 to hw4, and two programs."""

from __future__ import annotations

import gzip
import itertools
import pickle
from pathlib import Path
from typing import Any

import dlsys.needle as ndl
import numpy as np
import pytest
from beside_torch import close
from dlsys.data import CIFAR10
from dlsys.errors import DataError, DeviceError, DTypeError, GraphError, ShapeError
from dlsys.needle import backend_ndarray as nd
from dlsys.needle import nn
from helpers import error_of
from optional import torch

RNG = np.random.default_rng(3)
LIMIT = 1e-4  # of sums over steps


def drawn(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("float32")


def normalized(x: np.ndarray, axes: Any) -> np.ndarray:
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-5)


def test_initial_values_are_numpys_draws() -> None:
    given = {"device": ndl.cpu(), "dtype": "float32", "requires_grad": True}
    for name, factor, words in (
        ("xavier_uniform", 1.5 * np.sqrt(6 / 300), {"gain": 1.5}), ("kaiming_uniform", np.sqrt(6 / 100), {}),
        ("xavier_normal", np.sqrt(2 / 300), {}), ("kaiming_normal", np.sqrt(2 / 100), {"nonlinearity": "relu"}),
    ):  # fmt: skip
        np.random.seed(3)
        w = getattr(ndl.init, name)(100, 200, **words, **given)
        np.random.seed(3)
        unit = np.random.rand(100, 200) * 2 - 1 if "uniform" in name else np.random.randn(100, 200)
        np.testing.assert_allclose(w.numpy(), factor * unit, rtol=1e-5, atol=1e-7)
        assert w.requires_grad and isinstance(w, ndl.Tensor)
    assert ndl.init.kaiming_uniform(16 * 9, 8 * 9, shape=(3, 3, 16, 8)).shape == (3, 3, 16, 8)
    w = ndl.init.rand(50, 50, low=-1, high=3, device=ndl.cpu())
    assert -1 <= w.numpy().min() < -0.9 and 2.9 < w.numpy().max() < 3 and not w.requires_grad
    assert ndl.init.constant(2, 3, c=4.0).tolist() == [[4.0] * 3] * 2
    assert ndl.init.one_hot(3, ndl.Tensor([2, 0]), device=ndl.cpu()).tolist() == [[0, 0, 1], [1, 0, 0]]
    assert "from 0 to 2" in error_of(GraphError, ndl.init.one_hot, 3, np.array([3]))
    assert 0.2 < ndl.init.randb(40, 40, p=0.3).numpy().mean() < 0.4
    like = ndl.init.zeros(2, dtype="float64")
    assert ndl.init.ones_like(like).dtype == "float64" and ndl.init.zeros_like(like).tolist() == [0, 0]
    np.random.seed(1337)
    f = nn.Linear(7, 4)
    np.random.seed(1337)
    for value, fan_in in ((f.weight, 7), (f.bias, 4)):
        wanted = (np.random.rand(*value.shape) * 2 - 1) * np.sqrt(6 / fan_in)
        np.testing.assert_allclose(value.numpy(), wanted, rtol=1e-5)


def test_optimizers_step_as_needles() -> None:
    draw = np.random.default_rng(2)
    start, grads = draw.standard_normal((4, 3)), [draw.standard_normal((4, 3)) for _ in range(3)]
    p, q = (nn.Parameter(start, dtype="float64") for _ in range(2))
    sgd = ndl.optim.SGD([p], lr=0.1, momentum=0.9, weight_decay=0.01)
    adam = ndl.optim.Adam([q], lr=0.1, beta1=0.8, beta2=0.99, eps=1e-8, weight_decay=0.01)
    (x, u), (y, m, v) = (start, 0.0), (start, 0.0, 0.0)
    for t, g in enumerate(grads, 1):
        p.grad, q.grad = (ndl.Tensor(g, dtype="float64") for _ in range(2))
        sgd.step(), adam.step()
        u = 0.9 * u + 0.1 * (g + 0.01 * x)
        x = x - 0.1 * u
        h = g + 0.01 * y
        m, v = 0.8 * m + 0.2 * h, 0.99 * v + 0.01 * h * h
        y = y - 0.1 * (m / (1 - 0.8**t)) / (np.sqrt(v / (1 - 0.99**t)) + 1e-8)
        np.testing.assert_allclose(p.numpy(), x, rtol=1e-12)
        np.testing.assert_allclose(q.numpy(), y, rtol=1e-10)
    adam.reset_grad()
    assert q.grad is None


def test_norms_are_needles() -> None:
    x, z = drawn(8, 5), drawn(2, 5, 3, 4)
    norm = nn.BatchNorm1d(5, momentum=0.3)
    np.testing.assert_allclose(norm(ndl.Tensor(x)).numpy(), normalized(x, 0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(norm.running_mean.numpy(), 0.3 * x.mean(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(norm.running_var.numpy(), 0.7 + 0.3 * x.var(0), rtol=1e-4)  # biased
    norm.eval()
    mean, var = norm.running_mean.numpy(), norm.running_var.numpy()
    np.testing.assert_allclose(norm(ndl.Tensor(x)).numpy(), (x - mean) / np.sqrt(var + 1e-5), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(nn.BatchNorm2d(5)(ndl.Tensor(z)).numpy(), normalized(z, (0, 2, 3)), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(nn.LayerNorm1d(5)(ndl.Tensor(x)).numpy(), normalized(x, 1), rtol=1e-4, atol=1e-5)


def test_modules_are_found_in_lists_and_dictionaries_and_may_refer_to_each_other() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = [nn.Linear(2, 3), (nn.Linear(3, 3), nn.Dropout(0.5))]
            self.named = {"a": nn.Linear(3, 1, bias=False), "p": nn.Parameter(np.ones(2))}

    model = Model()
    assert len(model.parameters()) == 6 and len(model._children()) == 4
    model.eval()
    assert not model.parts[1][1].training and model.train().parts[1][1].training
    np.random.seed(0)
    x = ndl.init.ones(3, 4)
    found = nn.Dropout(0.25)(x).numpy()
    np.random.seed(0)
    np.testing.assert_allclose(found, (np.random.rand(3, 4) <= 0.75) / 0.75, rtol=1e-6)
    circle = nn.Sequential(nn.Linear(2, 3), nn.Residual(nn.Linear(3, 3)))
    circle.modules[0].parent, circle.table = circle, [circle, {"again": circle.modules}]
    assert len(circle.parameters()) == 4 and len(circle._children()) == 3
    circle.table.append(circle.table)
    assert not circle.eval().modules[1].fn.training and len(circle.modules[0].parameters()) == 4


def test_conv_module_keeps_extents() -> None:
    f = nn.Conv(3, 4, 3, stride=2, bias=True, device=ndl.cpu())
    x = ndl.init.rand(2, 3, 9, 9, requires_grad=True)
    g = torch.nn.Conv2d(3, 4, 3, stride=2, padding=1)
    assert f.weight.shape == (3, 3, 3, 4)
    g.weight.data, g.bias.data = torch.tensor(f.weight.numpy().transpose(3, 2, 0, 1)), torch.tensor(f.bias.numpy())
    close(f(x).numpy(), g(torch.tensor(x.numpy())))


def set_from(cell: Any, theirs: Any, suffix: str = "", bias: bool = True) -> None:
    cell.W_ih = nn.Parameter(getattr(theirs, f"weight_ih{suffix}").detach().numpy().T, device=ndl.cpu())
    cell.W_hh = nn.Parameter(getattr(theirs, f"weight_hh{suffix}").detach().numpy().T, device=ndl.cpu())
    for name in ("bias_ih", "bias_hh") if bias else ():
        setattr(cell, name, nn.Parameter(getattr(theirs, f"{name}{suffix}").detach().numpy()))


@pytest.mark.slow
def test_recurrent_networks_are_pytorchs() -> None:
    x, h0, c0 = drawn(4, 3), drawn(4, 5), drawn(4, 5)
    for bias, nonlinearity in itertools.product((True, False), ("tanh", "relu")):
        theirs = torch.nn.RNNCell(3, 5, bias, nonlinearity)
        mine = nn.RNNCell(3, 5, device=ndl.cpu(), bias=bias, nonlinearity=nonlinearity)
        set_from(mine, theirs, bias=bias)
        h, wanted = mine(ndl.Tensor(x), None), theirs(torch.tensor(x))
        close(h.numpy(), wanted)
        h.sum().backward(), wanted.sum().backward()
        close(mine.W_ih.grad.numpy(), theirs.weight_ih.grad.T)
    theirs, mine = torch.nn.LSTMCell(3, 5), nn.LSTMCell(3, 5)
    set_from(mine, theirs)
    state = mine(ndl.Tensor(x), (ndl.Tensor(h0), ndl.Tensor(c0)))
    for found, value in zip(state, theirs(torch.tensor(x), (torch.tensor(h0), torch.tensor(c0))), strict=True):
        close(found.numpy(), value)
    assert "tanh or relu" in error_of(GraphError, nn.RNNCell, 3, 5, True, "sigmoid")
    x, h0, c0 = drawn(6, 2, 3), drawn(2, 2, 5), drawn(2, 2, 5)
    theirs, lstm_theirs = torch.nn.RNN(3, 5, 2, nonlinearity="relu"), torch.nn.LSTM(3, 5, 2)
    mine = nn.RNN(3, 5, 2, True, "relu", device=ndl.cpu(), dtype="float32")
    lstm = nn.LSTM(3, 5, 2, True, device=ndl.cpu(), dtype="float32")
    for k in range(2):
        set_from(mine.rnn_cells[k], theirs, f"_l{k}")
        set_from(lstm.lstm_cells[k], lstm_theirs, f"_l{k}")
    for state in ((), (h0,)):
        output, h = mine(ndl.Tensor(x), *map(ndl.Tensor, state))
        wanted, last = theirs(torch.tensor(x), *map(torch.tensor, state))
        close(output.numpy(), wanted), close(h.numpy(), last)
    output.sum().backward(), wanted.sum().backward()
    for k in range(2):
        close(mine.rnn_cells[k].W_ih.grad.numpy(), getattr(theirs, f"weight_ih_l{k}").grad.T, limit=LIMIT)
    found, state = lstm(ndl.Tensor(x), (ndl.Tensor(h0), ndl.Tensor(c0)))
    wanted, last = lstm_theirs(torch.tensor(x), (torch.tensor(h0), torch.tensor(c0)))
    for a, b in zip((found, *state), (wanted, *last), strict=True):
        close(a.numpy(), b)
    assert len(lstm.parameters()) == 8


def test_attention_is_pytorchs() -> None:
    q, k, v = (ndl.Tensor(drawn(2, 3, 4, 8)) for _ in range(3))
    for causal in (False, True):
        result, weights = nn.MultiHeadAttention(dropout=0.0, causal=causal, device=ndl.cpu())(q, k, v)
        parts = [torch.tensor(a.numpy()) for a in (q, k, v)]
        close(result.numpy(), torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=causal))
        np.testing.assert_allclose(weights.numpy().sum(-1), 1, rtol=1e-5)
        assert np.all(np.triu(weights.numpy(), 1) == 0) == causal
    _, weights = nn.MultiHeadAttention(causal=True)(ndl.Tensor(q.numpy()[:, :, :2]), k, v)  # the last query sees all
    assert np.all(weights.numpy()[..., 1, :] > 0) and np.all(weights.numpy()[..., 0, 3] == 0)
    assert "do not fit" in error_of(ShapeError, nn.MultiHeadAttention(), q, ndl.Tensor(k.numpy()[:, :, :3]), v)


@pytest.mark.slow
def test_transformer() -> None:
    x = drawn(2, 5, 6)
    layer = nn.AttentionLayer(6, 2, 4, k_features=3, v_features=7, out_features=9, causal=False)
    assert layer(ndl.Tensor(x), ndl.Tensor(drawn(2, 4, 3)), ndl.Tensor(drawn(2, 4, 7))).shape == (2, 5, 9)
    model = nn.Transformer(6, 16, 2, num_head=2, dim_head=4, causal=True, device=ndl.cpu(), batch_first=True)
    result, state = model(ndl.Tensor(x))
    changed = x.copy()
    changed[:, 3:] += 1  # the future
    again = model(ndl.Tensor(changed))[0].numpy()
    np.testing.assert_allclose(again[:, :3], result.numpy()[:, :3], rtol=1e-5, atol=1e-5)
    assert np.abs(again[:, 3:] - result.numpy()[:, 3:]).max() > 0.1 and not state.numpy().any()
    model.batch_first = False
    swapped = model(ndl.Tensor(x.swapaxes(0, 1)))[0].numpy()
    np.testing.assert_allclose(swapped, result.numpy().swapaxes(0, 1), rtol=1e-5, atol=1e-5)
    result.sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    short = nn.Transformer(6, 16, 1, num_head=2, sequence_len=4, batch_first=True)
    assert "(2, 5, 6)" in error_of(ShapeError, short, ndl.Tensor(x))


def test_numbers_of_classes_may_be_floats() -> None:
    logits, classes = drawn(5, 4), np.array([0, 3, 1, 1, 2], "uint8")
    given = ndl.Tensor(classes)
    assert given.dtype == "float32"
    wanted = torch.nn.functional.cross_entropy(torch.tensor(logits), torch.tensor(classes).long())
    close(nn.SoftmaxLoss()(ndl.Tensor(logits), given).numpy(), wanted)
    table = nn.Embedding(4, 3, device=ndl.cpu(), dtype="float32")
    np.testing.assert_array_equal(table(given).numpy(), table.weight.numpy()[classes])
    half = ndl.Tensor([0.0, 1.5])
    for call in (lambda: table(half), lambda: nn.SoftmaxLoss()(ndl.Tensor(logits[:2]), half)):
        assert "not whole" in error_of(DTypeError, call)


def test_loaders() -> None:
    data = ndl.data.NDArrayDataset(RNG.standard_normal((10, 3)), np.arange(10))
    loader = ndl.data.DataLoader(dataset=data, batch_size=4, device=ndl.cpu(), dtype="float32")
    x, y = next(iter(loader))
    assert x.dtype == "float32" and y.tolist() == [0, 1, 2, 3] and isinstance(x.cached_data, nd.NDArray)
    assert len(loader) == len(list(loader)) == 3 and isinstance(x, ndl.Tensor)
    np.random.seed(7)
    order = [int(i) for _, y in ndl.data.DataLoader(data, 4, shuffle=True) for i in y.tolist()]
    np.random.seed(7)
    np.random.shuffle(want := np.arange(10))
    assert order == want.tolist()
    assert "not on cuda()" in error_of(DeviceError, next, iter(ndl.data.DataLoader(data, 4, device=ndl.cuda())))
    nothing = ndl.data.DataLoader(ndl.data.NDArrayDataset(np.zeros((0, 2)), np.zeros(0)), 4, shuffle=True)
    assert len(nothing) == 0 and list(nothing) == []


def idx(values: np.ndarray) -> bytes:
    return bytes((0, 0, 8, values.ndim)) + b"".join(n.to_bytes(4, "big") for n in values.shape) + values.tobytes()


def test_mnist(folder: Path) -> None:
    pixels, labels = RNG.integers(0, 256, (6, 5, 4), np.uint8), RNG.integers(0, 10, 6).astype(np.uint8)
    images, numbers = folder / "images.gz", folder / "labels"
    images.write_bytes(gzip.compress(idx(pixels)))
    numbers.write_bytes(idx(labels))
    plain = ndl.data.MNISTDataset(images, numbers)
    assert len(plain) == 6 and plain[1][0].shape == (5, 4, 1) and plain[1:3][1].tolist() == labels[1:3].tolist()
    np.testing.assert_allclose(plain[:][0][..., 0], pixels / np.float32(255), rtol=1e-6)
    tforms = [ndl.data.RandomFlipHorizontal(p=1.0), ndl.data.RandomCrop(padding=1)]
    np.random.seed(0)
    changed = ndl.data.MNISTDataset(images, numbers, transforms=tforms)[2][0]
    np.random.seed(0)
    np.random.rand()
    down, right = np.random.randint(-1, 2, size=2)
    flipped = np.pad(plain[2][0][:, ::-1], ((1, 1), (1, 1), (0, 0)))
    np.testing.assert_array_equal(changed, flipped[1 + down : 6 + down, 1 + right : 5 + right])
    assert "images of shape (6,)" in error_of(DataError, ndl.data.MNISTDataset, numbers, numbers)


def test_cifar10_as_records_and_as_pickles(folder: Path) -> None:
    (folder / "test_batch.bin").write_bytes(RNG.integers(0, 10, 3 * 3073, np.uint8).tobytes())
    cifar = ndl.data.CIFAR10Dataset(str(folder), train=False, p=0.5, transforms=[ndl.data.RandomFlipHorizontal(1)])
    unchanged = CIFAR10(folder, train=False)
    np.testing.assert_array_equal(cifar[1][0], unchanged[1][0][:, :, ::-1])
    images, _ = next(iter(ndl.data.DataLoader(cifar, 2)))
    np.testing.assert_array_equal(images.numpy(), unchanged[:2][0][..., ::-1])
    pickled = folder / "test_batch"
    pickled.write_bytes(pickle.dumps({b"data": unchanged.pixels.reshape(3, -1), b"labels": [3, 1, 2]}, protocol=2))
    read = ndl.data.CIFAR10Dataset(folder, train=False)
    np.testing.assert_array_equal(read[:][0], unchanged[:][0])
    assert read[:][1].tolist() == [3, 1, 2] and read[1][0].shape == (3, 32, 32)
    for content, told in ((pickle.dumps({b"data": folder, b"labels": []}), "is not read"), (b"no pickle", "no batch")):
        pickled.write_bytes(content)
        assert told in error_of(DataError, ndl.data.CIFAR10Dataset, folder, train=False)


class ResidualBlock(nn.Module):
    """hw2's."""

    def __init__(self, dim: int, hidden_dim: int, norm: Any = nn.BatchNorm1d, drop_prob: float = 0.1) -> None:
        super().__init__()
        first = nn.Linear(dim, hidden_dim), norm(dim=hidden_dim, device=ndl.cpu()), nn.ReLU(), nn.Dropout(drop_prob)
        inner = nn.Sequential(*first, nn.Linear(hidden_dim, dim), norm(dim=dim))
        self.block = nn.Sequential(nn.Residual(inner), nn.ReLU())

    def forward(self, x: Any) -> Any:
        return self.block(x)


@pytest.mark.slow
def test_mlp_resnet_trains() -> None:
    np.random.seed(0)
    draw = np.random.default_rng(0)
    centres = 2 * draw.standard_normal((4, 12))
    y = draw.integers(0, 4, 128)
    x = (centres[y] + draw.standard_normal((128, 12))).astype("float32")
    loader = ndl.data.DataLoader(dataset=ndl.data.NDArrayDataset(x, y), batch_size=32, shuffle=True)
    for norm, make in (
        (nn.BatchNorm1d, lambda p: ndl.optim.Adam(p, lr=0.01, beta1=0.9, beta2=0.99, weight_decay=1e-4)),
        (nn.LayerNorm1d, lambda p: ndl.optim.SGD(p, lr=0.5, momentum=0.9, weight_decay=1e-4)),
    ):
        block = ResidualBlock(16, 8, norm)
        model = nn.Sequential(nn.Flatten(), nn.Linear(12, 16), nn.ReLU(), block, nn.Linear(16, 4))
        opt, loss_fn = make(model.parameters()), nn.SoftmaxLoss()
        losses = []
        for _ in range(5):
            for batch in loader:
                opt.reset_grad()
                loss = loss_fn(model(batch[0]), batch[1])
                loss.backward()
                opt.step()
                losses.append(float(loss.numpy()))
        model.eval()
        right = model(ndl.Tensor(x)).numpy().argmax(1) == y
        assert losses[-1] < losses[0] / 2 and right.mean() > 0.9, (norm, losses, right.mean())


class LanguageModel(nn.Module):
    """hw4's, with whole numbers as tokens."""

    def __init__(self, embedding_size: int, output_size: int, hidden_size: int, device: Any = None) -> None:
        super().__init__()
        self.embedding = nn.Embedding(output_size, embedding_size, device=device, dtype="float32")
        self.model = nn.LSTM(embedding_size, hidden_size, num_layers=1, device=device, dtype="float32")
        self.linear = nn.Linear(hidden_size, output_size, device=device, dtype="float32")

    def forward(self, x: Any, h: Any = None) -> Any:
        seq_len, batch = x.shape
        out, h = self.model(self.embedding(x), h)
        return self.linear(out.reshape((seq_len * batch, out.shape[2]))), h


@pytest.mark.slow
def test_language_model_trains(folder: Path) -> None:
    np.random.seed(0)
    for name in ("train.txt", "test.txt"):
        (folder / name).write_text("the cat sat on the mat\nthe dog sat on the log\n" * 20)
    corpus = ndl.data.Corpus(str(folder), max_lines=40)
    assert len(corpus.dictionary) == 8
    data = ndl.data.batchify(corpus.train, batch_size=4, device=ndl.cpu(), dtype="float32")
    assert data.dtype == np.float32 and data.shape == (70, 4)
    x, y = ndl.data.get_batch(data, 0, 5, device=ndl.cpu(), dtype="int64")
    assert y.dtype == "int64" and x.shape == (5, 4) and y.shape == (20,)
    np.testing.assert_array_equal(y.numpy(), data[1:6].reshape(-1))
    data = ndl.data.batchify(corpus.train, 4)
    model = LanguageModel(8, len(corpus.dictionary), 16, device=ndl.cpu())
    opt, loss_fn = ndl.optim.SGD(model.parameters(), lr=4.0), nn.SoftmaxLoss()
    losses = []
    for _ in range(4):
        h = tuple(ndl.init.zeros(1, 4, 16) for _ in range(2))
        for i in range(0, data.shape[0] - 5, 5):
            x, y = ndl.data.get_batch(data, i, 5, device=ndl.cpu())
            opt.reset_grad()
            out, h = model(x, h)
            h = tuple(part.detach() for part in h)
            loss = loss_fn(out, y)
            loss.backward()
            norm = opt.clip_grad_norm(max_norm=0.25)
            after = np.sqrt(sum((p.grad.numpy() ** 2).sum() for p in model.parameters()))
            np.testing.assert_allclose(after, min(norm, 0.25), rtol=1e-3)
            opt.step()
            losses.append(float(loss.numpy()))
    assert losses[-1] < 0.6 * losses[0], losses
    assert all(p.grad is not None for p in model.parameters())
