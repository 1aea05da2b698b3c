"""Coupling layers, Dinh et al. (2017): exact likelihoods, and samples by the inverse."""

import math

import numpy as np
import torch
import torch.nn as nn


class Coupling(nn.Module):
    def __init__(self, mask, hidden=16):
        super().__init__()
        self.register_buffer("mask", mask)
        self.scale = nn.Sequential(nn.Linear(2, hidden), nn.LeakyReLU(), nn.Linear(hidden, 2), nn.Tanh())
        self.shift = nn.Sequential(nn.Linear(2, hidden), nn.LeakyReLU(), nn.Linear(hidden, 2))

    def forward(self, x):
        fixed = x * self.mask
        s, t = self.scale(fixed) * (1 - self.mask), self.shift(fixed) * (1 - self.mask)
        return fixed + (1 - self.mask) * (x * torch.exp(s) + t), s.sum(dim=1)

    def inverse(self, y):
        fixed = y * self.mask
        s, t = self.scale(fixed), self.shift(fixed)
        return fixed + (1 - self.mask) * (y - t) * torch.exp(-s)


class RealNVP(nn.Module):
    def __init__(self, layers=4):
        super().__init__()
        masks = torch.tensor([[0.0, 1.0], [1.0, 0.0]] * (layers // 2))
        self.layers = nn.ModuleList([Coupling(m) for m in masks])

    def log_prob(self, x):
        log_det = x.new_zeros(x.shape[0])
        for layer in self.layers:
            x, ld = layer(x)
            log_det += ld
        return -0.5 * (x**2).sum(1) - math.log(2 * math.pi) + log_det

    def sample(self, z):
        for layer in reversed(self.layers):
            z = layer.inverse(z)
        return z


def run(prepare):
    rng = np.random.default_rng(55)
    angle = rng.uniform(0, np.pi, 20)
    x = torch.tensor(np.stack([np.cos(angle), np.sin(angle)], 1) + 0.1 * rng.normal(size=(20, 2))).float()
    flow = prepare(RealNVP())
    optimizer = torch.optim.Adam(flow.parameters(), lr=5e-3)
    losses = []
    for _ in range(20):
        loss = -flow.log_prob(x).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    with torch.no_grad():
        return losses, flow.sample(torch.from_numpy(rng.normal(size=(4, 2)).astype(np.float32)))
