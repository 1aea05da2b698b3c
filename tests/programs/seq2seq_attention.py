"""An encoder and a decoder with additive attention, Bahdanau et al. (2015), taught by the true previous token."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class Encoder(nn.Module):
    def __init__(self, vocab, hidden):
        super().__init__()
        self.embedding = nn.Embedding(vocab, hidden)
        self.gru = nn.GRU(hidden, hidden, batch_first=True)

    def forward(self, tokens):
        return self.gru(self.embedding(tokens))


class Decoder(nn.Module):
    def __init__(self, vocab, hidden):
        super().__init__()
        self.embedding = nn.Embedding(vocab, hidden)
        self.Wa, self.Ua, self.Va = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, 1)
        self.cell = nn.GRUCell(2 * hidden, hidden)
        self.out = nn.Linear(hidden, vocab)

    def step(self, token, hidden, memory):
        scores = self.Va(torch.tanh(self.Wa(hidden.unsqueeze(1)) + self.Ua(memory)))
        weights = F.softmax(scores.squeeze(2).unsqueeze(1), dim=-1)
        context = torch.bmm(weights, memory).squeeze(1)
        hidden = self.cell(torch.cat((self.embedding(token), context), dim=1), hidden)
        return self.out(hidden), hidden


def run(prepare):
    rng = np.random.default_rng(14)
    SOS, vocab = 0, 12
    source = torch.from_numpy(rng.integers(1, vocab, (4, 5)))
    target = torch.flip(source, dims=[1])
    encoder, decoder = prepare(Encoder(vocab, 8)), prepare(Decoder(vocab, 8))
    optimizer = torch.optim.Adam(list(encoder.parameters()) + list(decoder.parameters()), lr=0.02)
    losses = []
    for _ in range(20):
        memory, hidden = encoder(source)
        hidden = hidden[0]
        token = torch.full((4,), SOS, dtype=torch.long)
        logits = []
        for i in range(target.size(1)):
            out, hidden = decoder.step(token, hidden, memory)
            logits.append(out)
            token = target[:, i]
        loss = F.cross_entropy(torch.stack(logits, dim=1).transpose(1, 2), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    with torch.no_grad():
        memory, hidden = encoder(source)
        hidden, token, decoded = hidden.squeeze(0), torch.full((4,), SOS), []
        for _ in range(5):
            out, hidden = decoder.step(token, hidden, memory)
            _, topi = out.topk(1)
            token = topi.squeeze(-1).detach()
            decoded.append(token)
    return losses, torch.stack(decoded, dim=1)
