"""Lloyd's k-means with tensors: distances, assignments, means of the members."""

import numpy as np
import torch


def run(prepare):
    rng = np.random.default_rng(45)
    means = np.array([[0, 0], [4, 4], [-4, 3]])
    points = torch.from_numpy(np.concatenate([m + rng.normal(size=(10, 2)) for m in means]))
    centroids = points[[0, 12, 25]].clone()
    inertias = []
    for _ in range(20):
        distances = ((points[:, None, :] - centroids[None, :, :]) ** 2).sum(dim=2)
        nearest, labels = distances.min(dim=1)
        inertias.append(nearest.sum().item())
        for k in range(3):
            members = points[labels == k]
            if len(members) > 0:
                centroids[k] = members.mean(dim=0)
    onehot = torch.nn.functional.one_hot(labels, 3).to(points.dtype)
    sizes = onehot.sum(dim=0)
    averages = onehot.t().mm(points) / sizes.unsqueeze(1)
    assert torch.allclose(averages, centroids)
    values, counts = torch.unique(labels, return_counts=True)
    return inertias, centroids, sizes, values, counts
