"""A masked autoencoder, He et al. (2022): patches shuffled, most left out, restored by gather."""

import numpy as np
import torch
import torch.nn as nn


def patchify(imgs, p):
    n, c, h, w = imgs.shape
    x = imgs.reshape(n, c, h // p, p, w // p, p)
    return torch.einsum("nchpwq->nhwpqc", x).reshape(n, (h // p) * (w // p), p * p * c)


class MAE(nn.Module):
    def __init__(self, patches=9, width=12, dim=16):
        super().__init__()
        self.embed = nn.Linear(width, dim)
        self.pos = nn.Parameter(torch.zeros(1, patches, dim))
        self.mask_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.encoder = nn.TransformerEncoderLayer(dim, 2, 32, 0.0, batch_first=True)
        self.decoder = nn.TransformerEncoderLayer(dim, 2, 32, 0.0, batch_first=True)
        self.pred = nn.Linear(dim, width)

    def forward(self, patches, noise, ratio=0.6):
        N, L, _ = patches.shape
        keep = int(L * (1 - ratio))
        ids_shuffle = torch.argsort(noise, dim=1)
        ids_restore = torch.argsort(ids_shuffle, dim=1)
        x = self.embed(patches) + self.pos
        D = x.shape[-1]
        x = torch.gather(x, dim=1, index=ids_shuffle[:, :keep].unsqueeze(-1).repeat(1, 1, D))
        mask = torch.ones([N, L])
        mask[:, :keep] = 0
        mask = torch.gather(mask, dim=1, index=ids_restore)
        x = self.encoder(x)
        x = torch.cat([x, self.mask_token.repeat(N, L - keep, 1)], dim=1)
        x = torch.gather(x, 1, ids_restore.unsqueeze(-1).repeat(1, 1, D)) + self.pos
        return self.pred(self.decoder(x)), mask


def run(prepare):
    rng = np.random.default_rng(57)
    target = patchify(torch.from_numpy(rng.random((4, 3, 6, 6)).astype(np.float32)), 2)
    model = prepare(MAE())
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95))
    losses = []
    for _ in range(20):
        noise = torch.from_numpy(rng.random((4, 9)).astype(np.float32))
        pred, mask = model(target, noise)
        loss = ((pred - target) ** 2).mean(dim=-1)
        loss = (loss * mask).sum() / mask.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
