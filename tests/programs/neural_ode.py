"""A spiral as the flow of a small network: steps of Euler and of Runge and Kutta."""

import torch
import torch.nn as nn


class ODEFunc(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
        for m in self.net.modules():
            if isinstance(m, nn.Linear):
                nn.init.normal_(m.weight, mean=0, std=0.1)
                nn.init.constant_(m.bias, val=0)

    def forward(self, t, y):
        return self.net(y**3)


def odeint(func, y0, t, method):
    ys = [y0]
    for i in range(len(t) - 1):
        h, y = t[i + 1] - t[i], ys[-1]
        k1 = func(t[i], y)
        if method == "euler":
            ys.append(y + h * k1)
            continue
        k2 = func(t[i] + h / 2, y + h / 2 * k1)
        k3 = func(t[i] + h / 2, y + h / 2 * k2)
        k4 = func(t[i + 1], y + h * k3)
        ys.append(y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4))
    return torch.stack(ys)


def run(prepare):
    t = torch.linspace(0.0, 1.0, 4)
    true_A = torch.tensor([[-0.1, 2.0], [-2.0, -0.1]])
    y0 = torch.tensor([[1.0, 0.0]])
    with torch.no_grad():
        true = odeint(lambda t, y: torch.mm(y**3, true_A), y0, t, "rk4") * 0.1
    losses = []
    for method in ("euler", "rk4"):
        func = prepare(ODEFunc())
        optimizer = torch.optim.RMSprop(func.parameters(), lr=1e-3)
        for _ in range(10):
            optimizer.zero_grad()
            loss = torch.mean(torch.abs(odeint(func, y0 * 0.5, t, method) - true))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses
