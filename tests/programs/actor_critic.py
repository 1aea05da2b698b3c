"""Steps of PPO: an actor and a critic, advantages, a clipped ratio, entropy."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class ActorCritic(nn.Module):
    def __init__(self, obs, actions):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(obs, 16), nn.Tanh())
        self.actor = nn.Linear(16, actions)
        self.critic = nn.Linear(16, 1)

    def forward(self, x):
        h = self.body(x)
        return self.actor(h), self.critic(h).squeeze(-1)


def gae(rewards, values, gamma=0.99, lam=0.95):
    advantages, last = torch.zeros_like(rewards), 0.0
    for t in reversed(range(len(rewards))):
        following = values[t + 1] if t + 1 < len(values) else 0.0
        delta = rewards[t] + gamma * following - values[t]
        advantages[t] = last = delta + gamma * lam * last
    return advantages


def run(prepare):
    rng = np.random.default_rng(41)
    states = torch.from_numpy(rng.normal(size=(12, 3)).astype("float32"))
    actions = torch.from_numpy(rng.integers(0, 4, 12))
    rewards = torch.from_numpy(rng.normal(size=12).astype("float32"))
    net = prepare(ActorCritic(3, 4))
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3, eps=1e-5)
    with torch.no_grad():
        logits, values = net(states)
        old = F.log_softmax(logits, dim=-1).gather(1, actions[:, None]).squeeze(1)
        advantages = gae(rewards, values)
        returns = advantages + values
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    losses = []
    for _ in range(20):
        logits, value = net(states)
        logp = F.log_softmax(logits, dim=-1)
        ratio = (logp.gather(1, actions.unsqueeze(1)).squeeze(1) - old).exp()
        surrogate = torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
        entropy = -(logp.exp() * logp).sum(-1).mean()
        loss = -surrogate.mean() + 0.5 * F.mse_loss(value, returns) - 0.01 * entropy
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        losses.append(loss.item())
    return losses
