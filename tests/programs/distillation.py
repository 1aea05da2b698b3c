"""A small network learns a large one's softened outputs, Hinton et al. (2015)."""

import copy

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def mlp(hidden):
    return nn.Sequential(nn.Linear(8, hidden), nn.ReLU(), nn.Linear(hidden, 5))


def run(prepare):
    rng = np.random.default_rng(12)
    teacher, student = prepare(mlp(64)), prepare(mlp(8))
    teacher = copy.deepcopy(teacher)
    teacher.eval()
    for p in teacher.parameters():
        p.requires_grad_(False)
    T, alpha = 4.0, 0.7
    optimizer = torch.optim.Adam(student.parameters(), lr=1e-2)
    x = torch.tensor(rng.normal(size=(16, 8)), dtype=torch.float)
    y = torch.tensor(rng.integers(0, 5, 16), dtype=torch.long)
    losses = []
    for _ in range(20):
        with torch.no_grad():
            teacher_logits = teacher(x)
        logits = student(x)
        soft = F.kl_div(
            F.log_softmax(logits / T, dim=1), F.softmax(teacher_logits / T, dim=1), reduction="batchmean"
        ) * (T * T)
        loss = alpha * soft + (1 - alpha) * F.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
