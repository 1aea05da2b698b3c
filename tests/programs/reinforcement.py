"""Policies and values."""

import random
from collections import deque, namedtuple

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Categorical

Transition = namedtuple("Transition", ("state", "action", "next_state", "reward"))


class DQN(nn.Module):
    def __init__(self, n_observations, n_actions):
        super().__init__()
        self.layer1 = nn.Linear(n_observations, 16)
        self.layer2 = nn.Linear(16, 16)
        self.layer3 = nn.Linear(16, n_actions)

    def forward(self, x):
        return self.layer3(F.relu(self.layer2(F.relu(self.layer1(x)))))


def run_dqn(prepare, train):
    """Steps of DQN: replayed transitions, a target network that follows slowly, Huber loss, clipped gradients."""
    rng, draw = np.random.default_rng(40), random.Random(0)
    policy_net, target_net = prepare(DQN(4, 2)), DQN(4, 2)
    target_net.load_state_dict(policy_net.state_dict())
    optimizer = torch.optim.AdamW(policy_net.parameters(), lr=1e-2, amsgrad=True)
    memory = deque([], maxlen=100)
    for i in range(40):
        s, s2 = (torch.tensor(rng.normal(size=(1, 4)), dtype=torch.float32) for _ in range(2))
        memory.append(Transition(s, torch.tensor([[i % 2]]), s2 if i % 5 else None, torch.tensor([float(i % 3)])))
    losses = []
    for _ in range(20):
        batch = Transition(*zip(*draw.sample(memory, 8), strict=True))
        non_final_mask = torch.tensor(tuple(s is not None for s in batch.next_state), dtype=torch.bool)
        non_final = torch.cat([s for s in batch.next_state if s is not None])
        state, action, reward = torch.cat(batch.state), torch.cat(batch.action), torch.cat(batch.reward)
        q = policy_net(state).gather(1, action)
        next_values = torch.zeros(8)
        with torch.no_grad():
            next_values[non_final_mask] = target_net(non_final).max(1).values
        expected = next_values * 0.99 + reward
        loss = nn.SmoothL1Loss()(q, expected.unsqueeze(1))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_value_(policy_net.parameters(), 100)
        optimizer.step()
        target, own = target_net.state_dict(), policy_net.state_dict()
        for key in own:
            target[key] = own[key] * 0.05 + target[key] * 0.95
        target_net.load_state_dict(target)
        losses.append(loss.item())
    return losses


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine1 = nn.Linear(2, 16)
        self.affine2 = nn.Linear(16, 2)

    def forward(self, x):
        return F.softmax(self.affine2(F.relu(self.affine1(x))), dim=-1)


def run_reinforce(prepare, train):
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
