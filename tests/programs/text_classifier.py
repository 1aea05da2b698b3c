"""Sentences of several lengths: padded, masked, averaged, classified."""

import numpy as np
import torch
import torch.nn as nn


def collate(sentences, pad=0):
    lengths = torch.tensor([len(s) for s in sentences])
    batch = torch.full((len(sentences), int(lengths.max())), pad, dtype=torch.long)
    for i, s in enumerate(sentences):
        batch[i, : len(s)] = torch.tensor(s)
    return batch, lengths


class Classifier(nn.Module):
    def __init__(self, vocab, dim, classes):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim, padding_idx=0)
        self.attn = nn.Linear(dim, 1)
        self.fc = nn.Linear(2 * dim, classes)

    def forward(self, tokens, lengths):
        x = self.embed(tokens)
        mask = torch.arange(tokens.size(1))[None, :] < lengths[:, None]
        mean = (x * mask.unsqueeze(-1).float()).sum(1) / lengths.unsqueeze(1).float()
        scores = self.attn(x).squeeze(-1).masked_fill(~mask, -1e9)
        pooled = torch.bmm(torch.softmax(scores, dim=1).unsqueeze(1), x).squeeze(1)
        return self.fc(torch.cat((mean, pooled), dim=1))


def run(prepare):
    rng = np.random.default_rng(5)
    sentences = [rng.integers(1, 30, size=n).tolist() for n in (3, 7, 5, 2, 6, 7)]
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    model = prepare(Classifier(30, 8, 3))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for _ in range(20):
        tokens, lengths = collate(sentences)
        optimizer.zero_grad()
        logits = model(tokens, lengths)
        loss = criterion(logits, labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    accuracy = (logits.argmax(dim=1) == labels).float().mean().item()
    return losses, accuracy
