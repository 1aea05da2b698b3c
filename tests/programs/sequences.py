"""Attention and recurrence."""

import math

import numpy as np
import torch
import torch.nn as nn
from torch.nn import functional as F


class Head(nn.Module):
    def __init__(self, n_embd, head_size, block_size):
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.register_buffer("tril", torch.tril(torch.ones(block_size, block_size)))

    def forward(self, x):
        B, T, C = x.shape
        k, q = self.key(x), self.query(x)
        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        return F.softmax(wei, dim=-1) @ self.value(x)


class Block(nn.Module):
    def __init__(self, n_embd, n_head, block_size):
        super().__init__()
        self.heads = nn.ModuleList([Head(n_embd, n_embd // n_head, block_size) for _ in range(n_head)])
        self.proj = nn.Linear(n_embd, n_embd)
        self.ffwd = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.ReLU(), nn.Linear(4 * n_embd, n_embd))
        self.ln1, self.ln2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)

    def forward(self, x):
        y = self.ln1(x)
        x = x + self.proj(torch.cat([h(y) for h in self.heads], dim=-1))
        return x + self.ffwd(self.ln2(x))


class GPT(nn.Module):
    def __init__(self, vocab, n_embd=16, block_size=8):
        super().__init__()
        self.block_size = block_size
        self.token_embedding_table = nn.Embedding(vocab, n_embd)
        self.position_embedding_table = nn.Embedding(block_size, n_embd)
        self.blocks = nn.Sequential(*[Block(n_embd, 2, block_size) for _ in range(2)])
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab)

    def forward(self, idx, targets=None):
        B, T = idx.shape
        x = self.token_embedding_table(idx) + self.position_embedding_table(torch.arange(T))
        logits = self.lm_head(self.ln_f(self.blocks(x)))
        if targets is None:
            return logits, None
        B, T, C = logits.shape
        return logits, F.cross_entropy(logits.view(B * T, C), targets.view(B * T))

    @torch.no_grad()
    def generate(self, idx, max_new_tokens):
        for _ in range(max_new_tokens):
            logits, _ = self(idx[:, -self.block_size :])
            idx_next = torch.argmax(F.softmax(logits[:, -1, :], dim=-1), dim=-1, keepdim=True)
            idx = torch.cat((idx, idx_next), dim=1)
        return idx


