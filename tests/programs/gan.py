"""A GAN: two networks with an optimizer each, Goodfellow et al. (2014)."""

import numpy as np
import torch
import torch.nn as nn


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


def run(prepare):
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
