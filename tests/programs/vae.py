"""A variational autoencoder, Kingma and Welling (2014)."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


class VAE(nn.Module):
    def __init__(self, width=12, hidden=16, latent=3):
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.mu = nn.Linear(hidden, latent)
        self.logvar = nn.Linear(hidden, latent)
        self.fc3 = nn.Linear(latent, hidden)
        self.fc4 = nn.Linear(hidden, width)

    def encode(self, x):
        h = F.relu(self.fc1(x))
        return self.mu(h), self.logvar(h)

    def decode(self, z):
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z))))

    def forward(self, x, eps):
        mu, logvar = self.encode(x)
        std = torch.exp(0.5 * logvar)
        return self.decode(mu + eps * std), mu, logvar


def loss_function(recon, x, mu, logvar):
    bce = F.binary_cross_entropy(recon, x, reduction="sum")
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return bce + kld


def run(prepare):
    rng = np.random.default_rng(1)
    model = prepare(VAE())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    x = torch.tensor(rng.random((8, 12)), dtype=torch.float32)
    losses = []
    model.train()
    for _ in range(20):
        eps = torch.tensor(rng.standard_normal((8, 3)), dtype=torch.float32)
        optimizer.zero_grad()
        recon, mu, logvar = model(x, eps)
        loss = loss_function(recon, x, mu, logvar)
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    model.eval()
    with torch.no_grad():
        sample = model.decode(torch.zeros(2, 3))
    return losses, sample
