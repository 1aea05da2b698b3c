"""Graph convolutions with a dense, normalised adjacency, and attention over neighbours."""

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


def run(prepare):
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
