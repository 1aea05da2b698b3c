"""A bidirectional LSTM tags the words of padded sentences."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class Tagger(nn.Module):
    def __init__(self, vocab, tags, dim=8, hidden=6):
        super().__init__()
        self.embedding = nn.Embedding(vocab, dim, padding_idx=0)
        self.lstm = nn.LSTM(dim, hidden, num_layers=1, batch_first=True, bidirectional=True)
        self.dropout = nn.Dropout(0.0)
        self.hidden2tag = nn.Linear(2 * hidden, tags)

    def forward(self, sentence):
        out, (h_n, c_n) = self.lstm(self.embedding(sentence))
        return self.hidden2tag(self.dropout(out))


def run(prepare):
    rng = np.random.default_rng(13)
    words = torch.from_numpy(rng.integers(1, 25, (4, 6)))
    tags = torch.from_numpy(rng.integers(0, 3, (4, 6)))
    for i, length in enumerate([6, 4, 3, 5]):
        words[i, length:] = 0
        tags[i, length:] = -100
    model = prepare(Tagger(25, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for _ in range(20):
        model.zero_grad()
        scores = model(words)
        loss = F.cross_entropy(scores.view(-1, 3), tags.view(-1), ignore_index=-100)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    keep = tags != -100
    correct = (scores.argmax(-1)[keep] == tags[keep]).sum().item()
    return losses, correct
