"""A damped oscillator by a network that knows the equation: second derivatives through autograd.grad."""

import torch
import torch.nn as nn


class FCN(nn.Module):
    def __init__(self, hidden, layers):
        super().__init__()
        self.fcs = nn.Sequential(nn.Linear(1, hidden), nn.Tanh())
        self.fch = nn.Sequential(*[nn.Sequential(nn.Linear(hidden, hidden), nn.Tanh()) for _ in range(layers - 1)])
        self.fce = nn.Linear(hidden, 1)

    def forward(self, x):
        return self.fce(self.fch(self.fcs(x)))


def run(prepare):
    d, w0 = 2.0, 5.0
    mu, k = 2 * d, w0**2
    pinn = prepare(FCN(12, 2))
    t_boundary = torch.tensor(0.0).view(-1, 1).requires_grad_(True)
    t_physics = torch.linspace(0, 1, 10).view(-1, 1).requires_grad_(True)
    optimiser = torch.optim.Adam(pinn.parameters(), lr=1e-3)
    losses = []
    for _ in range(20):
        optimiser.zero_grad()
        u = pinn(t_boundary)
        loss1 = (torch.squeeze(u) - 1) ** 2
        dudt = torch.autograd.grad(u, t_boundary, torch.ones_like(u), create_graph=True)[0]
        loss2 = (torch.squeeze(dudt) - 0) ** 2
        u = pinn(t_physics)
        dudt = torch.autograd.grad(u, t_physics, torch.ones_like(u), create_graph=True)[0]
        d2udt2 = torch.autograd.grad(dudt, t_physics, torch.ones_like(dudt), create_graph=True)[0]
        loss3 = torch.mean((d2udt2 + mu * dudt + k * u) ** 2)
        loss = loss1 + 1e-1 * loss2 + 1e-4 * loss3
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    u = pinn(t_physics).detach()
    return losses, u[:, 0]
