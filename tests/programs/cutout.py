"""Cutout, flips and shifts of images as tensors, then a small network."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def cutout(images, size, rng):
    n, c, h, w = images.shape
    mask = torch.ones(n, 1, h, w)
    for i in range(n):
        y, x = int(rng.integers(h)), int(rng.integers(w))
        mask[i, :, max(0, y - size) : y + size, max(0, x - size) : x + size] = 0.0
    return images * mask


def augment(images, rng):
    flip = torch.from_numpy(rng.random(images.shape[0]) < 0.5)
    images = torch.where(flip[:, None, None, None], images.flip(-1), images)
    padded = F.pad(images, (2, 2, 2, 2), mode="reflect")
    dy, dx = rng.integers(0, 5, 2)
    return padded[:, :, dy : dy + images.shape[2], dx : dx + images.shape[3]]


def run(prepare):
    rng = np.random.default_rng(29)
    x = torch.from_numpy(rng.random((6, 3, 8, 8), dtype=np.float32))
    mean = torch.tensor([0.4914, 0.4822, 0.4465]).view(1, 3, 1, 1)
    std = torch.tensor([0.2470, 0.2435, 0.2616]).view(1, 3, 1, 1)
    x = (x - mean) / std
    y = torch.tensor([0, 1, 2, 3, 0, 1])
    model = prepare(
        nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(1), nn.Linear(8, 4))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(20):
        batch = cutout(augment(x, rng), 2, rng)
        loss = F.nll_loss(F.log_softmax(model(batch), dim=1), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
