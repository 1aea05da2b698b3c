"""A GPT in the words of nanoGPT, 4 layers of width 128, that generates with a cache of keys and values.

The prompt, padded to a power of two, is one call of a compiled function, each new token another. `python nano_gpt.py
100` prints the seconds, by the clock and of the CPU, that so many tokens take.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import dlsys as torch
import numpy as np
from dlsys import nn
from dlsys.nn import functional as F

VOCABULARY, WIDTH, HEADS, LAYERS, CONTEXT = 65, 128, 4, 4, 256


class CausalSelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.cache = nn.KVCache(CONTEXT)

    def forward(self, x: Any) -> Any:
        B, T, C = x.size()
        q, k, v = (y.view(B, T, HEADS, C // HEADS).transpose(1, 2) for y in self.c_attn(x).split(WIDTH, dim=2))
        if self.training:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            keys, values, seen = self.cache.append(k, v)
            y = F.scaled_dot_product_attention(q, keys, values, attn_mask=seen)
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = nn.LayerNorm(WIDTH), CausalSelfAttention(), nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Any) -> Any:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.h, self.ln_f = nn.ModuleList([Block() for _ in range(LAYERS)]), nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    @property
    def caches(self) -> list[nn.KVCache]:
        return [block.attn.cache for block in self.h]

    def forward(self, idx: Any) -> Any:
        positions = torch.arange(0, idx.size(1), dtype=torch.long)
        x = self.wte(idx) + self.wpe(positions if self.training else self.caches[0].position + positions)
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))

    @torch.compile
    def probabilities(self, idx: Any, last: Any, temperature: float) -> Any:
        """Of the token after the one at `last`, of tokens that follow those in the cache."""
        return F.softmax(self(idx)[:, last] / temperature, dim=-1)

    @torch.no_grad()
    def generate(self, idx: Any, max_new_tokens: int, temperature: float = 0.8) -> Any:
        """The tokens, and new ones that are drawn; with them at most CONTEXT. Raises GraphError beyond."""
        for cache in self.caches:
            cache.reset()
        rows, length = idx.size()
        size = min(1 << (length - 1).bit_length(), CONTEXT)  # so that few lengths are compiled
        padded = torch.cat((idx, torch.zeros((rows, size - length), dtype=torch.long)), dim=1)
        shares = self.probabilities(padded, torch.tensor(length - 1), temperature)
        for cache in self.caches:
            cache.truncate(length)
        tokens, last = [idx.numpy()], torch.tensor(0)
        for left in reversed(range(max_new_tokens)):
            idx_next = torch.multinomial(shares, num_samples=1)
            tokens.append(idx_next.numpy())
            if left:
                shares = self.probabilities(idx_next, last, temperature)
        return torch.tensor(np.concatenate(tokens, 1))


if __name__ == "__main__":
    torch.manual_seed(0)
    model = GPT().eval()
    text = torch.zeros((1, 1), dtype=torch.long)
    began = time.perf_counter(), time.process_time()
    model.generate(text, int(sys.argv[1])).numpy()
    print(time.perf_counter() - began[0], time.process_time() - began[1])
