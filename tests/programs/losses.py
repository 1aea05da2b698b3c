"""Losses and metrics of one's own and of the library."""

import copy

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def pairwise(x):
    squares = x.pow(2).sum(dim=1)
    d2 = squares[:, None] + squares[None, :] - 2.0 * x @ x.t()
    return torch.sqrt(F.relu(d2) + 1e-12)


def batch_hard(embeddings, labels, margin=0.3):
    dist = pairwise(embeddings)
    same = labels.unsqueeze(0) == labels.unsqueeze(1)
    hardest_positive = (dist * same.float()).max(dim=1)[0]
    max_anchor, _ = dist.max(dim=1, keepdim=True)
    hardest_negative = (dist + max_anchor * same.float()).min(dim=1).values
    return F.relu(hardest_positive - hardest_negative + margin).mean()


def run_triplet(prepare, train):
    """Triplet loss with the hardest examples of a batch, Hermans et al. (2017)."""
    rng = np.random.default_rng(25)
    centers = rng.normal(size=(3, 6))
    labels = torch.from_numpy(np.repeat(np.arange(3), 4))
    x = torch.from_numpy((np.repeat(centers, 4, axis=0) + 0.5 * rng.normal(size=(12, 6))).astype("float32"))
    net = prepare(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4)))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    losses = []
    for _ in range(20):
        emb = F.normalize(net(x), p=2, dim=1)
        loss = batch_hard(emb, labels)
        given = F.triplet_margin_loss(emb[0:4], emb[4:8], emb[8:12], margin=1.0)
        total = loss + 0.1 * given
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        losses.append(total.item())
    return losses


class SiameseNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.cnn = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(inplace=True), nn.MaxPool2d(2, stride=2))
        self.fc = nn.Sequential(nn.Linear(4 * 3 * 3, 16), nn.ReLU(inplace=True), nn.Linear(16, 4))

    def forward_once(self, x):
        output = self.cnn(x)
        output = output.view(output.size()[0], -1)
        return self.fc(output)

    def forward(self, a, b):
        return self.forward_once(a), self.forward_once(b)


class ContrastiveLoss(nn.Module):
    def __init__(self, margin=2.0):
        super().__init__()
        self.margin = margin

    def forward(self, a, b, label):
        distance = F.pairwise_distance(a, b)
        return torch.mean(
            (1 - label) * torch.pow(distance, 2) + label * torch.pow(torch.clamp(self.margin - distance, min=0.0), 2)
        )


def run_siamese(prepare, train):
    """A siamese network with the contrastive loss of Hadsell et al. (2006)."""
    rng = np.random.default_rng(24)
    a, b = (torch.from_numpy(rng.normal(size=(6, 1, 8, 8)).astype(np.float32)) for _ in range(2))
    label = torch.tensor([0, 1, 1, 0, 1, 0], dtype=torch.float32)
    net = prepare(SiameseNetwork())
    criterion = ContrastiveLoss()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.0005)
    losses = train(optimizer, lambda: criterion(*net(a, b), label))
    similarity = F.cosine_similarity(*net(a, b), dim=1)
    return losses, similarity


class FocalLoss(nn.Module):
    def __init__(self, alpha=None, gamma=2.0, reduction="mean"):
        super().__init__()
        self.alpha, self.gamma, self.reduction = alpha, gamma, reduction

    def forward(self, inputs, targets):
        ce = F.cross_entropy(inputs, targets, weight=self.alpha, reduction="none")
        pt = torch.exp(-ce)
        loss = (1 - pt) ** self.gamma * ce
        return loss.mean() if self.reduction == "mean" else loss.sum()


def sigmoid_focal_loss(logits, targets, alpha=0.25, gamma=2):
    p = torch.sigmoid(logits)
    ce = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    p_t = p * targets + (1 - p) * (1 - targets)
    alpha_t = alpha * targets + (1 - alpha) * (1 - targets)
    return (alpha_t * ce * ((1 - p_t) ** gamma)).mean()


