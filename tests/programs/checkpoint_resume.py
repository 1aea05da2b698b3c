"""A training that is interrupted, saved with optimizer and schedule, and resumed from the file."""

import os
import tempfile

import numpy as np
import torch
import torch.nn as nn


def make(prepare):
    model = prepare(nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[5, 15], gamma=0.3)
    return model, optimizer, scheduler


def run(prepare):
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
