"""The meters of PyTorch's ImageNet example: accuracy over the k best, averages, a mean per class."""

import numpy as np
import torch
import torch.nn as nn


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


def run(prepare):
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
