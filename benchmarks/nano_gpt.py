"""A GPT in the words of nanoGPT, 4 layers of width 128, that generates: each new token makes a text that is longer by
one. `python nano_gpt.py 100` prints the seconds, by the clock and of the CPU, that so many tokens take."""

from __future__ import annotations

import sys
import time
from typing import Any

import dlsys as torch
from dlsys import nn
from dlsys.nn import functional as F

VOCABULARY, WIDTH, HEADS, LAYERS, CONTEXT = 65, 128, 4, 4, 256


class CausalSelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        B, T, C = x.size()
        q, k, v = (y.view(B, T, HEADS, C // HEADS).transpose(1, 2) for y in self.c_attn(x).split(WIDTH, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
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

    def forward(self, idx: Any) -> Any:
        x = self.wte(idx) + self.wpe(torch.arange(0, idx.size(1), dtype=torch.long))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x)[:, [-1], :])

    @torch.no_grad()
    def generate(self, idx: Any, max_new_tokens: int, temperature: float = 0.8) -> Any:
        for _ in range(max_new_tokens):
            logits = self(idx[:, -CONTEXT:])[:, -1, :] / temperature
            idx_next = torch.multinomial(F.softmax(logits, dim=-1), num_samples=1)
            idx = torch.cat((idx, idx_next), dim=1)
        return idx


if __name__ == "__main__":
    torch.manual_seed(0)
    model = GPT().eval()
    text = torch.zeros((1, 1), dtype=torch.long)
    began = time.perf_counter(), time.process_time()
    model.generate(text, int(sys.argv[1])).numpy()
    print(time.perf_counter() - began[0], time.process_time() - began[1])
