"""Recurrent language models: truncated backpropagation, beam search."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


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


def run_beam_search(prepare, train):
    """Beam search over a recurrent language model, trained for a few steps before."""
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


class RNNModel(nn.Module):
    def __init__(self, ntoken, ninp, nhid, nlayers):
        super().__init__()
        self.drop = nn.Dropout(0.0)
        self.encoder = nn.Embedding(ntoken, ninp)
        self.rnn = nn.LSTM(ninp, nhid, nlayers)
        self.decoder = nn.Linear(nhid, ntoken)
        self.decoder.weight = self.encoder.weight
        self.nhid, self.nlayers, self.ntoken = nhid, nlayers, ntoken

    def forward(self, input, hidden):
        emb = self.drop(self.encoder(input))
        output, hidden = self.rnn(emb, hidden)
        decoded = self.decoder(self.drop(output)).view(-1, self.ntoken)
        return nn.functional.log_softmax(decoded, dim=1), hidden

    def init_hidden(self, bsz):
        weight = next(self.parameters())
        return (weight.new_zeros(self.nlayers, bsz, self.nhid), weight.new_zeros(self.nlayers, bsz, self.nhid))


def repackage_hidden(h):
    if isinstance(h, torch.Tensor):
        return h.detach()
    return tuple(repackage_hidden(v) for v in h)


def run_truncated_backpropagation(prepare, train):
    """A word-level LSTM, truncated backpropagation through time: the state is detached between pieces."""
    rng = np.random.default_rng(68)
    bptt, batch = 5, 3
    stream = torch.from_numpy(rng.integers(0, 15, 3 * 101))
    source = stream.narrow(0, 0, batch * 101).view(batch, -1).t().contiguous()
    model = prepare(RNNModel(15, 8, 8, 2))
    criterion = nn.NLLLoss()
    hidden = model.init_hidden(batch)
    losses = []
    for i in range(0, 100, bptt):
        data, targets = source[i : i + bptt], source[i + 1 : i + 1 + bptt].view(-1)
        model.zero_grad()
        hidden = repackage_hidden(hidden)
        output, hidden = model(data, hidden)
        loss = criterion(output, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-1.0)
        losses.append(loss.item())
    return losses
