"""Kernel ridge regression by gradient steps on the dual weights, and the length scale with them."""

import numpy as np
import torch


def rbf(a, b, scale):
    return torch.exp(-torch.cdist(a, b).pow(2) / (2 * scale**2))


def run(prepare):
    rng = np.random.default_rng(44)
    x = torch.from_numpy(np.sort(rng.uniform(-3, 3, (15, 1)), axis=0).astype(np.float32))
    y = torch.sin(x).squeeze() + 0.1 * torch.from_numpy(rng.normal(size=15).astype(np.float32))
    alpha = torch.zeros(15, requires_grad=True)
    log_scale = torch.tensor(0.0, requires_grad=True)
    optimizer = torch.optim.Adam([{"params": [alpha]}, {"params": [log_scale], "lr": 0.01}], lr=0.05)
    losses = []
    for _ in range(20):
        K = rbf(x, x, log_scale.exp())
        residual = y - K @ alpha
        loss = residual.dot(residual) + 0.1 * alpha @ K @ alpha
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    test = torch.linspace(-3, 3, steps=7).reshape(-1, 1)
    with torch.no_grad():
        prediction = rbf(test, x, log_scale.exp()) @ alpha
    return losses, prediction.numpy()
