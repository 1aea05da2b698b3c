"""Networks for images."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class BasicBlock(nn.Module):
    def __init__(self, in_planes, planes, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(in_planes, planes, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, kernel_size=3, stride=1, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.shortcut = nn.Sequential()
        if stride != 1 or in_planes != planes:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_planes, planes, kernel_size=1, stride=stride, bias=False), nn.BatchNorm2d(planes)
            )

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return F.relu(out)


class ResNet(nn.Module):
    def __init__(self, classes=5):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.layer1 = BasicBlock(8, 8)
        self.layer2 = BasicBlock(8, 16, stride=2)
        self.linear = nn.Linear(16, classes)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(m, (nn.BatchNorm2d, nn.GroupNorm)):
                nn.init.constant_(m.weight, 1)
                nn.init.constant_(m.bias, 0)

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.layer2(self.layer1(out))
        out = F.avg_pool2d(out, 4)
        out = out.view(out.size(0), -1)
        return self.linear(out)


def run_resnet(prepare, train):
    """A small residual network, He et al. (2016), trained and then evaluated with its running statistics."""
    rng = np.random.default_rng(18)
    net = prepare(ResNet())
    inputs = torch.from_numpy(rng.standard_normal((6, 3, 8, 8)).astype(np.float32))
    targets = torch.from_numpy(rng.integers(0, 5, 6))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4)
    net.train()
    losses = train(optimizer, lambda: criterion(net(inputs), targets))
    net.eval()
    with torch.no_grad():
        outputs = net(inputs)
        _, predicted = outputs.max(1)
        correct = predicted.eq(targets).sum().item()
    return losses, outputs, correct


class SqueezeExcite(nn.Module):
    def __init__(self, channels, reduction=4):
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Sequential(
            nn.Linear(channels, channels // reduction, bias=False), nn.ReLU(inplace=True),
            nn.Linear(channels // reduction, channels, bias=False), nn.Hardsigmoid(),
        )  # fmt: skip

    def forward(self, x):
        b, c, _, _ = x.size()
        y = self.pool(x).view(b, c)
        return x * self.fc(y).view(b, c, 1, 1).expand_as(x)


class InvertedResidual(nn.Module):
    def __init__(self, inp, oup, stride, expand, act):
        super().__init__()
        hidden = inp * expand
        self.use_res = stride == 1 and inp == oup
        self.conv = nn.Sequential(
            nn.Conv2d(inp, hidden, 1, bias=False), nn.BatchNorm2d(hidden), act(),
            nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False), nn.BatchNorm2d(hidden), act(),
            SqueezeExcite(hidden),
            nn.Conv2d(hidden, oup, 1, bias=False), nn.BatchNorm2d(oup),
        )  # fmt: skip

    def forward(self, x):
        return x + self.conv(x) if self.use_res else self.conv(x)


def run_mobilenet(prepare, train):
    """Inverted residuals with depthwise convolutions, ReLU6 and Hardswish, squeeze and excitation."""
    rng = np.random.default_rng(19)
    model = prepare(
        nn.Sequential(
            InvertedResidual(4, 4, 1, 2, nn.ReLU6), InvertedResidual(4, 8, 2, 2, nn.Hardswish),
            nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten(), nn.Linear(8, 3),
        )
    )  # fmt: skip
    x = torch.from_numpy(rng.normal(size=(4, 4, 8, 8)).astype(np.float32))
    y = torch.tensor([0, 1, 2, 0])
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.002, alpha=0.9, momentum=0.9)
    return train(optimizer, lambda: nn.functional.cross_entropy(model(x), y))


class PreNormResidual(nn.Module):
    def __init__(self, dim, fn):
        super().__init__()
        self.fn = fn
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        return self.fn(self.norm(x)) + x


class Transposed(nn.Module):
    def __init__(self, fn):
        super().__init__()
        self.fn = fn

    def forward(self, x):
        return self.fn(x.mT).mT


def feed_forward(dim, hidden, dropout=0.0):
    return nn.Sequential(
        nn.Linear(dim, hidden), nn.GELU(), nn.Dropout(dropout), nn.Linear(hidden, dim), nn.Dropout(dropout)
    )


class Mixer(nn.Module):
    def __init__(self, patch=4, dim=12, depth=2, classes=3):
        super().__init__()
        self.unfold = nn.Unfold(kernel_size=patch, stride=patch)
        self.embed = nn.Linear(3 * patch * patch, dim)
        self.layers = nn.Sequential(
            *[
                nn.Sequential(
                    PreNormResidual(dim, Transposed(feed_forward(4, 8))), PreNormResidual(dim, feed_forward(dim, 24))
                )
                for _ in range(depth)
            ]
        )
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, classes)

    def forward(self, x):
        x = self.embed(self.unfold(x).transpose(1, 2))
        return self.head(self.norm(self.layers(x)).mean(dim=1))


def run_mlp_mixer(prepare, train):
    """MLP-Mixer, Tolstikhin et al. (2021)."""
    rng = np.random.default_rng(59)
    model = prepare(Mixer())
    x = torch.from_numpy(rng.normal(size=(6, 3, 8, 8)).astype(np.float32))
    y = torch.tensor([0, 1, 2, 2, 1, 0])
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    return train(optimizer, lambda: nn.functional.cross_entropy(model(x), y))


class ViT(nn.Module):
    def __init__(self, size=8, patch=4, dim=16, depth=2, heads=2, classes=4):
        super().__init__()
        self.patchify = nn.Conv2d(3, dim, kernel_size=patch, stride=patch)
        n = (size // patch) ** 2
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, n + 1, dim))
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                dim, heads, 2 * dim, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
            )
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        x = self.patchify(x).flatten(2).transpose(1, 2)
        cls = self.cls_token.expand(x.shape[0], -1, -1)
        x = torch.cat([cls, x], dim=1) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


def run_vit(prepare, train):
    """A vision transformer: patches by a strided convolution, a class token, learned positions."""
    rng = np.random.default_rng(17)
    model = prepare(ViT())
    x = torch.from_numpy(rng.normal(size=(4, 3, 8, 8)).astype(np.float32))
    y = torch.tensor([0, 1, 2, 3])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    losses = []
    for _ in range(20):
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses


class SeparableConv(nn.Module):
    def __init__(self, cin, cout, **kwargs):
        super().__init__()
        self.depthwise = nn.Conv2d(cin, cin, 3, groups=cin, **kwargs)
        self.pointwise = nn.Conv2d(cin, cout, kernel_size=1)

    def forward(self, x):
        return self.pointwise(self.depthwise(x))


def run_depthwise_separable(prepare, train):
    """Depthwise separable convolutions, dilated and strided, over images with a channel-last mean at the end."""
    rng = np.random.default_rng(20)
    model = prepare(
        nn.Sequential(
            SeparableConv(3, 6, padding="same", dilation=2),
            nn.ELU(),
            SeparableConv(6, 8, padding=1, stride=2),
            nn.SiLU(),
        )
    )
    head = prepare(nn.Linear(8, 2))
    x = torch.tensor(rng.normal(size=(4, 3, 9, 9)), dtype=torch.float32)
    y = torch.tensor(rng.normal(size=(4, 2)), dtype=torch.float32)
    params = [*model.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(params, lr=5e-3)
    losses = []
    for _ in range(20):
        features = model(x).permute(0, 2, 3, 1).mean(dim=(1, 2))
        loss = (head(features) - y).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


class LayerNorm2d(nn.Module):
    def __init__(self, channels, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.eps = eps

    def forward(self, x):
        u = x.mean(1, keepdim=True)
        s = (x - u).pow(2).mean(1, keepdim=True)
        x = (x - u) / torch.sqrt(s + self.eps)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


class InstanceNorm(nn.Module):
    def forward(self, x):
        var, mean = torch.var_mean(x, dim=(2, 3), keepdim=True, unbiased=False)
        return (x - mean) * torch.rsqrt(var + 1e-5)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 8, 3), LayerNorm2d(8)
        self.conv2, self.norm2 = nn.Conv2d(8, 8, 3), nn.GroupNorm(num_groups=4, num_channels=8)
        self.norm3 = InstanceNorm()
        self.norm4 = nn.RMSNorm(8)
        self.fc = nn.Linear(8, 2)

    def forward(self, x):
        x = F.gelu(self.norm1(self.conv1(x)))
        x = F.leaky_relu(self.norm2(self.conv2(x)), 0.1)
        x = F.adaptive_avg_pool2d(self.norm3(x) ** 2 + x, 1).flatten(1)
        return self.fc(self.norm4(x))


def run_norms(prepare, train):
    """Norms of one's own and of the library: instance, group, layer over channels, RMS."""
    rng = np.random.default_rng(22)
    net = prepare(Net())
    x = torch.from_numpy(rng.normal(size=(4, 3, 8, 8)).astype(np.float32))
    y = torch.tensor([1, 0, 1, 1])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    return train(optimizer, lambda: F.cross_entropy(net(x), y))


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        )  # fmt: skip
        self.fc = nn.Linear(8, 100)

    def forward(self, x):
        return self.fc(torch.flatten(self.features(x), 1))


