"""Depthwise separable convolutions, dilated and strided, over images with a channel-last mean at the end."""

import numpy as np
import torch
import torch.nn as nn


class SeparableConv(nn.Module):
    def __init__(self, cin, cout, **kwargs):
        super().__init__()
        self.depthwise = nn.Conv2d(cin, cin, 3, groups=cin, **kwargs)
        self.pointwise = nn.Conv2d(cin, cout, kernel_size=1)

    def forward(self, x):
        return self.pointwise(self.depthwise(x))


def run(prepare):
    rng = np.random.default_rng(20)
    model = prepare(
        nn.Sequential(
            SeparableConv(3, 6, padding="same", dilation=2),
            nn.ELU(),
            SeparableConv(6, 8, padding=1, stride=2),
            nn.SiLU(),
        )
    )
    head = prepare(nn.Linear(8, 2))
    x = torch.tensor(rng.normal(size=(4, 3, 9, 9)), dtype=torch.float32)
    y = torch.tensor(rng.normal(size=(4, 2)), dtype=torch.float32)
    params = [*model.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(params, lr=5e-3)
    losses = []
    for _ in range(20):
        features = model(x).permute(0, 2, 3, 1).mean(dim=(1, 2))
        loss = (head(features) - y).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
