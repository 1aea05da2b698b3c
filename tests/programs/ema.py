"""An exponential moving average of the weights beside the training, evaluated at the end."""

import numpy as np
import torch
import torch.nn as nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


def run(prepare):
    rng = np.random.default_rng(3)
    model = prepare(nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 1)))
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss_fn = nn.MSELoss()
    X = torch.tensor(rng.normal(size=(32, 5)), dtype=torch.float32)
    y = X.sum(dim=1, keepdim=True).sin()
    losses = []
    for _ in range(20):
        loss = loss_fn(model(X), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ema.update_parameters(model)
        losses.append(loss.item())
    ema.eval()
    with torch.no_grad():
        losses.append(loss_fn(ema(X), y).item())
    return losses
