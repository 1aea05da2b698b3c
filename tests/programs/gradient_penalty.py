"""A critic of Wasserstein's distance with a penalty on its gradient, Gulrajani et al. (2017)."""

import numpy as np
import torch
import torch.nn as nn
from torch import autograd


def gradient_penalty(critic, real, fake, alpha):
    interpolates = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
    d = critic(interpolates)
    gradients = autograd.grad(
        outputs=d,
        inputs=interpolates,
        grad_outputs=torch.ones(d.size()),
        create_graph=True,
        retain_graph=True,
        only_inputs=True,
    )[0]
    gradients = gradients.view(gradients.size(0), -1)
    return ((gradients.norm(2, dim=1) - 1) ** 2).mean()


def run(prepare):
    rng = np.random.default_rng(67)
    critic = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 16), nn.Softplus(), nn.Linear(16, 1))
    critic = prepare(critic)
    optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.0, 0.9))
    losses = []
    for _ in range(20):
        real, fake = (torch.Tensor(rng.normal(loc=m, size=(8, 2))) for m in (0.0, 2.0))
        alpha = torch.Tensor(rng.random((8, 1)))
        optimizer.zero_grad()
        penalty = gradient_penalty(critic, real, fake, alpha)
        loss = critic(fake).mean() - critic(real).mean() + 10.0 * penalty
        loss.backward()
        optimizer.step()
        losses.append([loss.item(), penalty.item()])
    return losses
