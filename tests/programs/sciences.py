"""Equations and densities, gradients of one's own."""

import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class FCN(nn.Module):
    def __init__(self, hidden, layers):
        super().__init__()
        self.fcs = nn.Sequential(nn.Linear(1, hidden), nn.Tanh())
        self.fch = nn.Sequential(*[nn.Sequential(nn.Linear(hidden, hidden), nn.Tanh()) for _ in range(layers - 1)])
        self.fce = nn.Linear(hidden, 1)

    def forward(self, x):
        return self.fce(self.fch(self.fcs(x)))


def run_pinn(prepare, train):
    """A damped oscillator by a network that knows the equation: second derivatives through autograd.grad."""
    d, w0 = 2.0, 5.0
    mu, k = 2 * d, w0**2
    pinn = prepare(FCN(12, 2))
    t_boundary = torch.tensor(0.0).view(-1, 1).requires_grad_(True)
    t_physics = torch.linspace(0, 1, 10).view(-1, 1).requires_grad_(True)
    optimiser = torch.optim.Adam(pinn.parameters(), lr=1e-3)
    losses = []
    for _ in range(20):
        optimiser.zero_grad()
        u = pinn(t_boundary)
        loss1 = (torch.squeeze(u) - 1) ** 2
        dudt = torch.autograd.grad(u, t_boundary, torch.ones_like(u), create_graph=True)[0]
        loss2 = (torch.squeeze(dudt) - 0) ** 2
        u = pinn(t_physics)
        dudt = torch.autograd.grad(u, t_physics, torch.ones_like(u), create_graph=True)[0]
        d2udt2 = torch.autograd.grad(dudt, t_physics, torch.ones_like(dudt), create_graph=True)[0]
        loss3 = torch.mean((d2udt2 + mu * dudt + k * u) ** 2)
        loss = loss1 + 1e-1 * loss2 + 1e-4 * loss3
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    u = pinn(t_physics).detach()
    return losses, u[:, 0]


class ODEFunc(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
        for m in self.net.modules():
            if isinstance(m, nn.Linear):
                nn.init.normal_(m.weight, mean=0, std=0.1)
                nn.init.constant_(m.bias, val=0)

    def forward(self, t, y):
        return self.net(y**3)


def odeint(func, y0, t, method):
    ys = [y0]
    for i in range(len(t) - 1):
        h, y = t[i + 1] - t[i], ys[-1]
        k1 = func(t[i], y)
        if method == "euler":
            ys.append(y + h * k1)
            continue
        k2 = func(t[i] + h / 2, y + h / 2 * k1)
        k3 = func(t[i] + h / 2, y + h / 2 * k2)
        k4 = func(t[i + 1], y + h * k3)
        ys.append(y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4))
    return torch.stack(ys)


def run_neural_ode(prepare, train):
    """A spiral as the flow of a small network: steps of Euler and of Runge and Kutta."""
    t = torch.linspace(0.0, 1.0, 4)
    true_A = torch.tensor([[-0.1, 2.0], [-2.0, -0.1]])
    y0 = torch.tensor([[1.0, 0.0]])
    with torch.no_grad():
        true = odeint(lambda t, y: torch.mm(y**3, true_A), y0, t, "rk4") * 0.1
    losses = []
    for method in ("euler", "rk4"):
        func = prepare(ODEFunc())
        optimizer = torch.optim.RMSprop(func.parameters(), lr=1e-3)
        for _ in range(10):
            optimizer.zero_grad()
            loss = torch.mean(torch.abs(odeint(func, y0 * 0.5, t, method) - true))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


def rbf(a, b, scale):
    return torch.exp(-torch.cdist(a, b).pow(2) / (2 * scale**2))


def run_kernel_ridge(prepare, train):
    """Kernel ridge regression by gradient steps on the dual weights, and the length scale with them."""
    rng = np.random.default_rng(44)
    x = torch.from_numpy(np.sort(rng.uniform(-3, 3, (15, 1)), axis=0).astype(np.float32))
    y = torch.sin(x).squeeze() + 0.1 * torch.from_numpy(rng.normal(size=15).astype(np.float32))
    alpha = torch.zeros(15, requires_grad=True)
    log_scale = torch.tensor(0.0, requires_grad=True)
    optimizer = torch.optim.Adam([{"params": [alpha]}, {"params": [log_scale], "lr": 0.01}], lr=0.05)
    losses = []
    for _ in range(20):
        K = rbf(x, x, log_scale.exp())
        residual = y - K @ alpha
        loss = residual.dot(residual) + 0.1 * alpha @ K @ alpha
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    test = torch.linspace(-3, 3, steps=7).reshape(-1, 1)
    with torch.no_grad():
        prediction = rbf(test, x, log_scale.exp()) @ alpha
    return losses, prediction.numpy()


class MDN(nn.Module):
    def __init__(self, hidden=16, mixtures=3):
        super().__init__()
        self.z_h = nn.Sequential(nn.Linear(1, hidden), nn.Tanh())
        self.z_pi = nn.Linear(hidden, mixtures)
        self.z_mu = nn.Linear(hidden, mixtures)
        self.z_sigma = nn.Linear(hidden, mixtures)

    def forward(self, x):
        h = self.z_h(x)
        return F.log_softmax(self.z_pi(h), -1), self.z_mu(h), F.softplus(self.z_sigma(h)) + 1e-3


