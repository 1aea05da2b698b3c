"""Transfer learning: the backbone's parameters are frozen, its norms in eval, the head is new."""

import numpy as np
import torch
import torch.nn as nn


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        )  # fmt: skip
        self.fc = nn.Linear(8, 100)

    def forward(self, x):
        return self.fc(torch.flatten(self.features(x), 1))


def run(prepare):
    rng = np.random.default_rng(10)
    model = Backbone()
    for param in model.parameters():
        param.requires_grad = False
    model.fc = nn.Linear(model.fc.in_features, 3)
    model = prepare(model)
    trainable = [p for p in model.parameters() if p.requires_grad]
    counts = [sum(p.numel() for p in trainable), sum(p.numel() for p in model.parameters())]
    optimizer = torch.optim.SGD(filter(lambda p: p.requires_grad, model.parameters()), lr=0.1, momentum=0.9)
    model.features.eval()
    x = torch.from_numpy(rng.normal(size=(8, 3, 8, 8)).astype(np.float32))
    y = torch.from_numpy(rng.integers(0, 3, 8))
    losses = []
    for step in range(20):
        if step == 12:  # fine-tune the last block too
            model.features[4].weight.requires_grad_(True)
            optimizer.add_param_group({"params": [model.features[4].weight], "lr": 0.01})
        optimizer.zero_grad()
        loss = nn.CrossEntropyLoss()(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert model.features[0].weight.grad is None
    return losses, counts
