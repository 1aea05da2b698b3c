"""What stands around a step: loaders and checkpoints."""

import os
import tempfile

import numpy as np
import torch
import torch.nn as nn
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
