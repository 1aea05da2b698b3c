"""A U-Net learns to tell the noise from the image: a step of denoising diffusion, Ho et al. (2020)."""

import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def timestep_embedding(t, dim):
    half = dim // 2
    freqs = torch.exp(-math.log(10000) * torch.arange(half, dtype=torch.float32) / half)
    args = t[:, None].float() * freqs[None]
    return torch.cat([torch.cos(args), torch.sin(args)], dim=-1)


class Block(nn.Module):
    def __init__(self, cin, cout, tdim):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, padding=1)
        self.conv2 = nn.Conv2d(cout, cout, 3, padding=1)
        self.norm = nn.GroupNorm(2, cout)
        self.time = nn.Linear(tdim, cout)

    def forward(self, x, t):
        h = F.silu(self.conv1(x)) + self.time(t)[:, :, None, None]
        return F.silu(self.norm(self.conv2(h)))


class UNet(nn.Module):
    def __init__(self, tdim=8):
        super().__init__()
        self.tdim = tdim
        self.down = Block(1, 4, tdim)
        self.mid = Block(4, 8, tdim)
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.last = Block(8, 4, tdim)
        self.out = nn.Conv2d(4, 1, 1)

    def forward(self, x, t):
        t = timestep_embedding(t, self.tdim)
        skip = self.down(x, t)
        h = self.mid(F.max_pool2d(skip, 2), t)
        h = torch.cat([self.up(h), skip], dim=1)
        return self.out(self.last(h, t))


def run(prepare):
    rng = np.random.default_rng(0)
    betas = torch.linspace(1e-4, 0.02, 50)
    alphas_bar = torch.cumprod(1.0 - betas, dim=0)
    model = prepare(UNet())
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    images = torch.from_numpy(rng.standard_normal((4, 1, 8, 8)).astype(np.float32))
    losses = []
    for _ in range(20):
        t = torch.from_numpy(rng.integers(0, 50, 4))
        noise = torch.from_numpy(rng.standard_normal((4, 1, 8, 8)).astype(np.float32))
        a = alphas_bar[t].view(-1, 1, 1, 1)
        noisy = a.sqrt() * images + (1 - a).sqrt() * noise
        loss = F.mse_loss(model(noisy, t), noise)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return losses
