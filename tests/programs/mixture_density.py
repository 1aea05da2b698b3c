"""A mixture density network, Bishop (1994)."""

import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class MDN(nn.Module):
    def __init__(self, hidden=16, mixtures=3):
        super().__init__()
        self.z_h = nn.Sequential(nn.Linear(1, hidden), nn.Tanh())
        self.z_pi = nn.Linear(hidden, mixtures)
        self.z_mu = nn.Linear(hidden, mixtures)
        self.z_sigma = nn.Linear(hidden, mixtures)

    def forward(self, x):
        h = self.z_h(x)
        return F.log_softmax(self.z_pi(h), -1), self.z_mu(h), F.softplus(self.z_sigma(h)) + 1e-3


def mdn_loss(log_pi, mu, sigma, y):
    log_normal = -0.5 * ((y - mu) / sigma) ** 2 - torch.log(sigma) - 0.5 * math.log(2 * math.pi)
    return -torch.logsumexp(log_pi + log_normal, dim=-1).mean()


def run(prepare):
    rng = np.random.default_rng(56)
    y = rng.uniform(-1, 1, (30, 1))
    x = y + 0.3 * np.sin(6 * y) + 0.02 * rng.normal(size=(30, 1))
    x, y = torch.from_numpy(x).float(), torch.from_numpy(y).float()
    model = prepare(MDN())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(20):
        loss = mdn_loss(*model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    log_pi, mu, sigma = model(x[:5])
    chosen = log_pi.argmax(dim=1, keepdim=True)
    return losses, torch.gather(mu, 1, chosen)
