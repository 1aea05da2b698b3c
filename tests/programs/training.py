"""What stands around a step: schedules, loaders, checkpoints, meters."""

import math
import os
import tempfile

import numpy as np
import torch
import torch.nn as nn
from torch import optim
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LinearLR, SequentialLR
from torch.utils.data import DataLoader, Dataset, random_split


def make(prepare):
    model = prepare(nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[5, 15], gamma=0.3)
    return model, optimizer, scheduler


def run_checkpoint_and_resume(prepare, train):
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


def run_warmup_and_cosine(prepare, train):
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


class AverageMeter:
    def __init__(self):
        self.sum, self.count = 0.0, 0

    def update(self, val, n=1):
        self.sum += val * n
        self.count += n

    @property
    def avg(self):
        return self.sum / self.count


def accuracy(output, target, topk=(1,)):
    with torch.no_grad():
        maxk = max(topk)
        batch_size = target.size(0)
        _, pred = output.topk(maxk, 1, True, True)
        pred = pred.t()
        correct = pred.eq(target.view(1, -1).expand_as(pred))
        res = []
        for k in topk:
            correct_k = correct[:k].reshape(-1).float().sum(0, keepdim=True)
            res.append(correct_k.mul_(100.0 / batch_size))
        return res


def run_top_k_accuracy(prepare, train):
    """The meters of PyTorch's ImageNet example: accuracy over the k best, averages, a mean per class."""
    rng = np.random.default_rng(62)
    model = prepare(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 6)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    losses, top1, top3 = AverageMeter(), AverageMeter(), AverageMeter()
    history = []
    for _ in range(20):
        images = torch.from_numpy(rng.normal(size=(16, 8)).astype("float32"))
        target = images[:, :6].argmax(dim=1)
        output = model(images)
        loss = nn.functional.cross_entropy(output, target)
        acc1, acc3 = accuracy(output, target, topk=(1, 3))
        losses.update(loss.item(), images.size(0))
        top1.update(acc1[0].item(), images.size(0))
        top3.update(acc3[0].item(), images.size(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
    per_class = []
    for c in range(6):
        mask = target == c
        if mask.any():
            per_class.append((output[mask].argmax(1) == c).float().mean().item())
    return history, losses.avg, top1.avg, top3.avg, per_class
