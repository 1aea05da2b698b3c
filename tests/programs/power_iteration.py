"""The largest eigenvalue by power iteration, and a layer with spectral normalisation by the same means."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class SpectralLinear(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_out, n_in))
        nn.init.kaiming_uniform_(self.weight, a=5**0.5)
        self.register_buffer("u", torch.ones(n_out))

    def forward(self, x):
        with torch.no_grad():
            v = F.normalize(self.weight.t() @ self.u, dim=0)
            self.u = F.normalize(self.weight @ v, dim=0)
        sigma = torch.dot(self.u, self.weight @ v)
        return F.linear(x, self.weight / sigma)


def run(prepare):
    rng = np.random.default_rng(46)
    M = rng.normal(size=(6, 6))
    A = torch.from_numpy(M @ M.T)
    v = torch.ones(6, dtype=torch.float64)
    values = []
    for _ in range(20):
        w = A @ v
        v = w / torch.linalg.norm(w)
        values.append((v @ A @ v).item())

    layer = prepare(SpectralLinear(5, 3))
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    x = torch.tensor(rng.normal(size=(8, 5))).float()
    y = torch.tensor(rng.normal(size=(8, 3))).float()
    losses = []
    for _ in range(20):
        loss = ((layer(x) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return values, losses
