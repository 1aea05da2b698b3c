"""Weights of one network moved to another: names changed, shapes compared, strict=False, tied embeddings."""

from collections import OrderedDict

import numpy as np
import torch
import torch.nn as nn


class Old(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 6)
        self.body = nn.Sequential(nn.Linear(6, 6), nn.ReLU())
        self.classifier = nn.Linear(6, 4)


class New(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(12, 6)
        self.backbone = nn.Sequential(nn.Linear(6, 6), nn.ReLU())
        self.head = nn.Linear(6, 12, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x):
        return self.head(self.backbone(self.tokens(x)))


def run(prepare):
    old, new = prepare(Old()), prepare(New())
    pretrained, own = old.state_dict(), new.state_dict()
    renamed = OrderedDict()
    for key, value in pretrained.items():
        key = key.replace("body.", "backbone.")
        if key in own and own[key].shape == value.shape:
            renamed[key] = value
    result = new.load_state_dict(renamed, strict=False)
    assert sorted(result.missing_keys) == ["head.weight", "tokens.weight"]
    with torch.no_grad():
        new.tokens.weight[:10].copy_(old.embed.weight)
        new.tokens.weight[10:] = old.embed.weight.mean(0)
    x = torch.from_numpy(np.random.default_rng(53).integers(0, 12, (4, 5)))
    optimizer = torch.optim.Adam(new.parameters(), lr=0.01)
    losses = []
    for _ in range(20):
        logits = new(x[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, {k: tuple(v.shape) for k, v in new.state_dict().items()}