def run_focal_loss(prepare, train):
    """Focal loss of several classes and of two, Lin et al. (2017)."""
    rng = np.random.default_rng(27)
    x = torch.FloatTensor(rng.normal(size=(20, 6)))
    y = torch.LongTensor(rng.integers(0, 3, 20))
    model = prepare(nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3)))
    criterion = FocalLoss(alpha=torch.tensor([0.2, 0.3, 0.5]))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(20):
        logits = model(x)
        loss = criterion(logits, y) + sigmoid_focal_loss(logits, F.one_hot(y, num_classes=3).float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def run_multi_label(prepare, train):
    """Several labels for an example: logits, weights of the positive ones, thresholds."""
    rng = np.random.default_rng(31)
    x = torch.tensor(rng.normal(size=(24, 8)), dtype=torch.float32)
    y = torch.tensor(rng.random((24, 5)) < 0.3).float()
    positive = y.sum(dim=0)
    pos_weight = (y.shape[0] - positive) / positive.clamp(min=1.0)
    model = prepare(nn.Sequential(nn.Linear(8, 16, bias=False), nn.BatchNorm1d(16), nn.PReLU(), nn.Linear(16, 5)))
    criterion = nn.BCEWithLogitsLoss(pos_weight=pos_weight)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    losses = train(optimizer, lambda: criterion(model(x), y))
    model.eval()
    with torch.no_grad():
        predicted = (torch.sigmoid(model(x)) > 0.5).float()
    hits = (predicted * y).sum()
    precision = hits / predicted.sum().clamp(min=1)
    recall = hits / y.sum()
    exact = (predicted == y).all(dim=1).float().mean()
    return losses, precision.item(), recall.item(), exact.item()


class MultiTask(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh())
        self.heads = nn.ModuleDict({"class": nn.Linear(20, 3), "value": nn.Linear(20, 1)})
        self.log_vars = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        h = self.trunk(x)
        return {name: head(h) for name, head in self.heads.items()}


def run_multi_task(prepare, train):
    """One trunk, two heads, losses weighed by learned uncertainties, Kendall et al. (2018)."""
    rng = np.random.default_rng(11)
    x = torch.as_tensor(rng.normal(size=(16, 6)).astype("float32"))
    labels = torch.as_tensor(rng.integers(0, 3, 16))
    values = torch.as_tensor(rng.normal(size=16).astype("float32"))
    model = prepare(MultiTask())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    ce, l1 = nn.CrossEntropyLoss(), nn.SmoothL1Loss()
    losses = []
    for _ in range(20):
        out = model(x)
        task_losses = torch.stack([ce(out["class"], labels), l1(out["value"].squeeze(-1), values)])
        loss = (torch.exp(-model.log_vars) * task_losses + model.log_vars).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(task_losses.tolist() + [loss.item()])
    return losses


def run_weighted_cross_entropy(prepare, train):
    """Classes of unequal frequency: weights of the loss from the counts, a confusion matrix, F1."""
    rng = np.random.default_rng(30)
    labels = torch.from_numpy(rng.choice(3, size=30, p=[0.7, 0.2, 0.1]))
    x = torch.from_numpy(rng.normal(size=(30, 4)).astype(np.float32)) + labels[:, None]
    counts = torch.bincount(labels, minlength=3)
    weights = counts.sum() / (3.0 * counts)
    model = prepare(nn.Linear(4, 3))
    criterion = nn.CrossEntropyLoss(weight=weights)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        out = model(x)
        loss = criterion(out, labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    pred = out.argmax(1)
    confusion = torch.zeros(3, 3, dtype=torch.int64)
    for t, p in zip(labels, pred, strict=True):
        confusion[t, p] += 1
    tp = confusion.diag().float()
    f1 = 2 * tp / (confusion.sum(0) + confusion.sum(1)).clamp(min=1)
    return losses, confusion, f1.mean()


def mlp(hidden):
    return nn.Sequential(nn.Linear(8, hidden), nn.ReLU(), nn.Linear(hidden, 5))


def run_distillation(prepare, train):
    """A small network learns a large one's softened outputs, Hinton et al. (2015)."""
    rng = np.random.default_rng(12)
    teacher, student = prepare(mlp(64)), prepare(mlp(8))
    teacher = copy.deepcopy(teacher)
    teacher.eval()
    for p in teacher.parameters():
        p.requires_grad_(False)
    T, alpha = 4.0, 0.7
    optimizer = torch.optim.Adam(student.parameters(), lr=1e-2)
    x = torch.tensor(rng.normal(size=(16, 8)), dtype=torch.float)
    y = torch.tensor(rng.integers(0, 5, 16), dtype=torch.long)
    losses = []
    for _ in range(20):
        with torch.no_grad():
            teacher_logits = teacher(x)
        logits = student(x)
        soft = F.kl_div(
            F.log_softmax(logits / T, dim=1), F.softmax(teacher_logits / T, dim=1), reduction="batchmean"
        ) * (T * T)
        loss = alpha * soft + (1 - alpha) * F.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


class AverageMeter:
    def __init__(self):
        self.sum, self.count = 0.0, 0

    def update(self, val, n=1):
        self.sum += val * n
        self.count += n

    @property
    def avg(self):
        return self.sum / self.count


def accuracy(output, target, topk=(1,)):
    with torch.no_grad():
        maxk = max(topk)
        batch_size = target.size(0)
        _, pred = output.topk(maxk, 1, True, True)
        pred = pred.t()
        correct = pred.eq(target.view(1, -1).expand_as(pred))
        res = []
        for k in topk:
            correct_k = correct[:k].reshape(-1).float().sum(0, keepdim=True)
            res.append(correct_k.mul_(100.0 / batch_size))
        return res


def run_topk_accuracy(prepare, train):
    """The meters of PyTorch's ImageNet example: accuracy over the k best, averages, a mean per class."""
    rng = np.random.default_rng(62)
    model = prepare(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 6)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    losses, top1, top3 = AverageMeter(), AverageMeter(), AverageMeter()
    history = []
    for _ in range(20):
        images = torch.from_numpy(rng.normal(size=(16, 8)).astype("float32"))
        target = images[:, :6].argmax(dim=1)
        output = model(images)
        loss = nn.functional.cross_entropy(output, target)
        acc1, acc3 = accuracy(output, target, topk=(1, 3))
        losses.update(loss.item(), images.size(0))
        top1.update(acc1[0].item(), images.size(0))
        top3.update(acc3[0].item(), images.size(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
    per_class = []
    for c in range(6):
        mask = target == c
        if mask.any():
            per_class.append((output[mask].argmax(1) == c).float().mean().item())
    return history, losses.avg, top1.avg, top3.avg, per_class
