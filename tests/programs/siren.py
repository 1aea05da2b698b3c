"""An image as a network with sines, Sitzmann et al. (2020), beside one of random Fourier features."""

import numpy as np
import torch
from torch import nn


class SineLayer(nn.Module):
    def __init__(self, in_features, out_features, is_first=False, omega_0=30):
        super().__init__()
        self.omega_0, self.is_first, self.in_features = omega_0, is_first, in_features
        self.linear = nn.Linear(in_features, out_features)
        with torch.no_grad():
            bound = 1 / in_features if is_first else np.sqrt(6 / in_features) / omega_0
            self.linear.weight.uniform_(-bound, bound)

    def forward(self, x):
        return torch.sin(self.omega_0 * self.linear(x))


class FourierFeatures(nn.Module):
    def __init__(self, B):
        super().__init__()
        self.register_buffer("B", B)

    def forward(self, x):
        x = 2 * np.pi * x @ self.B.T
        return torch.cat([torch.sin(x), torch.cos(x)], -1)


def get_mgrid(side):
    tensors = (torch.linspace(-1, 1, steps=side), torch.linspace(-1, 1, steps=side))
    return torch.stack(torch.meshgrid(*tensors, indexing="ij"), dim=-1).reshape(-1, 2)


def run(prepare):
    rng = np.random.default_rng(54)
    coords = get_mgrid(6)
    pixels = torch.from_numpy(rng.random((36, 1)).astype(np.float32))
    B = torch.from_numpy(rng.normal(size=(8, 2)).astype(np.float32))
    networks = [
        nn.Sequential(SineLayer(2, 16, is_first=True, omega_0=3), SineLayer(16, 16, omega_0=3), nn.Linear(16, 1)),
        nn.Sequential(FourierFeatures(B), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1)),
    ]
    losses = []
    for net in networks:
        net = prepare(net)
        optim = torch.optim.Adam(lr=1e-3, params=net.parameters())
        for _ in range(20):
            loss = ((net(coords) - pixels) ** 2).mean()
            optim.zero_grad()
            loss.backward()
            optim.step()
            losses.append(loss.item())
    return losses
