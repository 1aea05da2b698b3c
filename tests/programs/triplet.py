"""Triplet loss with the hardest examples of a batch, Hermans et al. (2017)."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def pairwise(x):
    squares = x.pow(2).sum(dim=1)
    d2 = squares[:, None] + squares[None, :] - 2.0 * x @ x.t()
    return torch.sqrt(F.relu(d2) + 1e-12)


def batch_hard(embeddings, labels, margin=0.3):
    dist = pairwise(embeddings)
    same = labels.unsqueeze(0) == labels.unsqueeze(1)
    hardest_positive = (dist * same.float()).max(dim=1)[0]
    max_anchor, _ = dist.max(dim=1, keepdim=True)
    hardest_negative = (dist + max_anchor * same.float()).min(dim=1).values
    return F.relu(hardest_positive - hardest_negative + margin).mean()


def run(prepare):
    rng = np.random.default_rng(25)
    centers = rng.normal(size=(3, 6))
    labels = torch.from_numpy(np.repeat(np.arange(3), 4))
    x = torch.from_numpy((np.repeat(centers, 4, axis=0) + 0.5 * rng.normal(size=(12, 6))).astype("float32"))
    net = prepare(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4)))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    losses = []
    for _ in range(20):
        emb = F.normalize(net(x), p=2, dim=1)
        loss = batch_hard(emb, labels)
        given = F.triplet_margin_loss(emb[0:4], emb[4:8], emb[8:12], margin=1.0)
        total = loss + 0.1 * given
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        losses.append(total.item())
    return losses
