"""A siamese network with the contrastive loss of Hadsell et al. (2006)."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class SiameseNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.cnn = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(inplace=True), nn.MaxPool2d(2, stride=2))
        self.fc = nn.Sequential(nn.Linear(4 * 3 * 3, 16), nn.ReLU(inplace=True), nn.Linear(16, 4))

    def forward_once(self, x):
        output = self.cnn(x)
        output = output.view(output.size()[0], -1)
        return self.fc(output)

    def forward(self, a, b):
        return self.forward_once(a), self.forward_once(b)


class ContrastiveLoss(nn.Module):
    def __init__(self, margin=2.0):
        super().__init__()
        self.margin = margin

    def forward(self, a, b, label):
        distance = F.pairwise_distance(a, b)
        return torch.mean(
            (1 - label) * torch.pow(distance, 2) + label * torch.pow(torch.clamp(self.margin - distance, min=0.0), 2)
        )


def run(prepare):
    rng = np.random.default_rng(24)
    a, b = (torch.from_numpy(rng.normal(size=(6, 1, 8, 8)).astype(np.float32)) for _ in range(2))
    label = torch.tensor([0, 1, 1, 0, 1, 0], dtype=torch.float32)
    net = prepare(SiameseNetwork())
    criterion = ContrastiveLoss()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.0005)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = criterion(*net(a, b), label)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    similarity = F.cosine_similarity(*net(a, b), dim=1)
    return losses, similarity
