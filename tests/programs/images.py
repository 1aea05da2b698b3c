"""Networks that classify images, and one that is tuned."""

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


def run_residual_network(prepare, train):
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


def run_fine_tuning(prepare, train):
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
