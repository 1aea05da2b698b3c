"""An image is optimised to a style's Gram matrices and a content, with total variation."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def gram_matrix(input):
    a, b, c, d = input.size()
    features = input.view(a * b, c * d)
    G = torch.mm(features, features.t())
    return G.div(a * b * c * d)


def total_variation(img):
    return torch.sum(torch.abs(img[:, :, 1:, :] - img[:, :, :-1, :])) + torch.sum(
        torch.abs(img[:, :, :, 1:] - img[:, :, :, :-1])
    )


def run(prepare):
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
