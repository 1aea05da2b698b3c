"""Optimizers, schedules, loaders, files of a training."""

import io
import math
import os
import tempfile

import numpy as np
import torch
import torch.nn as nn
from torch import optim
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LinearLR, ReduceLROnPlateau, SequentialLR
from torch.utils.data import DataLoader, Dataset, random_split


def build(prepare):
    model = prepare(nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1)))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2, amsgrad=True, weight_decay=0.02)


def run_amsgrad(prepare, train):
    """AdamW with AMSGrad, saved and loaded in the middle of the training."""
    rng = np.random.default_rng(37)
    x = torch.from_numpy(rng.normal(size=(20, 3)).astype("float32"))
    y = torch.prod(x, dim=1, keepdim=True)
    model, optimizer = build(prepare)
    losses = []
    for step in range(20):
        if step == 10:
            buffer = io.BytesIO()
            torch.save({"model": model.state_dict(), "optim": optimizer.state_dict()}, buffer)
            buffer.seek(0)
            checkpoint = torch.load(buffer)
            model, optimizer = build(prepare)
            model.load_state_dict(checkpoint["model"])
            optimizer.load_state_dict(checkpoint["optim"])
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def make(prepare):
    model = prepare(nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[5, 15], gamma=0.3)
    return model, optimizer, scheduler


def run_checkpoint_resume(prepare, train):
    """A training that is interrupted, saved with optimizer and schedule, and resumed from the file."""
    rng = np.random.default_rng(51)
    x = torch.tensor(rng.normal(size=(16, 4)), dtype=torch.float32)
    y = torch.tensor(rng.integers(0, 2, 16))
    model, optimizer, scheduler = make(prepare)
    losses = []
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "checkpoint.pt")
        for epoch in range(20):
            if epoch == 10:
                model, optimizer, scheduler = make(prepare)
                checkpoint = torch.load(path, weights_only=True)
                model.load_state_dict(checkpoint["model_state_dict"])
                optimizer.load_state_dict(checkpoint["optimizer_state_dict"])
                scheduler.load_state_dict(checkpoint["scheduler_state_dict"])
                assert checkpoint["epoch"] == 9
            model.train()
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            scheduler.step()
            losses.append(loss.item())
            checkpoint = {
                "epoch": epoch,
                "model_state_dict": model.state_dict(),
                "optimizer_state_dict": optimizer.state_dict(),
                "scheduler_state_dict": scheduler.state_dict(),
                "loss": loss.item(),
            }
            torch.save(checkpoint, path)
    model.eval()
    return losses, model(x), scheduler.get_last_lr()


def run_decay_groups(prepare, train):
    """Weight decay for matrices alone, two learning rates, gradients of a loss with L1 and L2 terms."""
    rng = np.random.default_rng(35)
    model = prepare(nn.Sequential(nn.Linear(5, 12), nn.LayerNorm(12), nn.SiLU(), nn.Linear(12, 2)))
    decay, no_decay = [], []
    for name, param in model.named_parameters():
        if param.ndim <= 1 or name.endswith(".bias"):
            no_decay.append(param)
        else:
            decay.append(param)
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": no_decay, "weight_decay": 0.0, "lr": 2e-2}]
    optimizer = torch.optim.AdamW(groups, lr=1e-2, eps=1e-6)
    x = torch.tensor(rng.normal(size=(16, 5)), dtype=torch.float32)
    y = torch.tensor(rng.normal(size=(16, 2)), dtype=torch.float32)
    losses = []
    for step in range(20):
        if step == 10:
            for group in optimizer.param_groups:
                group["lr"] *= 0.1
        out = model(x)
        l1 = sum(p.abs().sum() for p in model.parameters())
        l2 = sum((p**2).sum() for p in decay)
        loss = nn.functional.mse_loss(out, y) + 1e-3 * l1 + 1e-3 * l2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def rosenbrock(p):
    return (1 - p[0]) ** 2 + 100 * (p[1] - p[0] ** 2) ** 2


