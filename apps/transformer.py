"""Language models: `python apps/transformer.py`, and `--model lstm` for the word-level LSTM of needle's course.

A causal Transformer over characters (4 layers, 4 heads, width 128, context 128) learns tinyshakespeare, or the text
that --data names, and writes some of its own. Without it or internet, it learns from a text in dlsys.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Iterator
from typing import Any

import dlsys as dl
import numpy as np
from dlsys import autodiff as ad
from dlsys import nn, optim
from dlsys.cli import run
from dlsys.data import CharacterText, DataLoader, SequenceDataset, WordText, batchify


class Transformer(nn.Module):
    """int64 (N, T) -> logits (N T, characters) of the character after each."""

    def __init__(
        self,
        characters: int,
        width: int = 128,
        heads: int = 4,
        layers: int = 4,
        context: int = 128,
        dropout: float = 0.0,
    ) -> None:
        self.tokens = nn.Embedding(characters, width)
        self.positions = nn.Parameter(np.zeros((context, width), np.float32), "positions")
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList([nn.GPTBlock(width, heads, dropout=dropout) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, characters, bias=False)
        self.context = context
        for parameter in self.parameters():
            if len(parameter.shape) == 2:
                nn.init.normal_(parameter, 0.0, 0.02)  # as GPT-2
        for block in self.blocks:  # so that the sum over all layers keeps its size
            for last in (block.attn.out_proj.weight, block.mlp.c_proj.weight):
                nn.init.normal_(last, 0.0, 0.02 / math.sqrt(2 * layers))

    def forward(self, x: ad.Node) -> ad.Node:
        h = self.dropout(self.tokens(x) + self.positions)
        for block in self.blocks:
            h = block(h)
        return ad.flatten_op(self.head(self.norm(h)), 0, 1)


class LSTMLanguageModel(nn.Module):
    """int64 (N, T) -> logits (N T, words) of the word after each; every window starts from a state of zeros."""

    def __init__(self, words: int, width: int = 256, layers: int = 2, context: int = 35, dropout: float = 0.0) -> None:
        self.tokens = nn.Embedding(words, width)
        nn.init.uniform_(self.tokens.weight, -0.1, 0.1)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True, dropout=dropout)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(width, words)
        self.context = context

    def forward(self, x: ad.Node) -> ad.Node:
        output, _ = self.lstm(self.dropout(self.tokens(x)))
        return ad.flatten_op(self.head(self.dropout(output)), 0, 1)


def flat_loss(logits: ad.Node, targets: ad.Node) -> ad.Node:
    """Nats a token: (N T, classes), int64 (N, T) -> ()."""
    return ad.cross_entropy_op(logits, ad.flatten_op(targets))


class Windows:
    """Batches of windows of a row of words, in order, as needle's `batchify` and `get_batch` make them; smaller ones of
    a text that is too short for `batch_size`."""

    def __init__(self, tokens: np.ndarray, batch_size: int, length: int) -> None:
        rows = max(1, min(batch_size, len(tokens) // (length + 1)))
        self.columns, self.length = batchify(tokens, rows), length

    def __len__(self) -> int:
        return (len(self.columns) - 1) // self.length

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for start in range(0, len(self) * self.length, self.length):
            window = self.columns[start : start + self.length + 1].T
            yield np.ascontiguousarray(window[:, :-1]), np.ascontiguousarray(window[:, 1:])


class Some:
    """The first `count` batches of a loader, as an epoch; the loader's next epoch shuffles anew."""

    def __init__(self, loader: Any, count: int) -> None:
        self.loader, self.count = loader, min(count, len(loader))
        self.done = 0

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Any]:
        for batch in itertools.islice(self.loader, self.count - self.done):
            self.done += 1
            yield batch
        self.done = 0
        self.loader.set_epoch(self.loader.epoch + 1)

    def state_dict(self) -> dict[str, Any]:
        return {"loader": self.loader.state_dict(), "done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loader.load_state_dict(state["loader"])
        self.done = state["done"] % self.count
        if state["done"] and not self.done:  # it was the epoch's last
            self.loader.set_epoch(self.loader.epoch + 1)


def sample(model: nn.Module, start: np.ndarray, count: int, temperature: float, seed: int) -> np.ndarray:
    """`start` and `count` tokens more, each drawn from the model's distribution, sharpened by a temperature below 1."""
    logits_of = dl.compile(model.eval())
    rng, tokens = np.random.default_rng(seed), list(start)
    for _ in range(count):
        seen = tokens[-model.context :]
        window = np.zeros((1, model.context), np.int64)
        window[0, : len(seen)] = seen  # what follows cannot be seen by what stands before
        logits = logits_of(window).numpy()[len(seen) - 1]
        scaled = logits.astype(np.float64) / temperature
        shares = np.exp(scaled - scaled.max())
        tokens.append(int(rng.choice(len(shares), p=shares / shares.sum())))
    return np.array(tokens)


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("transformer", "lstm"), default="transformer")
    parser.add_argument("--data", help="a text, or tinyshakespeare's directory (default: DLSYS_DATA, cache, mirror)")
    parser.add_argument("--steps", type=int, default=2000, help="of the optimizer, in all; 0 only evaluates")
    parser.add_argument("--every", type=int, default=250, help="steps between two validations")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=2e-3, help="AdamW's step: warm-up, then a cosine to a tenth")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--words", type=int, default=5000, help="most words of the LSTM's vocabulary")
    parser.add_argument("--sample", type=int, default=400, help="tokens to write at the end")
    parser.add_argument("--start", default="\n", help="what the sample starts with")
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu", help="where to train: cpu, cuda, cuda:1")
    parser.add_argument("--threads", type=int, help="of the kernels (default: all cores)")
    parser.add_argument("--directory", help="folder of checkpoints and log, to continue from")
    options = parser.parse_args(given)
    for name, least in (("steps", 0), ("every", 1), ("words", 1), ("sample", 0)):
        if getattr(options, name) < least:
            parser.error(f"argument --{name}: must be {least} or more, not {getattr(options, name)}")
    if not 0 < options.temperature < np.inf:
        parser.error(f"argument --temperature: must be a number above 0, not {options.temperature}")
    return options


