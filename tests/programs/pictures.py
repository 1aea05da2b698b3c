"""Images that are changed, enlarged, optimised."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.nn.init as init


def mixup_data(x, y, rng, alpha=1.0):
    lam = rng.beta(alpha, alpha)
    index = torch.from_numpy(rng.permutation(x.size(0)))
    mixed_x = lam * x + (1 - lam) * x[index, :]
    y_a, y_b = y, y[index]
    return mixed_x, y_a, y_b, lam


def mixup_criterion(criterion, pred, y_a, y_b, lam):
    return lam * criterion(pred, y_a) + (1 - lam) * criterion(pred, y_b)


def run_mixup(prepare, train):
    """Mixup of inputs and labels, Zhang et al. (2018)."""
    rng = np.random.default_rng(28)
    x = torch.from_numpy(rng.normal(size=(8, 1, 6, 6)).astype("float32"))
    y = torch.from_numpy(rng.integers(0, 3, 8))
    model = prepare(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    losses, correct = [], 0.0
    for _ in range(20):
        inputs, targets_a, targets_b, lam = mixup_data(x, y, rng)
        outputs = model(inputs)
        loss = mixup_criterion(criterion, outputs, targets_a, targets_b, lam)
        _, predicted = torch.max(outputs.data, 1)
        correct += (
            lam * predicted.eq(targets_a.data).cpu().sum().float()
            + (1 - lam) * predicted.eq(targets_b.data).cpu().sum().float()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, correct.item()


class Net(nn.Module):
    def __init__(self, upscale_factor):
        super().__init__()
        self.relu = nn.ReLU()
        self.conv1 = nn.Conv2d(1, 8, (5, 5), (1, 1), (2, 2))
        self.conv2 = nn.Conv2d(8, 4, (3, 3), (1, 1), (1, 1))
        self.conv3 = nn.Conv2d(4, upscale_factor**2, (3, 3), (1, 1), (1, 1), padding_mode="replicate")
        self.pixel_shuffle = nn.PixelShuffle(upscale_factor)
        self._initialize_weights()

    def forward(self, x):
        return self.pixel_shuffle(self.conv3(self.relu(self.conv2(self.relu(self.conv1(x))))))

    def _initialize_weights(self):
        init.orthogonal_(self.conv1.weight, init.calculate_gain("relu"))
        init.orthogonal_(self.conv2.weight, init.calculate_gain("relu"))
        init.orthogonal_(self.conv3.weight)


def run_super_resolution(prepare, train):
    """Sub-pixel convolutions, Shi et al. (2016), with PSNR."""
    rng = np.random.default_rng(69)
    target = torch.from_numpy(rng.random((3, 1, 12, 12), dtype=np.float32))
    image = F.interpolate(target, scale_factor=0.5, mode="nearest")
    model = prepare(Net(2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = F.mse_loss(model(image), target)
        loss.backward()
        optimizer.step()
        psnr = 10 * torch.log10(1 / loss.detach())
        losses.append([loss.item(), psnr.item()])
    return losses


def gram_matrix(input):
    a, b, c, d = input.size()
    features = input.view(a * b, c * d)
    G = torch.mm(features, features.t())
    return G.div(a * b * c * d)


def total_variation(img):
    return torch.sum(torch.abs(img[:, :, 1:, :] - img[:, :, :-1, :])) + torch.sum(
        torch.abs(img[:, :, :, 1:] - img[:, :, :, :-1])
    )


def run_style_transfer(prepare, train):
    """An image is optimised to a style's Gram matrices and a content, with total variation."""
    rng = np.random.default_rng(61)
    cnn = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 8, 3), nn.ReLU())
    cnn = prepare(cnn)
    cnn.requires_grad_(False).eval()
    style, content = (torch.from_numpy(rng.random((1, 3, 8, 8)).astype("float32")) for _ in range(2))

    def features(x):
        found = []
        for layer in cnn:
            x = layer(x)
            if isinstance(layer, nn.Conv2d):
                found.append(x)
        return found

    grams = [gram_matrix(f).detach() for f in features(style)]
    wanted = features(content)[-1].detach()
    input_img = content.clone().requires_grad_(True)
    optimizer = torch.optim.Adam([input_img], lr=0.02)
    losses = []
    for _ in range(20):
        with torch.no_grad():
            input_img.clamp_(0, 1)
        optimizer.zero_grad()
        found = features(input_img)
        style_score = sum(F.mse_loss(gram_matrix(f), g) for f, g in zip(found, grams, strict=True))
        loss = 1e3 * style_score + F.mse_loss(found[-1], wanted) + 1e-3 * total_variation(input_img)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, input_img.detach()


class SineLayer(nn.Module):
    def __init__(self, in_features, out_features, is_first=False, omega_0=30):
        super().__init__()
        self.omega_0, self.is_first, self.in_features = omega_0, is_first, in_features
        self.linear = nn.Linear(in_features, out_features)
        with torch.no_grad():
            bound = 1 / in_features if is_first else np.sqrt(6 / in_features) / omega_0
            self.linear.weight.uniform_(-bound, bound)

    def forward(self, x):
        return torch.sin(self.omega_0 * self.linear(x))


class FourierFeatures(nn.Module):
    def __init__(self, B):
        super().__init__()
        self.register_buffer("B", B)

    def forward(self, x):
        x = 2 * np.pi * x @ self.B.T
        return torch.cat([torch.sin(x), torch.cos(x)], -1)


def get_mgrid(side):
    tensors = (torch.linspace(-1, 1, steps=side), torch.linspace(-1, 1, steps=side))
    return torch.stack(torch.meshgrid(*tensors, indexing="ij"), dim=-1).reshape(-1, 2)


def run_siren(prepare, train):
    """An image as a network with sines, Sitzmann et al. (2020), beside one of random Fourier features."""
    rng = np.random.default_rng(54)
    coords = get_mgrid(6)
    pixels = torch.from_numpy(rng.random((36, 1)).astype(np.float32))
    B = torch.from_numpy(rng.normal(size=(8, 2)).astype(np.float32))
    networks = [
        nn.Sequential(SineLayer(2, 16, is_first=True, omega_0=3), SineLayer(16, 16, omega_0=3), nn.Linear(16, 1)),
        nn.Sequential(FourierFeatures(B), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1)),
    ]
    losses = []
    for net in networks:
        net = prepare(net)
        optim = torch.optim.Adam(lr=1e-3, params=net.parameters())
        for _ in range(20):
            loss = ((net(coords) - pixels) ** 2).mean()
            optim.zero_grad()
            loss.backward()
            optim.step()
            losses.append(loss.item())
    return losses
