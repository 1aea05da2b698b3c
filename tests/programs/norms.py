"""Norms of one's own and of the library: instance, group, layer over channels, RMS."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class LayerNorm2d(nn.Module):
    def __init__(self, channels, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.eps = eps

    def forward(self, x):
        u = x.mean(1, keepdim=True)
        s = (x - u).pow(2).mean(1, keepdim=True)
        x = (x - u) / torch.sqrt(s + self.eps)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


class InstanceNorm(nn.Module):
    def forward(self, x):
        var, mean = torch.var_mean(x, dim=(2, 3), keepdim=True, unbiased=False)
        return (x - mean) * torch.rsqrt(var + 1e-5)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 8, 3), LayerNorm2d(8)
        self.conv2, self.norm2 = nn.Conv2d(8, 8, 3), nn.GroupNorm(num_groups=4, num_channels=8)
        self.norm3 = InstanceNorm()
        self.norm4 = nn.RMSNorm(8)
        self.fc = nn.Linear(8, 2)

    def forward(self, x):
        x = F.gelu(self.norm1(self.conv1(x)))
        x = F.leaky_relu(self.norm2(self.conv2(x)), 0.1)
        x = F.adaptive_avg_pool2d(self.norm3(x) ** 2 + x, 1).flatten(1)
        return self.fc(self.norm4(x))


def run(prepare):
    rng = np.random.default_rng(22)
    net = prepare(Net())
    x = torch.from_numpy(rng.normal(size=(4, 3, 8, 8)).astype(np.float32))
    y = torch.tensor([1, 0, 1, 1])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
