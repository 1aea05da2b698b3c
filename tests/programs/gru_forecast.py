"""A two-layer GRU forecasts a wave, and rolls on with its own outputs."""

import numpy as np
import torch
import torch.nn as nn


class Forecaster(nn.Module):
    def __init__(self, hidden=10):
        super().__init__()
        self.gru = nn.GRU(input_size=1, hidden_size=hidden, num_layers=2, batch_first=True)
        self.linear = nn.Linear(hidden, 1)

    def forward(self, x, h=None):
        out, h = self.gru(x, h)
        return self.linear(out), h


def run(prepare):
    t = np.arange(0, 6, 0.25)
    waves = np.stack([np.sin(t + phase) for phase in (0.0, 1.0, 2.0)]).astype("float32")[..., None]
    data = torch.from_numpy(waves)
    model = prepare(Forecaster())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        pred, _ = model(data[:, :-1])
        loss = nn.functional.l1_loss(pred, data[:, 1:])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        pred, h = model(data)
        step, future = pred[:, -1:], []
        for _ in range(3):
            future.append(step)
            step, h = model(step, h)
    return losses, torch.cat(future, dim=1)
