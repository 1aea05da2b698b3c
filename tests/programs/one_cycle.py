"""A regression with the one-cycle schedule, one step of it for each batch."""

import numpy as np
import torch
import torch.nn as nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, TensorDataset


def run(prepare):
    rng = np.random.default_rng(32)
    x = rng.uniform(-2, 2, size=(40, 1)).astype(np.float32)
    dataset = TensorDataset(torch.from_numpy(x), torch.from_numpy(np.sin(2 * x)))
    loader = DataLoader(dataset, batch_size=10, shuffle=False, drop_last=True)
    model = prepare(nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = OneCycleLR(optimizer, max_lr=0.02, epochs=5, steps_per_epoch=len(loader), pct_start=0.3)
    losses, rates = [], []
    for _ in range(5):
        for xb, yb in loader:
            loss = nn.functional.mse_loss(model(xb), yb)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            rates.append(optimizer.param_groups[0]["lr"])
            losses.append(loss.item())
    return losses, rates
