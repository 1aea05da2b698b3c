"""RMSprop, centered and not, and Adagrad on the same least squares."""

import numpy as np
import torch


def run(prepare):
    rng = np.random.default_rng(38)
    A = torch.from_numpy(rng.normal(size=(20, 4)))
    b = torch.from_numpy(rng.normal(size=20))
    makers = [
        lambda p: torch.optim.RMSprop(p, lr=0.02),
        lambda p: torch.optim.RMSprop(p, lr=0.02, alpha=0.9, momentum=0.5),
        lambda p: torch.optim.Adagrad(p, lr=0.3),
        lambda p: torch.optim.Adam(p, lr=0.1),
    ]
    results = []
    for make in makers:
        w = torch.zeros(4, dtype=torch.float64, requires_grad=True)
        optimizer = make([w])
        for _ in range(20):
            optimizer.zero_grad()
            loss = torch.norm(A @ w - b) ** 2 / 20
            loss.backward()
            optimizer.step()
            results.append(loss.item())
        results += w.tolist()
    return results