def mdn_loss(log_pi, mu, sigma, y):
    log_normal = -0.5 * ((y - mu) / sigma) ** 2 - torch.log(sigma) - 0.5 * math.log(2 * math.pi)
    return -torch.logsumexp(log_pi + log_normal, dim=-1).mean()


def run_mixture_density(prepare, train):
    """A mixture density network, Bishop (1994)."""
    rng = np.random.default_rng(56)
    y = rng.uniform(-1, 1, (30, 1))
    x = y + 0.3 * np.sin(6 * y) + 0.02 * rng.normal(size=(30, 1))
    x, y = torch.from_numpy(x).float(), torch.from_numpy(y).float()
    model = prepare(MDN())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = train(optimizer, lambda: mdn_loss(*model(x), y))
    log_pi, mu, sigma = model(x[:5])
    chosen = log_pi.argmax(dim=1, keepdim=True)
    return losses, torch.gather(mu, 1, chosen)


def run_logistic_regression(prepare, train):
    """Logistic regression with tensors alone: gradients by autograd, updates without history."""
    rng = np.random.default_rng(43)
    X = torch.tensor(rng.normal(size=(40, 3)), dtype=torch.float32)
    true_w = torch.tensor([2.0, -1.0, 0.5])
    y = (X @ true_w + 0.3 > 0).float()
    w = torch.zeros(3, requires_grad=True)
    b = torch.zeros(1, requires_grad=True)
    losses = []
    for _ in range(20):
        p = 1 / (1 + torch.exp(-(X.mv(w) + b)))
        loss = -(y * torch.log(p) + (1 - y) * torch.log(1 - p)).mean()
        loss.backward()
        with torch.no_grad():
            w -= 0.5 * w.grad
            b -= 0.5 * b.grad
            w.grad.zero_()
            b.grad.zero_()
        losses.append(loss.item())
    accuracy = ((p > 0.5) == y.bool()).float().mean()
    return losses, w.detach().numpy(), accuracy.item()


class RunningMeanStd(nn.Module):
    def __init__(self, shape, epsilon=1e-4):
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("var", torch.ones(shape))
        self.register_buffer("count", torch.tensor(epsilon))

    @torch.no_grad()
    def update(self, x):
        batch_mean, batch_var, n = x.mean(0), x.var(0, unbiased=False), x.shape[0]
        delta = batch_mean - self.mean
        total = self.count + n
        self.mean += delta * n / total
        m2 = self.var * self.count + batch_var * n + delta**2 * self.count * n / total
        self.var.copy_(m2 / total)
        self.count.add_(n)

    def forward(self, x):
        if self.training:
            self.update(x)
        return (x - self.mean) / (self.var + 1e-8).sqrt()


def run_running_normalizer(prepare, train):
    """A module with buffers that it updates itself: running mean and variance of observations."""
    rng = np.random.default_rng(49)
    model = prepare(nn.Sequential(RunningMeanStd((3,)), nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(20):
        x = torch.from_numpy((5 + 2 * rng.normal(size=(16, 3))).astype(np.float32))
        y = x[:, 0:1] - x[:, 1:2]
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    state = model.state_dict()
    names = sorted(name for name, _ in model.named_buffers())
    assert names == ["0.count", "0.mean", "0.var"]
    return losses, [state[name] for name in names], model(torch.full((1, 3), 5.0))


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


def run_custom_function(prepare, train):
    """A gradient of one's own: straight-through rounding and a clipped exponential as autograd.Function."""
    rng = np.random.default_rng(48)
    model = prepare(nn.Sequential(QuantLinear(4, 8), nn.ReLU(), QuantLinear(8, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.from_numpy(rng.normal(size=(12, 4)).astype("float32"))
    y = torch.from_numpy(rng.random((12, 1)).astype("float32"))
    return train(optimizer, lambda: ((ClippedExp.apply(model(x)) - y) ** 2).mean())


def forward(params, x):
    w1, b1, w2, b2 = params
    return F.linear(torch.tanh(F.linear(x, w1, b1)), w2, b2)


def run_maml(prepare, train):
    """MAML, Finn et al. (2017): a gradient step inside the loss, differentiated through."""
    rng = np.random.default_rng(66)
    shapes = [(10, 1), (10,), (1, 10), (1,)]
    params = [torch.tensor(0.5 * rng.normal(size=s), dtype=torch.float32, requires_grad=True) for s in shapes]
    meta = torch.optim.Adam(params, lr=1e-2)
    losses = []
    for _ in range(20):
        meta.zero_grad()
        meta_loss = 0.0
        for _ in range(2):
            amplitude, phase = rng.uniform(0.5, 2.0), rng.uniform(0, np.pi)
            x = torch.from_numpy(rng.uniform(-3, 3, (10, 1)).astype("float32"))
            y = amplitude * torch.sin(x + phase)
            loss = F.mse_loss(forward(params, x[:5]), y[:5])
            grads = torch.autograd.grad(loss, params, create_graph=True)
            fast = [p - 0.05 * g for p, g in zip(params, grads, strict=True)]
            meta_loss += F.mse_loss(forward(fast, x[5:]), y[5:])
        meta_loss.backward()
        meta.step()
        losses.append(meta_loss.item())
    return losses
