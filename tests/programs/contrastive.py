"""SimCLR's loss of two views of each example, Chen et al. (2020)."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def nt_xent(z1, z2, temperature=0.5):
    n = z1.shape[0]
    z = F.normalize(torch.cat([z1, z2], dim=0), dim=1)
    sim = z @ z.T / temperature
    mask = torch.eye(2 * n, dtype=torch.bool)
    sim = sim.masked_fill(mask, float("-inf"))
    targets = torch.cat([torch.arange(n, 2 * n), torch.arange(0, n)])
    return F.cross_entropy(sim, targets)


def run(prepare):
    rng = np.random.default_rng(4)
    encoder = prepare(nn.Sequential(nn.Linear(10, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 8)))
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=3e-3, weight_decay=1e-4)
    base = rng.normal(size=(8, 10))
    losses = []
    for _ in range(20):
        views = [torch.tensor(base + 0.1 * rng.normal(size=base.shape)).float() for _ in range(2)]
        z1, z2 = (encoder(v) for v in views)
        loss = nt_xent(z1, z2)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    return losses
