"""Networks that generate: diffusion, adversaries."""

import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import autograd


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


def run_diffusion(prepare, train):
    """A U-Net learns to tell the noise from the image: a step of denoising diffusion, Ho et al. (2020)."""
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


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(
            nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(inplace=True), nn.Linear(16, 2), nn.Tanh()
        )

    def forward(self, z):
        return self.main(z)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(
            nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1), nn.Sigmoid()
        )

    def forward(self, x):
        return self.main(x).view(-1)


def run_adversarial_training(prepare, train):
    """A GAN: two networks with an optimizer each, Goodfellow et al. (2014)."""
    rng = np.random.default_rng(2)
    netG, netD = prepare(Generator()), prepare(Discriminator())
    criterion = nn.BCELoss()
    optD = torch.optim.Adam(netD.parameters(), lr=0.002, betas=(0.5, 0.999))
    optG = torch.optim.Adam(netG.parameters(), lr=0.002, betas=(0.5, 0.999))
    losses = []
    for _ in range(20):
        real = torch.from_numpy(rng.uniform(-1, 1, (8, 2)).astype("float32"))
        noise = torch.from_numpy(rng.standard_normal((8, 4)).astype("float32"))
        netD.zero_grad()
        label = torch.full((8,), 1.0)
        errD_real = criterion(netD(real), label)
        errD_real.backward()
        fake = netG(noise)
        label.fill_(0.0)
        errD_fake = criterion(netD(fake.detach()), label)
        errD_fake.backward()
        optD.step()

        netG.zero_grad()
        label.fill_(1.0)
        errG = criterion(netD(fake), label)
        errG.backward()
        optG.step()
        losses.append((errD_real + errD_fake).item())
        losses.append(errG.item())
    return losses


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


def run_gradient_penalty(prepare, train):
    """A critic of Wasserstein's distance with a penalty on its gradient, Gulrajani et al. (2017)."""
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
