"""Activations kept by forward hooks, gradients by hooks of tensors: a class activation map."""

import numpy as np
import torch
import torch.nn as nn


def run(prepare):
    rng = np.random.default_rng(50)
    model = prepare(
        nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    )
    kept = {}

    def keep(name):
        def hook(module, inputs, output):
            kept[name] = output

        return hook

    handles = [model[0].register_forward_hook(keep("conv")), model[1].register_forward_hook(keep("relu"))]
    x = torch.from_numpy(rng.normal(size=(3, 1, 6, 6)).astype("float32"))
    y = torch.tensor([0, 1, 1])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses, means = [], []
    for _ in range(20):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        means.append(kept["relu"].mean().item())
    for handle in handles:
        handle.remove()

    features = model[1](model[0](x))
    gradients = []
    features.register_hook(gradients.append)
    scores = model[4](model[3](model[2](features)))
    scores[:, 1].sum().backward()
    weights = gradients[0].mean(dim=(2, 3), keepdim=True)
    cam = torch.relu((weights * features).sum(dim=1))
    return losses, means, cam.detach()
