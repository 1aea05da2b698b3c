"""A module with buffers that it updates itself: running mean and variance of observations."""

import numpy as np
import torch
import torch.nn as nn


class RunningMeanStd(nn.Module):
    def __init__(self, shape, epsilon=1e-4):
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("var", torch.ones(shape))
        self.register_buffer("count", torch.tensor(epsilon))

    @torch.no_grad()
    def update(self, x):
        batch_mean, batch_var, n = x.mean(0), x.var(0, unbiased=False), x.shape[0]
        delta = batch_mean - self.mean
        total = self.count + n
        self.mean += delta * n / total
        m2 = self.var * self.count + batch_var * n + delta**2 * self.count * n / total
        self.var.copy_(m2 / total)
        self.count.add_(n)

    def forward(self, x):
        if self.training:
            self.update(x)
        return (x - self.mean) / (self.var + 1e-8).sqrt()


def run(prepare):
    rng = np.random.default_rng(49)
    model = prepare(nn.Sequential(RunningMeanStd((3,)), nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(20):
        x = torch.from_numpy((5 + 2 * rng.normal(size=(16, 3))).astype(np.float32))
        y = x[:, 0:1] - x[:, 1:2]
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    state = model.state_dict()
    names = sorted(name for name, _ in model.named_buffers())
    assert names == ["0.count", "0.mean", "0.var"]
    return losses, [state[name] for name in names], model(torch.full((1, 3), 5.0))
