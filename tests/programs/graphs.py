"""Graphs, clusters and matrices."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class GCNLayer(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.linear = nn.Linear(n_in, n_out, bias=False)

    def forward(self, x, adj):
        return torch.spmm(adj, self.linear(x)) if adj.is_sparse else adj @ self.linear(x)


class GATLayer(nn.Module):
    def __init__(self, n_in, n_out, alpha=0.2):
        super().__init__()
        self.W = nn.Parameter(torch.empty(size=(n_in, n_out)))
        self.a = nn.Parameter(torch.empty(size=(2 * n_out, 1)))
        nn.init.xavier_uniform_(self.W.data, gain=1.414)
        nn.init.xavier_uniform_(self.a.data, gain=1.414)
        self.n_out = n_out
        self.leakyrelu = nn.LeakyReLU(alpha)

    def forward(self, h, adj):
        Wh = torch.mm(h, self.W)
        e = self.leakyrelu(torch.matmul(Wh, self.a[: self.n_out, :]) + torch.matmul(Wh, self.a[self.n_out :, :]).T)
        zero_vec = -9e15 * torch.ones_like(e)
        attention = F.softmax(torch.where(adj > 0, e, zero_vec), dim=1)
        return F.elu(torch.matmul(attention, Wh))


def run_graph_conv(prepare, train):
    """Graph convolutions with a dense, normalised adjacency, and attention over neighbours."""
    rng = np.random.default_rng(58)
    edges = torch.from_numpy((rng.random((10, 10)) < 0.3).astype(np.float32))
    adj = torch.maximum(edges, edges.T)
    adj.fill_diagonal_(1.0)
    degree = adj.sum(1)
    d_inv_sqrt = torch.diag(degree.pow(-0.5))
    norm = d_inv_sqrt @ adj @ d_inv_sqrt
    x = torch.from_numpy(rng.normal(size=(10, 5)).astype(np.float32))
    labels = torch.from_numpy(rng.integers(0, 3, 10))
    train_mask = torch.arange(10) < 6
    gcn, gat, out = prepare(GCNLayer(5, 8)), prepare(GATLayer(8, 8)), prepare(GCNLayer(8, 3))
    params = [p for m in (gcn, gat, out) for p in m.parameters()]
    optimizer = torch.optim.Adam(params, lr=0.01, weight_decay=5e-4)
    losses = []
    for _ in range(20):
        h = F.relu(gcn(x, norm))
        logits = F.log_softmax(out(gat(h, adj), norm), dim=1)
        loss = F.nll_loss(logits[train_mask], labels[train_mask])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    accuracy = logits[~train_mask].max(1)[1].eq(labels[~train_mask]).double().mean()
    return losses, accuracy


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


def run_matrix_factorization(prepare, train):
    """Ratings as products of embeddings of users and films, with biases."""
    rng = np.random.default_rng(42)
    users, items = (torch.LongTensor(rng.integers(0, n, 40)) for n in (8, 10))
    ratings = torch.FloatTensor(rng.integers(1, 6, 40))
    model = prepare(MatrixFactorization(8, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, weight_decay=1e-4)
    losses = train(optimizer, lambda: nn.MSELoss()(model(users, items), ratings))
    scores = model.item_factors.weight @ model.user_factors.weight[3] + model.item_bias.weight[:, 0]
    best = torch.argsort(scores, descending=True)[:3]
    return losses, best


def run_kmeans(prepare, train):
    """Lloyd's k-means with tensors: distances, assignments, means of the members."""
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


class SpectralLinear(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_out, n_in))
        nn.init.kaiming_uniform_(self.weight, a=5**0.5)
        self.register_buffer("u", torch.ones(n_out))

    def forward(self, x):
        with torch.no_grad():
            v = F.normalize(self.weight.t() @ self.u, dim=0)
            self.u = F.normalize(self.weight @ v, dim=0)
        sigma = torch.dot(self.u, self.weight @ v)
        return F.linear(x, self.weight / sigma)


def run_power_iteration(prepare, train):
    """The largest eigenvalue by power iteration, and a layer with spectral normalisation by the same means."""
    rng = np.random.default_rng(46)
    M = rng.normal(size=(6, 6))
    A = torch.from_numpy(M @ M.T)
    v = torch.ones(6, dtype=torch.float64)
    values = []
    for _ in range(20):
        w = A @ v
        v = w / torch.linalg.norm(w)
        values.append((v @ A @ v).item())

    layer = prepare(SpectralLinear(5, 3))
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    x = torch.tensor(rng.normal(size=(8, 5))).float()
    y = torch.tensor(rng.normal(size=(8, 3))).float()
    return values, train(optimizer, lambda: ((layer(x) - y) ** 2).mean())
