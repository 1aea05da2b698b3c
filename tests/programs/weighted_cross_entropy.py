"""Classes of unequal frequency: weights of the loss from the counts, a confusion matrix, F1."""

import numpy as np
import torch
from torch import nn


def run(prepare):
    rng = np.random.default_rng(30)
    labels = torch.from_numpy(rng.choice(3, size=30, p=[0.7, 0.2, 0.1]))
    x = torch.from_numpy(rng.normal(size=(30, 4)).astype(np.float32)) + labels[:, None]
    counts = torch.bincount(labels, minlength=3)
    weights = counts.sum() / (3.0 * counts)
    model = prepare(nn.Linear(4, 3))
    criterion = nn.CrossEntropyLoss(weight=weights)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        out = model(x)
        loss = criterion(out, labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    pred = out.argmax(1)
    confusion = torch.zeros(3, 3, dtype=torch.int64)
    for t, p in zip(labels, pred, strict=True):
        confusion[t, p] += 1
    tp = confusion.diag().float()
    f1 = 2 * tp / (confusion.sum(0) + confusion.sum(1)).clamp(min=1)
    return losses, confusion, f1.mean()
