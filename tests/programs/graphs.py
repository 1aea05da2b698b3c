"""A network over the edges of graphs."""

import numpy as np
import torch
import torch.nn as nn


def scatter_mean(x, index, size):
    total = torch.zeros(size, x.size(1)).scatter_add(0, index[:, None].expand(-1, x.size(1)), x)
    count = torch.zeros(size).scatter_add(0, index, torch.ones(index.size(0)))
    return total / count.clamp(min=1).unsqueeze(1)


class GraphNet(nn.Module):
    def __init__(self, features, hidden):
        super().__init__()
        self.msg = nn.Linear(features, hidden)
        self.own = nn.Linear(features, hidden)
        self.out = nn.Linear(2 * hidden, 1)

    def forward(self, x, src, dst, batch, graphs):
        m = torch.relu(self.msg(x))[src]
        agg = torch.zeros(x.shape[0], m.shape[1]).index_add(0, dst, m)
        h = torch.relu(self.own(x) + agg)
        summed = torch.zeros(graphs, h.shape[1]).index_add(0, batch, h)
        return self.out(torch.cat([summed, scatter_mean(h, batch, graphs)], dim=1)).squeeze(1)


def run_segment_sums(prepare, train):
    """Nodes of several graphs: messages along edges by index_add, graphs summed and averaged by scatter."""
    rng = np.random.default_rng(6)
    x = torch.from_numpy(rng.normal(size=(12, 4)).astype(np.float32))
    src, dst = (torch.from_numpy(rng.integers(0, 12, 30)) for _ in range(2))
    batch = torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2])
    y = torch.tensor([1.0, -1.0, 0.5])
    net = prepare(GraphNet(4, 8))
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    return train(opt, lambda: ((net(x, src, dst, batch, 3) - y) ** 2).mean())
