"""A gradient of one's own: straight-through rounding and a clipped exponential as autograd.Function."""

import numpy as np
import torch
import torch.nn as nn


class RoundSTE(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.round(x)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output


class ClippedExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        result = x.exp()
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx, grad_output):
        (result,) = ctx.saved_tensors
        return grad_output * result.clamp(max=5.0)


class QuantLinear(nn.Linear):
    def forward(self, x):
        scale = self.weight.abs().max().detach() / 7
        weight = RoundSTE.apply(self.weight / scale) * scale
        return nn.functional.linear(x, weight, self.bias)


def run(prepare):
    rng = np.random.default_rng(48)
    model = prepare(nn.Sequential(QuantLinear(4, 8), nn.ReLU(), QuantLinear(8, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.from_numpy(rng.normal(size=(12, 4)).astype("float32"))
    y = torch.from_numpy(rng.random((12, 1)).astype("float32"))
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = ((ClippedExp.apply(model(x)) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
