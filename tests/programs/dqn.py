"""Steps of DQN: replayed transitions, a target network that follows slowly, Huber loss, clipped gradients."""

import random
from collections import deque, namedtuple

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

Transition = namedtuple("Transition", ("state", "action", "next_state", "reward"))


class DQN(nn.Module):
    def __init__(self, n_observations, n_actions):
        super().__init__()
        self.layer1 = nn.Linear(n_observations, 16)
        self.layer2 = nn.Linear(16, 16)
        self.layer3 = nn.Linear(16, n_actions)

    def forward(self, x):
        return self.layer3(F.relu(self.layer2(F.relu(self.layer1(x)))))


def run(prepare):
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
