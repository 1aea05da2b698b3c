"""Logistic regression with tensors alone: gradients by autograd, updates without history."""

import numpy as np
import torch


def run(prepare):
    rng = np.random.default_rng(43)
    X = torch.tensor(rng.normal(size=(40, 3)), dtype=torch.float32)
    true_w = torch.tensor([2.0, -1.0, 0.5])
    y = (X @ true_w + 0.3 > 0).float()
    w = torch.zeros(3, requires_grad=True)
    b = torch.zeros(1, requires_grad=True)
    losses = []
    for _ in range(20):
        p = 1 / (1 + torch.exp(-(X.mv(w) + b)))
        loss = -(y * torch.log(p) + (1 - y) * torch.log(1 - p)).mean()
        loss.backward()
        with torch.no_grad():
            w -= 0.5 * w.grad
            b -= 0.5 * b.grad
            w.grad.zero_()
            b.grad.zero_()
        losses.append(loss.item())
    accuracy = ((p > 0.5) == y.bool()).float().mean()
    return losses, w.detach().numpy(), accuracy.item()
