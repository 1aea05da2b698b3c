"""Training loops of twenty ordinary programs: `python benchmarks/bench_programs.py`.

Each program is written as for PyTorch, and runs with PyTorch's modules or with dlsys'. From equal weights the first
losses are compared; then PyTorch's eager loop, dlsys' eager loop and dlsys' compiled step are timed in turn, each with
the loss read at each step. `--cpu` takes the least processor time in place of the median, for a machine that is busy.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import common
import numpy as np
from timing import in_turn, repeat

LEAST = 0.1  # seconds a turn
CHECKED = 5  # steps whose losses are compared
TOLERANCE = 2e-3  # relative; steps of Adam part rounding errors
KINDS = ("eager", "compiled")


class Draws:
    """Tensors of one library of random numbers that NumPy draws, the same for each library."""

    def __init__(self, T: Any) -> None:
        self._tensor, self._generator = T.from_numpy, np.random.default_rng(0)

    def normal(self, *shape: int) -> Any:
        """Standard normal numbers."""
        return self._tensor(self._generator.standard_normal(shape, np.float32))

    def uniform(self, *shape: int) -> Any:
        """Numbers between 0 and 1."""
        return self._tensor(self._generator.random(shape, np.float32))

    def integers(self, high: int, *shape: int) -> Any:
        """Integers from 0 to `high`, exclusive."""
        return self._tensor(self._generator.integers(0, high, shape))


def trained(optimizer: Any, loss_of: Callable[[], Any], after: Callable[[], Any] = lambda: None) -> Callable[[], Any]:
    """The usual step; `after` comes between the gradients and the update."""

    def step() -> Any:
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        after()
        optimizer.step()
        return loss

    return step


# The programs ----------------------------------------------------------------------------------------------


def vae(T: Any, nn: Any, F: Any, optim: Any) -> Any:
    """A variational autoencoder of images of 784 pixels."""
    draws = Draws(T)
    images, noise = draws.uniform(64, 784), draws.normal(64, 16)

    class Autoencoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 32))
            self.decoder = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 784))

        def forward(self, x: Any) -> Any:
            mean, log_variance = self.encoder(x).chunk(2, dim=1)
            z = mean + T.exp(0.5 * log_variance) * noise
            return self.decoder(z), mean, log_variance

    model = Autoencoder()
    optimizer = optim.Adam(model.parameters(), lr=1e-3)

    def loss_of() -> Any:
        logits, mean, log_variance = model(images)
        reconstruction = F.binary_cross_entropy_with_logits(logits, images, reduction="sum")
        divergence = -0.5 * T.sum(1 + log_variance - mean.pow(2) - log_variance.exp())
        return (reconstruction + divergence) / images.shape[0]

    return model, trained(optimizer, loss_of)


def gan(T: Any, nn: Any, F: Any, optim: Any) -> Any:
    """A generator and a discriminator of images, each with its optimizer."""
    draws = Draws(T)
    images, noise = draws.normal(64, 784), draws.normal(64, 32)
    generator = nn.Sequential(nn.Linear(32, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 784), nn.Tanh())
    discriminator = nn.Sequential(nn.Linear(784, 128), nn.LeakyReLU(0.2), nn.Linear(128, 1))
    of_generator = optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    of_discriminator = optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    criterion = nn.BCEWithLogitsLoss()
    real, fake = T.ones(64, 1), T.zeros(64, 1)

    def step() -> Any:
        of_discriminator.zero_grad()
        made = generator(noise)
        d_loss = criterion(discriminator(images), real) + criterion(discriminator(made.detach()), fake)
        d_loss.backward()
        of_discriminator.step()
        of_generator.zero_grad()
        g_loss = criterion(discriminator(made), real)
        g_loss.backward()
        of_generator.step()
        return d_loss + g_loss

    return nn.ModuleList([generator, discriminator]), step


def unet(T: Any, nn: Any, F: Any, optim: Any) -> Any:
    """A U-Net of two levels that segments images of 32 x 32, with the Dice loss."""
    draws = Draws(T)
    images, masks = draws.normal(4, 3, 32, 32), draws.integers(2, 4, 1, 32, 32).float()

    def twice(inputs: int, outputs: int) -> Any:
        first = [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
        return nn.Sequential(*first, nn.Conv2d(outputs, outputs, 3, padding=1), nn.ReLU())

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down1, self.down2, self.bottom = twice(3, 8), twice(8, 16), twice(16, 32)
            self.up2, self.up1 = nn.ConvTranspose2d(32, 16, 2, stride=2), nn.ConvTranspose2d(16, 8, 2, stride=2)
            self.merge2, self.merge1, self.head = twice(32, 16), twice(16, 8), nn.Conv2d(8, 1, 1)

        def forward(self, x: Any) -> Any:
            one = self.down1(x)
            two = self.down2(F.max_pool2d(one, 2))
            x = self.bottom(F.max_pool2d(two, 2))
            x = self.merge2(T.cat([self.up2(x), two], dim=1))
            x = self.merge1(T.cat([self.up1(x), one], dim=1))
            return self.head(x)

    model = UNet()
    optimizer = optim.Adam(model.parameters(), lr=1e-3)

    def loss_of() -> Any:
        logits = model(images)
        shares = T.sigmoid(logits)
        common_part = 2 * (shares * masks).sum(dim=(1, 2, 3)) + 1
        dice = 1 - common_part / (shares.sum(dim=(1, 2, 3)) + masks.sum(dim=(1, 2, 3)) + 1)
        return F.binary_cross_entropy_with_logits(logits, masks) + dice.mean()

    return model, trained(optimizer, loss_of)


def seq2seq(T: Any, nn: Any, F: Any, optim: Any) -> Any:
    """A GRU that encodes a sentence, and a cell with attention that decodes ten words, told the true ones."""
    draws = Draws(T)
    source, target = draws.integers(50, 16, 12), draws.integers(50, 16, 11)

    class Translator(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.encoder = nn.Embedding(50, 32), nn.GRU(32, 64, batch_first=True)
            self.cell, self.query = nn.GRUCell(32 + 64, 64), nn.Linear(64, 64)
            self.head = nn.Linear(64, 50)

        def forward(self, source: Any, target: Any) -> Any:
            memory, hidden = self.encoder(self.words(source))
            hidden = hidden[0]
            logits = []
            for t in range(target.shape[1] - 1):
                scores = T.bmm(memory, self.query(hidden).unsqueeze(2)).squeeze(2)
                context = (F.softmax(scores, dim=1).unsqueeze(2) * memory).sum(dim=1)
                hidden = self.cell(T.cat([self.words(target[:, t]), context], dim=1), hidden)
                logits.append(self.head(hidden))
            return T.stack(logits, dim=1)

    model = Translator()
    optimizer = optim.Adam(model.parameters(), lr=1e-3)

    def loss_of() -> Any:
        logits = model(source, target)
        return F.cross_entropy(logits.reshape(-1, 50), target[:, 1:].reshape(-1))

    return model, trained(optimizer, loss_of, lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0))


def gpt(T: Any, nn: Any, F: Any, optim: Any) -> Any:
    """A causal language model of two blocks, its output tied to the embedding, with a warm-up of the rate."""
    draws = Draws(T)
    tokens, width, heads = draws.integers(65, 8, 33), 64, 4

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.joint, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x: Any) -> Any:
            B, L, C = x.shape
            q, k, v = self.joint(self.norm1(x)).split(C, dim=2)
            q, k, v = (part.view(B, L, heads, C // heads).transpose(1, 2) for part in (q, k, v))
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(B, L, C))
            return x + self.wide(self.norm2(x))

    class GPT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(65, width), nn.Embedding(32, width)
            self.blocks, self.norm = nn.ModuleList([Block() for _ in range(2)]), nn.LayerNorm(width)
            self.head = nn.Linear(width, 65, bias=False)
            self.head.weight = self.words.weight

        def forward(self, tokens: Any) -> Any:
            x = self.words(tokens) + self.places(T.arange(tokens.shape[1]))
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    model = GPT()
    optimizer = optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1)
    schedule = optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 100))

    def step() -> Any:
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, 65), tokens[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        return loss

    return model, step


def lora(T: Any, nn: Any, F: Any, optim: Any) -> Any:
    """Low-rank changes of frozen layers are trained."""
    draws = Draws(T)
    x, y = draws.normal(64, 128), draws.integers(10, 64)

    class LowRank(nn.Module):
        def __init__(self, layer: Any, rank: int) -> None:
            super().__init__()
            self.layer = layer
            for parameter in layer.parameters():
                parameter.requires_grad = False
            self.down = nn.Parameter(T.randn(rank, layer.in_features) * 0.01)
            self.up = nn.Parameter(T.zeros(layer.out_features, rank))

        def forward(self, x: Any) -> Any:
            return self.layer(x) + 2.0 * (x @ self.down.T @ self.up.T)

    layers = [LowRank(nn.Linear(128, 256), 4), nn.ReLU(), LowRank(nn.Linear(256, 256), 4), nn.ReLU()]
    model = nn.Sequential(*layers, LowRank(nn.Linear(256, 10), 4))
    optimizer = optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    return model, trained(optimizer, lambda: F.cross_entropy(model(x), y))


def experts(T: Any, nn: Any, F: Any, optim: Any) -> Any:
    """A mixture of four experts, of which the gate takes two, with a loss that balances them."""
    draws = Draws(T)
    x, y = draws.normal(128, 32), draws.normal(128, 8)

    class Mixture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Linear(32, 4)
            made = [nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8)) for _ in range(4)]
            self.experts = nn.ModuleList(made)

        def forward(self, x: Any) -> Any:
            shares = F.softmax(self.gate(x), dim=-1)
            values, chosen = T.topk(shares, 2, dim=-1)
            weights = T.zeros_like(shares).scatter_add(1, chosen, values / values.sum(dim=-1, keepdim=True))
            results = T.stack([expert(x) for expert in self.experts], dim=1)
            used = (weights > 0).float().mean(dim=0)
            return (weights.unsqueeze(-1) * results).sum(dim=1), 4 * (used * shares.mean(dim=0)).sum()

    model = Mixture()
    optimizer = optim.Adam(model.parameters(), lr=1e-3)

    def loss_of() -> Any:
        found, balance = model(x)
        return F.mse_loss(found, y) + 0.01 * balance

    return model, trained(optimizer, loss_of)


def graph_attention(T: Any, nn: Any, F: Any, optim: Any) -> Any:
    """Two layers of attention over the edges of a graph of 200 nodes, of which half have labels."""
    draws = Draws(T)
    features, sources, targets = draws.normal(200, 32), draws.integers(200, 1000), draws.integers(200, 1000)
    labels, known = draws.integers(5, 200), draws.uniform(200) < 0.5

    class Attention(nn.Module):
        def __init__(self, inputs: int, outputs: int, heads: int) -> None:
            super().__init__()
            self.heads, self.outputs = heads, outputs
            self.project = nn.Linear(inputs, heads * outputs, bias=False)
            self.of_source = nn.Parameter(T.randn(heads, outputs) * 0.1)
            self.of_target = nn.Parameter(T.randn(heads, outputs) * 0.1)

        def forward(self, x: Any) -> Any:
            h = self.project(x).view(-1, self.heads, self.outputs)
            scores = (h * self.of_source).sum(-1)[sources] + (h * self.of_target).sum(-1)[targets]
            weights = T.exp(F.leaky_relu(scores, 0.2))
            totals = T.zeros(x.shape[0], self.heads).index_add(0, targets, weights)
            shares = weights / (totals[targets] + 1e-9)
            messages = h[sources] * shares.unsqueeze(-1)
            return T.zeros_like(h).index_add(0, targets, messages).flatten(1)

    model = nn.Sequential(Attention(32, 8, 4), nn.ELU(), Attention(32, 5, 1))
    optimizer = optim.Adam(model.parameters(), lr=5e-3, weight_decay=5e-4)

    def loss_of() -> Any:
        losses = F.cross_entropy(model(features), labels, reduction="none")
        return (losses * known).sum() / known.sum()

    return model, trained(optimizer, loss_of)


def ppo(T: Any, nn: Any, F: Any, optim: Any) -> Any:
    """One update of an actor and a critic by proximal policy optimization."""
    draws = Draws(T)
    states, actions, old = draws.normal(64, 8), draws.integers(4, 64), -draws.uniform(64) - 1.0
    returns, advantages = draws.normal(64), draws.normal(64)
    actor = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))
    critic = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    model = nn.ModuleDict({"actor": actor, "critic": critic})
    optimizer = optim.Adam(model.parameters(), lr=3e-4, eps=1e-5)

    def loss_of() -> Any:
        logarithms = F.log_softmax(actor(states), dim=-1)
        taken = logarithms.gather(1, actions.unsqueeze(1)).squeeze(1)
        scaled = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        change = T.exp(taken - old)
        clipped = T.clamp(change, 0.8, 1.2)
        policy = -T.min(change * scaled, clipped * scaled).mean()
        entropy = -(logarithms.exp() * logarithms).sum(dim=-1).mean()
        return policy + 0.5 * F.mse_loss(critic(states).squeeze(-1), returns) - 0.01 * entropy

    return model, trained(optimizer, loss_of, lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.5))


def dqn(T: Any, nn: Any, F: Any, optim: Any) -> Any:
    """A double deep Q network, whose target follows slowly."""
    draws = Draws(T)
    states, following, actions = draws.normal(64, 8), draws.normal(64, 8), draws.integers(4, 64, 1)
    rewards, done = draws.normal(64), draws.integers(2, 64).float()

    def network() -> Any:
        return nn.Sequential(nn.Linear(8, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 4))

    q, target = network(), network()
    target.load_state_dict(q.state_dict())
    optimizer = optim.RMSprop(q.parameters(), lr=1e-3)

    def step() -> Any:
        with T.no_grad():
            best = q(following).argmax(dim=1, keepdim=True)
            wanted = rewards + 0.99 * (1 - done) * target(following).gather(1, best).squeeze(1)
        loss = F.smooth_l1_loss(q(states).gather(1, actions).squeeze(1), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with T.no_grad():
            for slow, fast in zip(target.parameters(), q.parameters(), strict=True):
                slow.mul_(0.995).add_(0.005 * fast)
        return loss

    return nn.ModuleList([q, target]), step


def simclr(T: Any, nn: Any, F: Any, optim: Any) -> Any:
    """Contrastive learning: two views of an image are near each other, and far from all others."""
    draws = Draws(T)
    images, noise = draws.normal(16, 3, 16, 16), draws.normal(2, 16, 3, 16, 16)
    layers = [nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.BatchNorm2d(32)]
    encoder = nn.Sequential(*layers, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = nn.Sequential(encoder, nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
    optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)

    def loss_of() -> Any:
        views = T.cat([images + 0.1 * noise[0], T.flip(images, [3]) + 0.1 * noise[1]])
        z = F.normalize(model(views), dim=1)
        alike = z @ z.T / 0.5
        alike = alike.masked_fill(T.eye(32).bool(), float("-inf"))
        partners = T.cat([T.arange(16, 32), T.arange(16)])
        return F.cross_entropy(alike, partners)

    return model, trained(optimizer, loss_of)


def ddpm(T: Any, nn: Any, F: Any, optim: Any) -> Any:
    """A diffusion model of points learns to tell the noise at drawn times; its weights are averaged."""
    draws = Draws(T)
    points, noise, times = draws.normal(128, 2), draws.normal(128, 2), draws.integers(100, 128)
    kept = T.cumprod(1 - T.linspace(1e-4, 0.02, 100), dim=0)

    class Denoiser(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(34, 128), nn.SiLU(), nn.Linear(128, 128), nn.SiLU(), nn.Linear(128, 2))

        def forward(self, x: Any, t: Any) -> Any:
            angles = t.float().unsqueeze(1) * T.exp(-np.log(1000.0) * T.arange(16) / 16)
            return self.net(T.cat([x, T.sin(angles), T.cos(angles)], dim=1))

    model, average = Denoiser(), Denoiser()
    average.load_state_dict(model.state_dict())
    optimizer = optim.Adam(model.parameters(), lr=1e-3)

    def step() -> Any:
        share = kept[times].unsqueeze(1)
        noisy = share.sqrt() * points + (1 - share).sqrt() * noise
        loss = F.mse_loss(model(noisy, times), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with T.no_grad():
            for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, 0.01)
        return loss

    return nn.ModuleList([model, average]), step


def word2vec(T: Any, nn: Any, F: Any, optim: Any) -> Any:
    """Skip-gram with negative samples."""
    draws = Draws(T)
    centers, contexts, others = draws.integers(1000, 256), draws.integers(1000, 256), draws.integers(1000, 256, 5)
    inner, outer = nn.Embedding(1000, 64), nn.Embedding(1000, 64)
    model = nn.ModuleList([inner, outer])
    optimizer = optim.SGD(model.parameters(), lr=0.1)

    def loss_of() -> Any:
        center = inner(centers)
        positive = (center * outer(contexts)).sum(dim=1)
        negative = T.bmm(outer(others), center.unsqueeze(2)).squeeze(2)
        return -(F.logsigmoid(positive) + F.logsigmoid(-negative).sum(dim=1)).mean()

    return model, trained(optimizer, loss_of)


def crf(T: Any, nn: Any, F: Any, optim: Any) -> Any:
    """A tagger of words: an LSTM in both directions and a conditional random field."""
    draws = Draws(T)
    words, tags = draws.integers(100, 16, 12), draws.integers(6, 16, 12)

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.lstm = nn.Embedding(100, 32), nn.LSTM(32, 32, batch_first=True, bidirectional=True)
            self.head, self.transitions = nn.Linear(64, 6), nn.Parameter(T.randn(6, 6) * 0.1)

        def forward(self, words: Any, tags: Any) -> Any:
            scores = self.head(self.lstm(self.words(words))[0])
            right = scores.gather(2, tags.unsqueeze(2)).sum(dim=(1, 2))
            right = right + self.transitions[tags[:, :-1], tags[:, 1:]].sum(dim=1)
            alpha = scores[:, 0]
            for t in range(1, words.shape[1]):
                alpha = T.logsumexp(alpha.unsqueeze(2) + self.transitions, dim=1) + scores[:, t]
            return (T.logsumexp(alpha, dim=1) - right).mean()

    model = Tagger()
    optimizer = optim.Adam(model.parameters(), lr=1e-2)
    return model, trained(optimizer, lambda: model(words, tags))


def nerf(T: Any, nn: Any, F: Any, optim: Any) -> Any:
    """A radiance field: colors along 64 rays of 16 points, composed."""
    draws = Draws(T)
    origins, directions, colors = draws.normal(64, 3), draws.normal(64, 3), draws.uniform(64, 3)
    model = nn.Sequential(nn.Linear(39, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = optim.Adam(model.parameters(), lr=5e-4)

    def encoded(x: Any) -> Any:
        parts = [x]
        for i in range(6):
            parts += [T.sin(2.0**i * x), T.cos(2.0**i * x)]
        return T.cat(parts, dim=-1)

    def loss_of() -> Any:
        depths = T.linspace(2.0, 6.0, 16)
        points = origins[:, None, :] + directions[:, None, :] * depths[None, :, None]
        raw = model(encoded(points))
        opaque = 1 - T.exp(-F.relu(raw[..., 3]) * (4.0 / 16))
        through = T.cumprod(1 - opaque + 1e-10, dim=1)
        through = T.cat([T.ones(64, 1), through[:, :-1]], dim=1)
        found = ((opaque * through).unsqueeze(-1) * T.sigmoid(raw[..., :3])).sum(dim=1)
        return ((found - colors) ** 2).mean()

    return model, trained(optimizer, loss_of)


def detector(T: Any, nn: Any, F: Any, optim: Any) -> Any:
    """A head that tells at each place of an image what is there, by the focal loss, and its box, by its overlap."""
    draws = Draws(T)
    images, classes, is_object = draws.normal(4, 3, 64, 64), draws.integers(5, 4, 8, 8), draws.uniform(4, 8, 8) < 0.1
    boxes = draws.uniform(4, 8, 8, 4) + 0.5

    def conv(inputs: int, outputs: int) -> Any:
        return nn.Sequential(nn.Conv2d(inputs, outputs, 3, 2, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())

    class Detector(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.backbone = nn.Sequential(conv(3, 8), conv(8, 16), conv(16, 32))
            self.classes, self.boxes = nn.Conv2d(32, 5, 1), nn.Conv2d(32, 4, 1)

        def forward(self, x: Any) -> Any:
            x = self.backbone(x)
            return self.classes(x).permute(0, 2, 3, 1), F.softplus(self.boxes(x)).permute(0, 2, 3, 1)

    model = Detector()
    optimizer = optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def loss_of() -> Any:
        logits, found = model(images)
        wanted = F.one_hot(classes, 5).float() * is_object.unsqueeze(-1).float()
        entropy = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
        focal = ((1 - T.exp(-entropy)) ** 2 * entropy).sum()
        sides = T.minimum(found, boxes)  # from a place to the box's left, top, right and bottom
        both = (sides[..., 0] + sides[..., 2]) * (sides[..., 1] + sides[..., 3])
        areas = [(box[..., 0] + box[..., 2]) * (box[..., 1] + box[..., 3]) for box in (found, boxes)]
        overlap = both / (areas[0] + areas[1] - both)
        return (focal + T.where(is_object, 1 - overlap, T.zeros_like(overlap)).sum()) / is_object.sum().clamp(min=1)

    return model, trained(optimizer, loss_of)


def flow(T: Any, nn: Any, F: Any, optim: Any) -> Any:
    """A normalizing flow of four coupling layers."""
    draws = Draws(T)
    points = draws.normal(128, 4)

    class Coupling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 4))

        def forward(self, x: Any) -> Any:
            first, second = x[:, :2], x[:, 2:]
            scale, shift = self.net(first).chunk(2, dim=1)
            scale = T.tanh(scale)
            return T.cat([second * scale.exp() + shift, first], dim=1), scale.sum(dim=1)

    layers = nn.ModuleList([Coupling() for _ in range(4)])
    optimizer = optim.Adam(layers.parameters(), lr=1e-3)

    def loss_of() -> Any:
        z, logarithm = points, 0.0
        for layer in layers:
            z, more = layer(z)
            logarithm = logarithm + more
        return (0.5 * (z**2).sum(dim=1) - logarithm).mean()

    return layers, trained(optimizer, loss_of)


def pinn(T: Any, nn: Any, F: Any, optim: Any) -> Any:
    """A network that solves u'' = -u: the second derivative of its output is part of the loss."""
    draws = Draws(T)
    x = draws.uniform(64, 1).requires_grad_()
    model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = optim.Adam(model.parameters(), lr=1e-3)
    start = T.zeros(1, 1)

    def loss_of() -> Any:
        u = model(x)
        (slope,) = T.autograd.grad(u.sum(), x, create_graph=True)
        (bend,) = T.autograd.grad(slope.sum(), x, create_graph=True)
        return ((bend + u) ** 2).mean() + ((model(start) - 1) ** 2).mean()

    return model, trained(optimizer, loss_of)


def char_lstm(T: Any, nn: Any, F: Any, optim: Any) -> Any:
    """A language model of characters, whose state goes on from step to step."""
    draws = Draws(T)
    text = draws.integers(65, 16, 25)
    words, lstm, head = nn.Embedding(65, 32), nn.LSTM(32, 64, batch_first=True), nn.Linear(64, 65)
    model = nn.ModuleList([words, lstm, head])
    optimizer = optim.Adam(model.parameters(), lr=2e-3)
    hidden, cell = T.zeros(1, 16, 64), T.zeros(1, 16, 64)

    def step() -> Any:
        optimizer.zero_grad()
        found, (h, c) = lstm(words(text[:, :-1]), (hidden, cell))
        loss = F.cross_entropy(head(found).reshape(-1, 65), text[:, 1:].reshape(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        hidden.copy_(h.detach())
        cell.copy_(c.detach())
        return loss

    return model, step


def vit(T: Any, nn: Any, F: Any, optim: Any) -> Any:
    """A Transformer that reads patches of an image; labels are smoothed."""
    draws = Draws(T)
    images, labels = draws.normal(8, 3, 32, 32), draws.integers(10, 8)

    class ViT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches = nn.Conv2d(3, 64, 8, 8)
            self.first, self.places = nn.Parameter(T.zeros(1, 1, 64)), nn.Parameter(T.randn(1, 17, 64) * 0.02)
            layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True, norm_first=True)
            self.blocks, self.norm = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.LayerNorm(64)
            self.head = nn.Linear(64, 10)

        def forward(self, x: Any) -> Any:
            x = self.patches(x).flatten(2).transpose(1, 2)
            x = T.cat([self.first.expand(x.shape[0], -1, -1), x], dim=1) + self.places
            return self.head(self.norm(self.blocks(x))[:, 0])

    model = ViT()
    optimizer = optim.AdamW(model.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    return model, trained(optimizer, lambda: criterion(model(images), labels))


VISION = (vae, gan, unet, simclr, ddpm, detector, nerf, flow, vit)
PROGRAMS: dict[str, Any] = {
    one.__name__: one
    for one in (*VISION, seq2seq, gpt, char_lstm, word2vec, crf, lora, experts, graph_attention, ppo, dqn, pinn)
}
"""From PyTorch or dlsys (`T`), its `nn`, `functional` and `optim` to the network, and the step, which returns a loss.
"""


# Measurement -----------------------------------------------------------------------------------------------


def steps_of(name: str) -> dict[str, Callable[[], Any]]:
    """The step of a program by contender; the program ends where one fails, or losses differ."""
    import dlsys
    import torch

    torch.manual_seed(0)
    torch.set_flush_denormal(True)  # as dlsys' kernels do
    network, step = PROGRAMS[name](torch, torch.nn, torch.nn.functional, torch.optim)
    state = {key: value.numpy().copy() for key, value in network.state_dict().items()}
    steps, losses = {"PyTorch": step}, {"PyTorch": [step().item() for _ in range(CHECKED)]}
    for kind in KINDS:
        network, step = PROGRAMS[name](dlsys, dlsys.nn, dlsys.nn.functional, dlsys.optim)
        network.load_state_dict({key: dlsys.tensor(value) for key, value in state.items()})
        steps[kind] = step if kind == "eager" else dlsys.compile(step)
        losses[kind] = [steps[kind]().item() for _ in range(CHECKED)]
        if not np.allclose(losses[kind], losses["PyTorch"], rtol=TOLERANCE):
            sys.exit(f"{name}: the losses differ: {losses}")
    return steps


def measure(arguments: argparse.Namespace, threads: int) -> dict[str, dict[str, float]]:
    """By program the seconds of a step of each contender."""
    how = (time.process_time, min) if arguments.cpu else (time.perf_counter, statistics.median)
    found = {}
    for name in arguments.programs.split(","):
        runners = {kind: repeat(lambda step=step: step().item()) for kind, step in steps_of(name).items()}
        found[name] = in_turn(runners, arguments.rounds, LEAST, common.PAUSE, clock=how[0], pick=how[1])
        ratios = ", ".join(f"{kind} {found[name][kind] / found[name]['PyTorch']:.2f}" for kind in KINDS)
        print(f"  {threads} thread(s), {name}: {ratios} of PyTorch's", file=sys.stderr, flush=True)
    return found


def sections(runs: Mapping[int, dict[str, dict[str, float]]]) -> list[str]:
    """The table, and the geometric means of its ratios."""
    rows: list[list[Any]] = []
    for threads, found in runs.items():
        ratios = {name: [seconds[kind] / seconds["PyTorch"] for kind in KINDS] for name, seconds in found.items()}
        rows += [[name, threads, 1e3 * found[name]["PyTorch"], *both] for name, both in ratios.items()]
        means = [common.geometric_mean(column) for column in zip(*ratios.values(), strict=True)]
        rows.append(["geometric mean", threads, None, *means])
    return [
        "## A step of ordinary programs: PyTorch's milliseconds, and dlsys' time over PyTorch's",
        common.table(["program", "threads", "PyTorch", *KINDS], rows),
        "In turn in one process. Eager: the program as it is; compiled: its step by `dl.compile`.",
    ]


if __name__ == "__main__":
    options: dict[str, dict[str, Any]] = {
        "--programs": {"default": ",".join(PROGRAMS), "help": "of " + ", ".join(PROGRAMS)},
        "--cpu": {"action": "store_true", "help": "least processor time, not median wall time"},
    }
    common.main(__doc__, "programs", measure, sections, options)
