"""Mixup of inputs and labels, Zhang et al. (2018)."""

import numpy as np
import torch
import torch.nn as nn


def mixup_data(x, y, rng, alpha=1.0):
    lam = rng.beta(alpha, alpha)
    index = torch.from_numpy(rng.permutation(x.size(0)))
    mixed_x = lam * x + (1 - lam) * x[index, :]
    y_a, y_b = y, y[index]
    return mixed_x, y_a, y_b, lam


def mixup_criterion(criterion, pred, y_a, y_b, lam):
    return lam * criterion(pred, y_a) + (1 - lam) * criterion(pred, y_b)


def run(prepare):
    rng = np.random.default_rng(28)
    x = torch.from_numpy(rng.normal(size=(8, 1, 6, 6)).astype("float32"))
    y = torch.from_numpy(rng.integers(0, 3, 8))
    model = prepare(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    losses, correct = [], 0.0
    for _ in range(20):
        inputs, targets_a, targets_b, lam = mixup_data(x, y, rng)
        outputs = model(inputs)
        loss = mixup_criterion(criterion, outputs, targets_a, targets_b, lam)
        _, predicted = torch.max(outputs.data, 1)
        correct += (
            lam * predicted.eq(targets_a.data).cpu().sum().float()
            + (1 - lam) * predicted.eq(targets_b.data).cpu().sum().float()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, correct.item()
