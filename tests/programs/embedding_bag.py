"""The text classifier of PyTorch's tutorial: bags of words with offsets."""

import numpy as np
import torch
from torch import nn


class TextClassificationModel(nn.Module):
    def __init__(self, vocab_size, embed_dim, num_class):
        super().__init__()
        self.embedding = nn.EmbeddingBag(vocab_size, embed_dim, sparse=False)
        self.fc = nn.Linear(embed_dim, num_class)
        self.init_weights()

    def init_weights(self):
        initrange = 0.5
        self.embedding.weight.data.uniform_(-initrange, initrange)
        self.fc.weight.data.uniform_(-initrange, initrange)
        self.fc.bias.data.zero_()

    def forward(self, text, offsets):
        return self.fc(self.embedding(text, offsets))


def collate_batch(batch):
    labels, texts, offsets = [], [], [0]
    for label, text in batch:
        labels.append(label - 1)
        processed = torch.tensor(text, dtype=torch.int64)
        texts.append(processed)
        offsets.append(processed.size(0))
    offsets = torch.tensor(offsets[:-1]).cumsum(dim=0)
    return torch.tensor(labels, dtype=torch.int64), torch.cat(texts), offsets


def run(prepare):
    rng = np.random.default_rng(23)
    batch = [(int(rng.integers(1, 5)), rng.integers(0, 40, n).tolist()) for n in (3, 5, 2, 8, 4)]
    model = prepare(TextClassificationModel(40, 8, 4))
    criterion = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    losses = []
    for _ in range(20):
        label, text, offsets = collate_batch(batch)
        optimizer.zero_grad()
        loss = criterion(model(text, offsets), label)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        losses.append(loss.item())
    return losses
