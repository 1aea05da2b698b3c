"""Linear warmup, then a cosine; and the same as a function of the step."""

import math

import numpy as np
import torch
from torch import nn, optim
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LinearLR, SequentialLR


def cosine(step, warmup=5, total=20):
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / max(1, total - warmup)
    return max(0.0, 0.5 * (1.0 + math.cos(math.pi * progress)))


def train(model, scheduler, optimizer, x, y):
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


def run(prepare):
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
        results.append(train(model, scheduler, optimizer, x, y))
    return results
