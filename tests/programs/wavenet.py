"""Causal dilated convolutions with gates, residuals and skips, van den Oord et al. (2016)."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class CausalConv1d(nn.Conv1d):
    def __init__(self, cin, cout, kernel_size, dilation=1):
        super().__init__(cin, cout, kernel_size, dilation=dilation)
        self.left = (kernel_size - 1) * dilation

    def forward(self, x):
        return super().forward(F.pad(x, (self.left, 0)))


class Block(nn.Module):
    def __init__(self, channels, dilation):
        super().__init__()
        self.filter = CausalConv1d(channels, channels, 2, dilation)
        self.gate = CausalConv1d(channels, channels, 2, dilation)
        self.residual = nn.Conv1d(channels, channels, 1)
        self.skip = nn.Conv1d(channels, channels, 1)

    def forward(self, x):
        h = torch.tanh(self.filter(x)) * torch.sigmoid(self.gate(x))
        return x + self.residual(h), self.skip(h)


class WaveNet(nn.Module):
    def __init__(self, levels=16, channels=8, dilations=(1, 2, 4)):
        super().__init__()
        self.embed = nn.Embedding(levels, channels)
        self.blocks = nn.ModuleList([Block(channels, d) for d in dilations])
        self.head = nn.Sequential(nn.ReLU(), nn.Conv1d(channels, levels, 1))

    def forward(self, x):
        x = self.embed(x).transpose(1, 2)
        skips = 0
        for block in self.blocks:
            x, skip = block(x)
            skips = skips + skip
        return self.head(skips)


def mu_law(x, mu=15):
    y = torch.sign(x) * torch.log1p(mu * torch.abs(x)) / np.log1p(mu)
    return ((y + 1) / 2 * mu + 0.5).long()


def run(prepare):
    t = torch.linspace(0, 12.0, 25)
    audio = mu_law(torch.stack([torch.sin(t), torch.sin(1.7 * t) * 0.5]))
    model = prepare(WaveNet())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(20):
        logits = model(audio[:, :-1])
        loss = F.cross_entropy(logits, audio[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
