"""A policy and its gradient."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Categorical


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine1 = nn.Linear(2, 16)
        self.affine2 = nn.Linear(16, 2)

    def forward(self, x):
        return F.softmax(self.affine2(F.relu(self.affine1(x))), dim=-1)


def run_policy_gradient(prepare, train):
    """REINFORCE on a corridor: returns discounted and normalised, log probabilities of the actions taken."""
    rng = np.random.default_rng(39)
    policy = prepare(Policy())
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    losses = []
    for _ in range(20):
        position, log_probs, rewards = 0.0, [], []
        for t in range(6):
            state = torch.tensor([position, t / 6], dtype=torch.float32)
            dist = Categorical(policy(state))
            action = torch.tensor(int(rng.random() < dist.probs[1].item()))
            log_probs.append(dist.log_prob(action))
            position += 1.0 if action.item() else -1.0
            rewards.append(position)
        R, returns = 0.0, []
        for r in rewards[::-1]:
            R = r + 0.9 * R
            returns.insert(0, R)
        returns = torch.tensor(returns)
        returns = (returns - returns.mean()) / (returns.std() + 1e-6)
        policy_loss = [-lp * R for lp, R in zip(log_probs, returns, strict=True)]
        optimizer.zero_grad()
        loss = torch.stack(policy_loss).sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
