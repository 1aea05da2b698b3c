"""One trunk, two heads, losses weighed by learned uncertainties, Kendall et al. (2018)."""

import numpy as np
import torch
import torch.nn as nn


class MultiTask(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh())
        self.heads = nn.ModuleDict({"class": nn.Linear(20, 3), "value": nn.Linear(20, 1)})
        self.log_vars = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        h = self.trunk(x)
        return {name: head(h) for name, head in self.heads.items()}


def run(prepare):
    rng = np.random.default_rng(11)
    x = torch.as_tensor(rng.normal(size=(16, 6)).astype("float32"))
    labels = torch.as_tensor(rng.integers(0, 3, 16))
    values = torch.as_tensor(rng.normal(size=16).astype("float32"))
    model = prepare(MultiTask())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    ce, l1 = nn.CrossEntropyLoss(), nn.SmoothL1Loss()
    losses = []
    for _ in range(20):
        out = model(x)
        task_losses = torch.stack([ce(out["class"], labels), l1(out["value"].squeeze(-1), values)])
        loss = (torch.exp(-model.log_vars) * task_losses + model.log_vars).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(task_losses.tolist() + [loss.item()])
    return losses
