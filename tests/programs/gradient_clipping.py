"""A recurrent network whose gradients are clipped by value, by norm, and looked at."""

import numpy as np
import torch
import torch.nn as nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.RNN(3, 12, batch_first=True)
        self.head = nn.Linear(12, 1)

    def forward(self, x):
        out, _ = self.rnn(x)
        return self.head(out[:, -1, :])


def run(prepare):
    rng = np.random.default_rng(9)
    x = torch.from_numpy(rng.normal(size=(6, 7, 3)).astype("float32"))
    y = 10 * x.sum(dim=(1, 2)).unsqueeze(1)
    model = prepare(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses, norms = [], []
    for step in range(20):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        if step % 2:
            nn.utils.clip_grad_value_(model.parameters(), 0.5)
        else:
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0).item())
        total = torch.sqrt(sum(p.grad.pow(2).sum() for p in model.parameters() if p.grad is not None))
        norms.append(total.item())
        optimizer.step()
        losses.append(loss.item())
    return losses, norms
