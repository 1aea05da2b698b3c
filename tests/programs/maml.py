"""MAML, Finn et al. (2017): a gradient step inside the loss, differentiated through."""

import numpy as np
import torch
import torch.nn.functional as F


def forward(params, x):
    w1, b1, w2, b2 = params
    return F.linear(torch.tanh(F.linear(x, w1, b1)), w2, b2)


def run(prepare):
    rng = np.random.default_rng(66)
    shapes = [(10, 1), (10,), (1, 10), (1,)]
    params = [torch.tensor(0.5 * rng.normal(size=s), dtype=torch.float32, requires_grad=True) for s in shapes]
    meta = torch.optim.Adam(params, lr=1e-2)
    losses = []
    for _ in range(20):
        meta.zero_grad()
        meta_loss = 0.0
        for _ in range(2):
            amplitude, phase = rng.uniform(0.5, 2.0), rng.uniform(0, np.pi)
            x = torch.from_numpy(rng.uniform(-3, 3, (10, 1)).astype("float32"))
            y = amplitude * torch.sin(x + phase)
            loss = F.mse_loss(forward(params, x[:5]), y[:5])
            grads = torch.autograd.grad(loss, params, create_graph=True)
            fast = [p - 0.05 * g for p, g in zip(params, grads, strict=True)]
            meta_loss += F.mse_loss(forward(fast, x[5:]), y[5:])
        meta_loss.backward()
        meta.step()
        losses.append(meta_loss.item())
    return losses