def main(options: argparse.Namespace) -> float:
    """Trains and samples; returns the nats a token on the held-out part."""
    if options.threads is not None:
        dl.set_num_threads(options.threads)
    dl.manual_seed(options.seed)
    model: Any
    train: Any
    valid: Any
    if options.model == "transformer":
        text = CharacterText(options.data)
        print(text)
        model = Transformer(len(text.vocabulary), dropout=options.dropout)
        windows = SequenceDataset(text.train, model.context, stride=1)  # which begin at each character
        loader = DataLoader(windows, options.batch_size, shuffle=True, seed=options.seed, drop_last=True)
        train = Some(loader, options.every)
        valid = DataLoader(SequenceDataset(text.test, model.context), options.batch_size)
        start, decode = text.encode(options.start), text.decode
    else:
        words = WordText(options.data, max_words=options.words)
        print(words)
        model = LSTMLanguageModel(len(words.dictionary), dropout=options.dropout)
        train = Windows(words.train, options.batch_size, model.context)
        valid = Windows(words.test, options.batch_size, model.context)
        start = np.array([words.dictionary.word2idx["<eos>"]])

        def decode(numbers: np.ndarray) -> str:
            return " ".join(words.dictionary.idx2word[number] for number in numbers)

    print(model.to(options.device))
    optimizer = optim.AdamW(model.parameters(), lr=options.lr, weight_decay=0.1)
    warm_up = min(100, options.steps // 10)

    def rate(step: int) -> float:
        share = min(max((step - warm_up) / max(options.steps - warm_up, 1), 0.0), 1.0)
        return min((step + 1) / max(warm_up, 1), 1.0) * (0.1 + 0.45 * (1 + math.cos(math.pi * share)))

    history = dl.fit(
        model,
        flat_loss,
        optimizer,
        train,
        epochs=max(1, round(options.steps / len(train))) if options.steps else 0,
        validation=valid,
        schedule=optim.LambdaLR(optimizer, rate),
        schedule_each="step",
        clip_norm=1.0,
        directory=options.directory,
    )
    if history.epochs:
        nats = history.epochs[-1]["validation_loss"]
    else:  # --steps 0
        nats = dl.evaluate_on(model, flat_loss, valid)["loss"]
    if options.sample:
        print(decode(sample(model, start, options.sample, options.temperature, options.seed)))
    print(f"held-out loss = {nats:.4f} nats a token (perplexity {math.exp(nats):.2f})")
    return nats


if __name__ == "__main__":
    sys.exit(run(sys.argv[0], lambda: main(arguments())))
