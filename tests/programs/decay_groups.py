"""Weight decay for matrices alone, two learning rates, gradients of a loss with L1 and L2 terms."""

import numpy as np
import torch
import torch.nn as nn


def run(prepare):
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
