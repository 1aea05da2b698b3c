"""MLP-Mixer, Tolstikhin et al. (2021)."""

import numpy as np
import torch
from torch import nn


class PreNormResidual(nn.Module):
    def __init__(self, dim, fn):
        super().__init__()
        self.fn = fn
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        return self.fn(self.norm(x)) + x


class Transposed(nn.Module):
    def __init__(self, fn):
        super().__init__()
        self.fn = fn

    def forward(self, x):
        return self.fn(x.mT).mT


def feed_forward(dim, hidden, dropout=0.0):
    return nn.Sequential(
        nn.Linear(dim, hidden), nn.GELU(), nn.Dropout(dropout), nn.Linear(hidden, dim), nn.Dropout(dropout)
    )


class Mixer(nn.Module):
    def __init__(self, patch=4, dim=12, depth=2, classes=3):
        super().__init__()
        self.unfold = nn.Unfold(kernel_size=patch, stride=patch)
        self.embed = nn.Linear(3 * patch * patch, dim)
        self.layers = nn.Sequential(
            *[
                nn.Sequential(
                    PreNormResidual(dim, Transposed(feed_forward(4, 8))), PreNormResidual(dim, feed_forward(dim, 24))
                )
                for _ in range(depth)
            ]
        )
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, classes)

    def forward(self, x):
        x = self.embed(self.unfold(x).transpose(1, 2))
        return self.head(self.norm(self.layers(x)).mean(dim=1))


def run(prepare):
    rng = np.random.default_rng(59)
    model = prepare(Mixer())
    x = torch.from_numpy(rng.normal(size=(6, 3, 8, 8)).astype(np.float32))
    y = torch.tensor([0, 1, 2, 2, 1, 0])
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    losses = []
    for _ in range(20):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
