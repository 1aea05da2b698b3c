"""Ratings as products of embeddings of users and films, with biases."""

import numpy as np
import torch
from torch import nn


class MatrixFactorization(nn.Module):
    def __init__(self, n_users, n_items, n_factors=4):
        super().__init__()
        self.user_factors = nn.Embedding(n_users, n_factors)
        self.item_factors = nn.Embedding(n_items, n_factors)
        self.user_bias = nn.Embedding(n_users, 1)
        self.item_bias = nn.Embedding(n_items, 1)
        nn.init.normal_(self.user_factors.weight, std=0.1)
        nn.init.zeros_(self.user_bias.weight)

    def forward(self, user, item):
        dot = (self.user_factors(user) * self.item_factors(item)).sum(1, keepdim=True)
        return (dot + self.user_bias(user) + self.item_bias(item)).squeeze()


def run(prepare):
    rng = np.random.default_rng(42)
    users, items = (torch.LongTensor(rng.integers(0, n, 40)) for n in (8, 10))
    ratings = torch.FloatTensor(rng.integers(1, 6, 40))
    model = prepare(MatrixFactorization(8, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, weight_decay=1e-4)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = nn.MSELoss()(model(users, items), ratings)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    scores = model.item_factors.weight @ model.user_factors.weight[3] + model.item_bias.weight[:, 0]
    best = torch.argsort(scores, descending=True)[:3]
    return losses, best
