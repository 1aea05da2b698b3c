"""A validation loss that no longer falls lowers the learning rate and stops the training early."""

import numpy as np
import torch
import torch.nn as nn
from torch.optim.lr_scheduler import ReduceLROnPlateau


class EarlyStopping:
    def __init__(self, patience):
        self.patience, self.best, self.bad, self.state = patience, float("inf"), 0, None

    def __call__(self, loss, model):
        if loss < self.best - 1e-4:
            self.best, self.bad = loss, 0
            self.state = {k: v.clone() for k, v in model.state_dict().items()}
        else:
            self.bad += 1
        return self.bad >= self.patience


def run(prepare):
    rng = np.random.default_rng(34)
    x, xv = (torch.from_numpy(rng.normal(size=(n, 4)).astype("float32")) for n in (16, 8))
    y, yv = x[:, :1] * x[:, 1:2], xv[:, :1] * xv[:, 1:2]
    model = prepare(nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    scheduler = ReduceLROnPlateau(optimizer, mode="min", factor=0.5, patience=1)
    stop, loss_fn, history = EarlyStopping(6), nn.MSELoss(), []
    for _ in range(20):
        model.train()
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            val = loss_fn(model(xv), yv)
        scheduler.step(val)
        history.append([loss.item(), val.item(), optimizer.param_groups[0]["lr"]])
        if stop(val.item(), model):
            break
    model.load_state_dict(stop.state)
    return history, loss_fn(model(xv), yv).item()
