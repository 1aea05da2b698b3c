"""Beam search over a recurrent language model, trained for a few steps before."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class LM(nn.Module):
    def __init__(self, vocab, dim=8):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.cell = nn.LSTMCell(dim, dim)
        self.out = nn.Linear(dim, vocab)

    def step(self, token, state):
        h, c = self.cell(self.embed(token), state)
        return F.log_softmax(self.out(h), dim=-1), (h, c)


@torch.no_grad()
def beam_search(model, start, width, length):
    tokens = torch.tensor([[start]] * width)
    scores = torch.tensor([0.0] + [-1e9] * (width - 1))
    state = (torch.zeros(width, 8), torch.zeros(width, 8))
    for _ in range(length):
        logp, (h, c) = model.step(tokens[:, -1], state)
        total = scores[:, None] + logp
        scores, flat = total.view(-1).topk(width)
        beam = torch.div(flat, logp.size(-1), rounding_mode="floor")
        token = flat % logp.size(-1)
        tokens = torch.cat([tokens[beam], token[:, None]], dim=1)
        state = (h[beam], c[beam])
    return tokens, scores


def run(prepare):
    rng = np.random.default_rng(63)
    data = torch.from_numpy(rng.integers(0, 9, (6, 7)))
    model = prepare(LM(9))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    losses = []
    for _ in range(20):
        state = (torch.zeros(6, 8), torch.zeros(6, 8))
        loss = 0.0
        for t in range(6):
            logp, state = model.step(data[:, t], state)
            loss = loss + F.nll_loss(logp, data[:, t + 1])
        loss = loss / 6
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    tokens, scores = beam_search(model, 0, 3, 5)
    return losses, tokens, scores
