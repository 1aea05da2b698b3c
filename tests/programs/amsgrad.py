"""AdamW with AMSGrad, saved and loaded in the middle of the training."""

import io

import numpy as np
import torch
import torch.nn as nn


def build(prepare):
    model = prepare(nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1)))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2, amsgrad=True, weight_decay=0.02)


def run(prepare):
    rng = np.random.default_rng(37)
    x = torch.from_numpy(rng.normal(size=(20, 3)).astype("float32"))
    y = torch.prod(x, dim=1, keepdim=True)
    model, optimizer = build(prepare)
    losses = []
    for step in range(20):
        if step == 10:
            buffer = io.BytesIO()
            torch.save({"model": model.state_dict(), "optim": optimizer.state_dict()}, buffer)
            buffer.seek(0)
            checkpoint = torch.load(buffer)
            model, optimizer = build(prepare)
            model.load_state_dict(checkpoint["model"])
            optimizer.load_state_dict(checkpoint["optim"])
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
