"""Texts and sounds: masks, sampling, beams."""

from collections import OrderedDict

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


def top_k_top_p_filtering(logits, top_k=0, top_p=0.0, filter_value=-float("Inf")):
    logits = logits.clone()
    if top_k > 0:
        indices_to_remove = logits < torch.topk(logits, top_k)[0][..., -1, None]
        logits[indices_to_remove] = filter_value
    if top_p > 0.0:
        sorted_logits, sorted_indices = torch.sort(logits, descending=True)
        cumulative_probs = torch.cumsum(F.softmax(sorted_logits, dim=-1), dim=-1)
        sorted_indices_to_remove = cumulative_probs > top_p
        sorted_indices_to_remove[..., 1:] = sorted_indices_to_remove[..., :-1].clone()
        sorted_indices_to_remove[..., 0] = 0
        indices_to_remove = sorted_indices_to_remove.scatter(-1, sorted_indices, sorted_indices_to_remove)
        logits = logits.masked_fill(indices_to_remove, filter_value)
    return logits


def run_sampling(prepare, train):
    """Temperature, top-k and nucleus sampling with noise that is given, by the Gumbel trick."""
    rng = np.random.default_rng(64)
    table = torch.from_numpy(rng.normal(size=(10, 10)).astype(np.float32) * 2)
    token, chosen, probabilities = torch.tensor([0, 3]), [], []
    for step in range(20):
        logits = table[token] / 0.8
        logits = top_k_top_p_filtering(logits, top_k=5 if step % 2 else 0, top_p=0.9)
        probs = F.softmax(logits, dim=-1)
        uniform = torch.from_numpy(rng.random((2, 10)).astype(np.float32)).clamp(1e-6, 1 - 1e-6)
        gumbel = -torch.log(-torch.log(uniform))
        token = (torch.log(probs + 1e-20) + gumbel).argmax(dim=-1)
        chosen.append(token)
        probabilities.append(probs.max(dim=-1).values)
    return torch.stack(chosen), torch.stack(probabilities)


class CausalConv1d(nn.Conv1d):
    def __init__(self, cin, cout, kernel_size, dilation=1):
        super().__init__(cin, cout, kernel_size, dilation=dilation)
        self.left = (kernel_size - 1) * dilation

    def forward(self, x):
        return super().forward(F.pad(x, (self.left, 0)))


class Block(nn.Module):
    def __init__(self, channels, dilation):
        super().__init__()
        self.filter = CausalConv1d(channels, channels, 2, dilation)
        self.gate = CausalConv1d(channels, channels, 2, dilation)
        self.residual = nn.Conv1d(channels, channels, 1)
        self.skip = nn.Conv1d(channels, channels, 1)

    def forward(self, x):
        h = torch.tanh(self.filter(x)) * torch.sigmoid(self.gate(x))
        return x + self.residual(h), self.skip(h)


class WaveNet(nn.Module):
    def __init__(self, levels=16, channels=8, dilations=(1, 2, 4)):
        super().__init__()
        self.embed = nn.Embedding(levels, channels)
        self.blocks = nn.ModuleList([Block(channels, d) for d in dilations])
        self.head = nn.Sequential(nn.ReLU(), nn.Conv1d(channels, levels, 1))

    def forward(self, x):
        x = self.embed(x).transpose(1, 2)
        skips = 0
        for block in self.blocks:
            x, skip = block(x)
            skips = skips + skip
        return self.head(skips)


def mu_law(x, mu=15):
    y = torch.sign(x) * torch.log1p(mu * torch.abs(x)) / np.log1p(mu)
    return ((y + 1) / 2 * mu + 0.5).long()


def run_wavenet(prepare, train):
    """Causal dilated convolutions with gates, residuals and skips, van den Oord et al. (2016)."""
    t = torch.linspace(0, 12.0, 25)
    audio = mu_law(torch.stack([torch.sin(t), torch.sin(1.7 * t) * 0.5]))
    model = prepare(WaveNet())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(20):
        logits = model(audio[:, :-1])
        loss = F.cross_entropy(logits, audio[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


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


class Old(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 6)
        self.body = nn.Sequential(nn.Linear(6, 6), nn.ReLU())
        self.classifier = nn.Linear(6, 4)


class New(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(12, 6)
        self.backbone = nn.Sequential(nn.Linear(6, 6), nn.ReLU())
        self.head = nn.Linear(6, 12, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x):
        return self.head(self.backbone(self.tokens(x)))


def run_state_dict_surgery(prepare, train):
    """Weights of one network moved to another: names changed, shapes compared, strict=False, tied embeddings."""
    old, new = prepare(Old()), prepare(New())
    pretrained, own = old.state_dict(), new.state_dict()
    renamed = OrderedDict()
    for key, value in pretrained.items():
        key = key.replace("body.", "backbone.")
        if key in own and own[key].shape == value.shape:
            renamed[key] = value
    result = new.load_state_dict(renamed, strict=False)
    assert sorted(result.missing_keys) == ["head.weight", "tokens.weight"]
    with torch.no_grad():
        new.tokens.weight[:10].copy_(old.embed.weight)
        new.tokens.weight[10:] = old.embed.weight.mean(0)
    x = torch.from_numpy(np.random.default_rng(53).integers(0, 12, (4, 5)))
    optimizer = torch.optim.Adam(new.parameters(), lr=0.01)
    losses = []
    for _ in range(20):
        logits = new(x[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, {k: tuple(v.shape) for k, v in new.state_dict().items()}


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


def run_language_model_rnn(prepare, train):
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
