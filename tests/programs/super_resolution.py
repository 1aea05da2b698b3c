"""Sub-pixel convolutions, Shi et al. (2016), with PSNR."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.nn.init as init


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


def run(prepare):
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