def run_frozen_layers(prepare, train):
    """Transfer learning: the backbone's parameters are frozen, its norms in eval, the head is new."""
    rng = np.random.default_rng(10)
    model = Backbone()
    for param in model.parameters():
        param.requires_grad = False
    model.fc = nn.Linear(model.fc.in_features, 3)
    model = prepare(model)
    trainable = [p for p in model.parameters() if p.requires_grad]
    counts = [sum(p.numel() for p in trainable), sum(p.numel() for p in model.parameters())]
    optimizer = torch.optim.SGD(filter(lambda p: p.requires_grad, model.parameters()), lr=0.1, momentum=0.9)
    model.features.eval()
    x = torch.from_numpy(rng.normal(size=(8, 3, 8, 8)).astype(np.float32))
    y = torch.from_numpy(rng.integers(0, 3, 8))
    losses = []
    for step in range(20):
        if step == 12:  # fine-tune the last block too
            model.features[4].weight.requires_grad_(True)
            optimizer.add_param_group({"params": [model.features[4].weight], "lr": 0.01})
        optimizer.zero_grad()
        loss = nn.CrossEntropyLoss()(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert model.features[0].weight.grad is None
    return losses, counts


def run_hooks(prepare, train):
    """Activations kept by forward hooks, gradients by hooks of tensors: a class activation map."""
    rng = np.random.default_rng(50)
    model = prepare(
        nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    )
    kept = {}

    def keep(name):
        def hook(module, inputs, output):
            kept[name] = output

        return hook

    handles = [model[0].register_forward_hook(keep("conv")), model[1].register_forward_hook(keep("relu"))]
    x = torch.from_numpy(rng.normal(size=(3, 1, 6, 6)).astype("float32"))
    y = torch.tensor([0, 1, 1])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses, means = [], []
    for _ in range(20):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        means.append(kept["relu"].mean().item())
    for handle in handles:
        handle.remove()

    features = model[1](model[0](x))
    gradients = []
    features.register_hook(gradients.append)
    scores = model[4](model[3](model[2](features)))
    scores[:, 1].sum().backward()
    weights = gradients[0].mean(dim=(2, 3), keepdim=True)
    cam = torch.relu((weights * features).sum(dim=1))
    return losses, means, cam.detach()
