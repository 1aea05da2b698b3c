"""Several labels for an example: logits, weights of the positive ones, thresholds."""

import numpy as np
import torch
import torch.nn as nn


def run(prepare):
    rng = np.random.default_rng(31)
    x = torch.tensor(rng.normal(size=(24, 8)), dtype=torch.float32)
    y = torch.tensor(rng.random((24, 5)) < 0.3).float()
    positive = y.sum(dim=0)
    pos_weight = (y.shape[0] - positive) / positive.clamp(min=1.0)
    model = prepare(nn.Sequential(nn.Linear(8, 16, bias=False), nn.BatchNorm1d(16), nn.PReLU(), nn.Linear(16, 5)))
    criterion = nn.BCEWithLogitsLoss(pos_weight=pos_weight)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        predicted = (torch.sigmoid(model(x)) > 0.5).float()
    hits = (predicted * y).sum()
    precision = hits / predicted.sum().clamp(min=1)
    recall = hits / y.sum()
    exact = (predicted == y).all(dim=1).float().mean()
    return losses, precision.item(), recall.item(), exact.item()