def run_causal_lm(prepare, train):
    """A GPT of two blocks learns a text, and continues it greedily."""
    text = "to be, or not to be, that is the question"
    chars = sorted(set(text))
    data = torch.tensor([chars.index(c) for c in text], dtype=torch.long)
    rng = np.random.default_rng(16)
    model = prepare(GPT(len(chars)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(20):
        ix = rng.integers(0, len(data) - 9, 4).tolist()
        xb = torch.stack([data[i : i + 8] for i in ix])
        yb = torch.stack([data[i + 1 : i + 9] for i in ix])
        _, loss = model(xb, yb)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model.generate(data[None, :8], 3)[0].tolist()


def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


class GroupedQueryAttention(nn.Module):
    def __init__(self, dim, heads, kv_heads, length):
        super().__init__()
        self.heads, self.kv_heads, self.hd = heads, kv_heads, dim // heads
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, kv_heads * self.hd, bias=False)
        self.wv = nn.Linear(dim, kv_heads * self.hd, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        inv_freq = 1.0 / (10000 ** (torch.arange(0, self.hd, 2).float() / self.hd))
        freqs = torch.outer(torch.arange(length).float(), inv_freq)
        emb = torch.cat((freqs, freqs), dim=-1)
        self.register_buffer("cos", emb.cos(), persistent=False)
        self.register_buffer("sin", emb.sin(), persistent=False)

    def forward(self, x):
        B, T, C = x.shape
        q = self.wq(x).view(B, T, self.heads, self.hd).transpose(1, 2)
        k = self.wk(x).view(B, T, self.kv_heads, self.hd).transpose(1, 2)
        v = self.wv(x).view(B, T, self.kv_heads, self.hd).transpose(1, 2)
        q = q * self.cos[:T] + rotate_half(q) * self.sin[:T]
        k = k * self.cos[:T] + rotate_half(k) * self.sin[:T]
        k = k.repeat_interleave(self.heads // self.kv_heads, dim=1)
        v = v.repeat_interleave(self.heads // self.kv_heads, dim=1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).contiguous().view(B, T, C))


class LlamaBlock(nn.Module):
    def __init__(self, dim=16, hidden=24):
        super().__init__()
        self.attn = GroupedQueryAttention(dim, 4, 2, 8)
        self.norm1, self.norm2 = nn.RMSNorm(dim, eps=1e-6), nn.RMSNorm(dim, eps=1e-6)
        self.w1 = nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)
        self.w3 = nn.Linear(dim, hidden, bias=False)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        h = self.norm2(x)
        return x + self.w2(F.silu(self.w1(h)) * self.w3(h))


def run_llama_block(prepare, train):
    """A block of LLaMA: RMSNorm, rotary positions, grouped queries, SwiGLU."""
    rng = np.random.default_rng(7)
    model = prepare(nn.Sequential(nn.Embedding(20, 16), LlamaBlock(), LlamaBlock(), nn.Linear(16, 20, bias=False)))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    data = torch.from_numpy(rng.integers(0, 20, (4, 9)))
    losses = []
    for _ in range(20):
        logits = model(data[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, logits.size(-1)), data[:, 1:].reshape(-1))
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        losses.append(loss.item())
    return losses


class PositionalEncoding(nn.Module):
    def __init__(self, d_model, max_len=32):
        super().__init__()
        position = torch.arange(max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe = torch.zeros(1, max_len, d_model)
        pe[0, :, 0::2] = torch.sin(position * div_term)
        pe[0, :, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe)

    def forward(self, x):
        return x + self.pe[:, : x.size(1)]


class Model(nn.Module):
    def __init__(self, vocab=20, d_model=16):
        super().__init__()
        self.d_model = d_model
        self.embed = nn.Embedding(vocab, d_model)
        self.pos = PositionalEncoding(d_model)
        layer = nn.TransformerEncoderLayer(d_model, 4, dim_feedforward=32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2)
        self.fc = nn.Linear(d_model, 2)

    def forward(self, tokens):
        padding = tokens == 0
        x = self.pos(self.embed(tokens) * math.sqrt(self.d_model))
        x = self.encoder(x, src_key_padding_mask=padding)
        keep = (~padding).unsqueeze(-1)
        return self.fc((x * keep).sum(1) / keep.sum(1))


def run_transformer_encoder(prepare, train):
    """A Transformer encoder with sinusoidal positions and a padding mask classifies sequences."""
    rng = np.random.default_rng(15)
    tokens = torch.tensor(rng.integers(1, 20, (6, 7)))
    tokens[1, 5:] = 0
    tokens[4, 3:] = 0
    labels = torch.tensor([0, 1, 0, 1, 1, 0])
    model = prepare(Model())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=8, gamma=0.5)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens), labels)
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses, scheduler.get_last_lr()


class Forecaster(nn.Module):
    def __init__(self, hidden=10):
        super().__init__()
        self.gru = nn.GRU(input_size=1, hidden_size=hidden, num_layers=2, batch_first=True)
        self.linear = nn.Linear(hidden, 1)

    def forward(self, x, h=None):
        out, h = self.gru(x, h)
        return self.linear(out), h


def run_gru_forecast(prepare, train):
    """A two-layer GRU forecasts a wave, and rolls on with its own outputs."""
    t = np.arange(0, 6, 0.25)
    waves = np.stack([np.sin(t + phase) for phase in (0.0, 1.0, 2.0)]).astype("float32")[..., None]
    data = torch.from_numpy(waves)
    model = prepare(Forecaster())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        pred, _ = model(data[:, :-1])
        loss = nn.functional.l1_loss(pred, data[:, 1:])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        pred, h = model(data)
        step, future = pred[:, -1:], []
        for _ in range(3):
            future.append(step)
            step, h = model(step, h)
    return losses, torch.cat(future, dim=1)


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


def run_lstm_tagger(prepare, train):
    """A bidirectional LSTM tags the words of padded sentences."""
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


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.RNN(3, 12, batch_first=True)
        self.head = nn.Linear(12, 1)

    def forward(self, x):
        out, _ = self.rnn(x)
        return self.head(out[:, -1, :])


def run_gradient_clipping(prepare, train):
    """A recurrent network whose gradients are clipped by value, by norm, and looked at."""
    rng = np.random.default_rng(9)
    x = torch.from_numpy(rng.normal(size=(6, 7, 3)).astype("float32"))
    y = 10 * x.sum(dim=(1, 2)).unsqueeze(1)
    model = prepare(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses, norms = [], []
    for step in range(20):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        if step % 2:
            nn.utils.clip_grad_value_(model.parameters(), 0.5)
        else:
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0).item())
        total = torch.sqrt(sum(p.grad.pow(2).sum() for p in model.parameters() if p.grad is not None))
        norms.append(total.item())
        optimizer.step()
        losses.append(loss.item())
    return losses, norms
