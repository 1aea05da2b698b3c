"""SGD with Nesterov's momentum on Rosenbrock's function and on a network, with an exponential schedule."""

import numpy as np
import torch
from torch import nn


def rosenbrock(p):
    return (1 - p[0]) ** 2 + 100 * (p[1] - p[0] ** 2) ** 2


def run(prepare):
    rng = np.random.default_rng(36)
    point = torch.tensor([-0.5, 1.0], requires_grad=True)
    optimizer = torch.optim.SGD([point], lr=5e-4, momentum=0.9, nesterov=True)
    path = []
    for _ in range(20):
        optimizer.zero_grad()
        value = rosenbrock(point)
        value.backward()
        optimizer.step()
        path.append([value.item(), *point.detach().tolist()])

    net = prepare(nn.Sequential(nn.Linear(4, 10), nn.Sigmoid(), nn.Linear(10, 3), nn.LogSoftmax(dim=1)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9, dampening=0, nesterov=True, weight_decay=1e-3)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.95)
    x = torch.tensor(rng.normal(size=(15, 4)).tolist())
    y = torch.tensor(rng.integers(0, 3, 15).tolist())
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = nn.NLLLoss()(net(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return path, losses