def run_nesterov(prepare, train):
    """SGD with Nesterov's momentum on Rosenbrock's function and on a network, with an exponential schedule."""
    rng = np.random.default_rng(36)
    point = torch.tensor([-0.5, 1.0], requires_grad=True)
    optimizer = torch.optim.SGD([point], lr=5e-4, momentum=0.9, nesterov=True)
    path = []
    for _ in range(20):
        optimizer.zero_grad()
        value = rosenbrock(point)
        value.backward()
        optimizer.step()
        path.append([value.item(), *point.detach().tolist()])

    net = prepare(nn.Sequential(nn.Linear(4, 10), nn.Sigmoid(), nn.Linear(10, 3), nn.LogSoftmax(dim=1)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9, dampening=0, nesterov=True, weight_decay=1e-3)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.95)
    x = torch.tensor(rng.normal(size=(15, 4)).tolist())
    y = torch.tensor(rng.integers(0, 3, 15).tolist())
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = nn.NLLLoss()(net(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return path, losses


class EarlyStopping:
    def __init__(self, patience):
        self.patience, self.best, self.bad, self.state = patience, float("inf"), 0, None

    def __call__(self, loss, model):
        if loss < self.best - 1e-4:
            self.best, self.bad = loss, 0
            self.state = {k: v.clone() for k, v in model.state_dict().items()}
        else:
            self.bad += 1
        return self.bad >= self.patience


def run_plateau(prepare, train):
    """A validation loss that no longer falls lowers the learning rate and stops the training early."""
    rng = np.random.default_rng(34)
    x, xv = (torch.from_numpy(rng.normal(size=(n, 4)).astype("float32")) for n in (16, 8))
    y, yv = x[:, :1] * x[:, 1:2], xv[:, :1] * xv[:, 1:2]
    model = prepare(nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    scheduler = ReduceLROnPlateau(optimizer, mode="min", factor=0.5, patience=1)
    stop, loss_fn, history = EarlyStopping(6), nn.MSELoss(), []
    for _ in range(20):
        model.train()
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            val = loss_fn(model(xv), yv)
        scheduler.step(val)
        history.append([loss.item(), val.item(), optimizer.param_groups[0]["lr"]])
        if stop(val.item(), model):
            break
    model.load_state_dict(stop.state)
    return history, loss_fn(model(xv), yv).item()


def run_rmsprop_adagrad(prepare, train):
    """RMSprop, centered and not, and Adagrad on the same least squares."""
    rng = np.random.default_rng(38)
    A = torch.from_numpy(rng.normal(size=(20, 4)))
    b = torch.from_numpy(rng.normal(size=20))
    makers = [
        lambda p: torch.optim.RMSprop(p, lr=0.02),
        lambda p: torch.optim.RMSprop(p, lr=0.02, alpha=0.9, momentum=0.5),
        lambda p: torch.optim.Adagrad(p, lr=0.3),
        lambda p: torch.optim.Adam(p, lr=0.1),
    ]
    results = []
    for make in makers:
        w = torch.zeros(4, dtype=torch.float64, requires_grad=True)
        optimizer = make([w])
        for _ in range(20):
            optimizer.zero_grad()
            loss = torch.norm(A @ w - b) ** 2 / 20
            loss.backward()
            optimizer.step()
            results.append(loss.item())
        results += w.tolist()
    return results


def cosine(step, warmup=5, total=20):
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / max(1, total - warmup)
    return max(0.0, 0.5 * (1.0 + math.cos(math.pi * progress)))


def steps(model, scheduler, optimizer, x, y):
    losses, rates = [], []
    for _ in range(20):
        optimizer.zero_grad()
        loss = nn.functional.huber_loss(model(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
        rates.append(scheduler.get_last_lr()[0])
        losses.append(loss.item())
    return losses, rates


def run_warmup_cosine(prepare, train):
    """Linear warmup, then a cosine; and the same as a function of the step."""
    rng = np.random.default_rng(33)
    x = torch.tensor(rng.normal(size=(16, 3)).astype("float32"))
    y = torch.tensor((rng.normal(size=(16, 1)) * 3).astype("float32"))
    results = []
    for kind in ("sequential", "lambda"):
        model = prepare(nn.Sequential(nn.Linear(3, 8), nn.Mish(), nn.Linear(8, 1)))
        optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        if kind == "lambda":
            scheduler = LambdaLR(optimizer, lr_lambda=cosine)
        else:
            warmup = LinearLR(optimizer, start_factor=0.1, total_iters=5)
            decay = CosineAnnealingLR(optimizer, T_max=15, eta_min=1e-4)
            scheduler = SequentialLR(optimizer, schedulers=[warmup, decay], milestones=[5])
        results.append(steps(model, scheduler, optimizer, x, y))
    return results


class Points(Dataset):
    def __init__(self, n):
        rng = np.random.default_rng(52)
        self.x = rng.normal(size=(n, 2)).astype(np.float32)
        self.y = (self.x[:, 0] * self.x[:, 1] > 0).astype(np.int64)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return torch.from_numpy(self.x[i]), self.y[i]


def run_data_loader(prepare, train):
    """A Dataset of one's own, random_split, two loaders, an epoch of training and one of validation."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dataset = Points(60)
    train_set, val_set = random_split(dataset, [0.8, 0.2], generator=torch.Generator().manual_seed(0))
    assert (len(train_set), len(val_set)) == (48, 12)
    assert sorted([*train_set.indices, *val_set.indices]) == list(range(60))
    train_loader = DataLoader(dataset, batch_size=15, shuffle=False, num_workers=0)
    val_loader = DataLoader(dataset, batch_size=20)
    model = prepare(nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2))).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for _ in range(5):
        model.train()
        for x, y in train_loader:
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        model.eval()
        total, correct, val_loss = 0, 0, 0.0
        with torch.no_grad():
            for x, y in val_loader:
                out = model(x.to(device))
                val_loss += nn.functional.cross_entropy(out, y.to(device), reduction="sum").item()
                correct += (out.argmax(1) == y).type(torch.float).sum().item()
                total += y.size(0)
        losses.append(val_loss / total)
    return losses, correct / total
