"""Focal loss of several classes and of two, Lin et al. (2017)."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class FocalLoss(nn.Module):
    def __init__(self, alpha=None, gamma=2.0, reduction="mean"):
        super().__init__()
        self.alpha, self.gamma, self.reduction = alpha, gamma, reduction

    def forward(self, inputs, targets):
        ce = F.cross_entropy(inputs, targets, weight=self.alpha, reduction="none")
        pt = torch.exp(-ce)
        loss = (1 - pt) ** self.gamma * ce
        return loss.mean() if self.reduction == "mean" else loss.sum()


def sigmoid_focal_loss(logits, targets, alpha=0.25, gamma=2):
    p = torch.sigmoid(logits)
    ce = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    p_t = p * targets + (1 - p) * (1 - targets)
    alpha_t = alpha * targets + (1 - alpha) * (1 - targets)
    return (alpha_t * ce * ((1 - p_t) ** gamma)).mean()


def run(prepare):
    rng = np.random.default_rng(27)
    x = torch.FloatTensor(rng.normal(size=(20, 6)))
    y = torch.LongTensor(rng.integers(0, 3, 20))
    model = prepare(nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3)))
    criterion = FocalLoss(alpha=torch.tensor([0.2, 0.3, 0.5]))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(20):
        logits = model(x)
        loss = criterion(logits, y) + sigmoid_focal_loss(logits, F.one_hot(y, num_classes=3).float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
