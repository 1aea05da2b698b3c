"""Inverted residuals with depthwise convolutions, ReLU6 and Hardswish, squeeze and excitation."""

import numpy as np
import torch
from torch import nn


class SqueezeExcite(nn.Module):
    def __init__(self, channels, reduction=4):
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Sequential(
            nn.Linear(channels, channels // reduction, bias=False), nn.ReLU(inplace=True),
            nn.Linear(channels // reduction, channels, bias=False), nn.Hardsigmoid(),
        )  # fmt: skip

    def forward(self, x):
        b, c, _, _ = x.size()
        y = self.pool(x).view(b, c)
        return x * self.fc(y).view(b, c, 1, 1).expand_as(x)


class InvertedResidual(nn.Module):
    def __init__(self, inp, oup, stride, expand, act):
        super().__init__()
        hidden = inp * expand
        self.use_res = stride == 1 and inp == oup
        self.conv = nn.Sequential(
            nn.Conv2d(inp, hidden, 1, bias=False), nn.BatchNorm2d(hidden), act(),
            nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False), nn.BatchNorm2d(hidden), act(),
            SqueezeExcite(hidden),
            nn.Conv2d(hidden, oup, 1, bias=False), nn.BatchNorm2d(oup),
        )  # fmt: skip

    def forward(self, x):
        return x + self.conv(x) if self.use_res else self.conv(x)


def run(prepare):
    rng = np.random.default_rng(19)
    model = prepare(
        nn.Sequential(
            InvertedResidual(4, 4, 1, 2, nn.ReLU6), InvertedResidual(4, 8, 2, 2, nn.Hardswish),
            nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten(), nn.Linear(8, 3),
        )
    )  # fmt: skip
    x = torch.from_numpy(rng.normal(size=(4, 4, 8, 8)).astype(np.float32))
    y = torch.tensor([0, 1, 2, 0])
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.002, alpha=0.9, momentum=0.9)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
