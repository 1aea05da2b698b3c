"""A word-level LSTM, truncated backpropagation through time: the state is detached between pieces."""

import numpy as np
import torch
import torch.nn as nn


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


def run(prepare):
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
