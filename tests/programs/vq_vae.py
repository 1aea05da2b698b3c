"""A quantised autoencoder, van den Oord et al. (2017): the nearest code, gradients straight through."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class VectorQuantizer(nn.Module):
    def __init__(self, n_codes, dim, beta=0.25):
        super().__init__()
        self.beta = beta
        self.codebook = nn.Embedding(n_codes, dim)
        self.codebook.weight.data.uniform_(-1.0 / n_codes, 1.0 / n_codes)

    def forward(self, z):
        flat = z.view(-1, z.shape[-1])
        d = (
            torch.sum(flat**2, dim=1, keepdim=True)
            + torch.sum(self.codebook.weight**2, dim=1)
            - 2 * torch.matmul(flat, self.codebook.weight.t())
        )
        indices = torch.argmin(d, dim=1)
        q = self.codebook(indices).view(z.shape)
        loss = F.mse_loss(q, z.detach()) + self.beta * F.mse_loss(q.detach(), z)
        q = z + (q - z).detach()
        usage = torch.mean(F.one_hot(indices, self.codebook.num_embeddings).float(), dim=0)
        perplexity = torch.exp(-torch.sum(usage * torch.log(usage + 1e-10)))
        return q, loss, perplexity


def run(prepare):
    rng = np.random.default_rng(65)
    encoder = prepare(nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 4)))
    decoder = prepare(nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 6)))
    quantizer = prepare(VectorQuantizer(8, 4))
    modules = nn.ModuleList([encoder, quantizer, decoder])
    optimizer = torch.optim.Adam(modules.parameters(), lr=1e-2)
    x = torch.from_numpy(rng.normal(size=(16, 6)).astype(np.float32))
    losses = []
    for _ in range(20):
        q, vq_loss, perplexity = quantizer(encoder(x))
        loss = F.mse_loss(decoder(q), x) + vq_loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append([loss.item(), perplexity.item()])
    return losses
