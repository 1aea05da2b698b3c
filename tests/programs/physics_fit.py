"""The constants of a damped pendulum found through the simulation, in float64."""

import numpy as np
import torch
import torch.nn as nn


class Pendulum(nn.Module):
    def __init__(self, g_over_l, damping):
        super().__init__()
        self.g_over_l = nn.Parameter(torch.tensor(g_over_l, dtype=torch.float64))
        self.damping = nn.Parameter(torch.tensor(damping, dtype=torch.float64))

    def forward(self, theta0, steps, dt=0.1):
        theta, omega = theta0, torch.zeros_like(theta0)
        path = []
        for _ in range(steps):
            omega = omega + dt * (-self.g_over_l * torch.sin(theta) - self.damping * omega)
            theta = theta + dt * omega
            path.append(theta)
        return torch.stack(path, dim=1)


def run(prepare):
    rng = np.random.default_rng(60)
    theta0 = torch.tensor([0.3, 0.8, 1.2], dtype=torch.float64)
    with torch.no_grad():
        measured = Pendulum(9.0, 0.4)(theta0, 10) + 0.01 * torch.from_numpy(rng.normal(size=(3, 10)))
    model = Pendulum(6.0, 0.1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.2)
    history = []
    for _ in range(20):
        optimizer.zero_grad()
        error = model(theta0, 10) - measured
        loss = (error**2).sum()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            model.damping.clamp_(min=0.0)
        history.append([loss.item(), model.g_over_l.item(), model.damping.item()])
    return history
