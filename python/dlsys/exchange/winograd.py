"""Convolutions of 3 x 3 by Winograd's minimal filtering F(4 x 4, 3 x 3): a quarter of the multiplications.

Of each tile of 4 x 4 results the 6 x 6 images d below it and the filters g are transformed, multiplied element by
element, summed over the channels, and transformed back: y = A^T [(G g G^T) * (B^T d B)] A. The element-by-element
products are 36 matrix products of filters x channels with channels x tiles. Lavin and Gray, "Fast Algorithms for
Convolutional Neural Networks" (2016). Rounding errors are some ten times those of the sum itself, about 1e-5 of the
largest result.

Both transforms are linear, so they are a convolution with known filters of 6 x 6 at a stride of 4, and a product with a
known matrix of 16 x 36: no kernel here is of another kind than elsewhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import autodiff as ad
from ..autodiff import Node
from ..graph import Shape
from ..tensors import tensor

TILE = 4
_PATCH = TILE + 2
_POSITIONS = _PATCH**2
_B = [[4, 0, -5, 0, 1, 0], [0, -4, -4, 1, 1, 0], [0, 4, -4, -1, 1, 0],
      [0, -2, -1, 2, 1, 0], [0, 2, -1, -2, 1, 0], [0, 4, 0, -5, 0, 1]]  # fmt: skip
_G = [[1 / 4, 0, 0], [-1 / 6, -1 / 6, -1 / 6], [-1 / 6, 1 / 6, -1 / 6],
      [1 / 24, 1 / 12, 1 / 6], [1 / 24, -1 / 12, 1 / 6], [0, 0, 1]]  # fmt: skip
_A = [[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]]
_BYTE = 1e9  # operations in the time that a byte of filters takes from memory
_INPUT, _OUTPUT, _PRODUCTS = 2.6, 2.5, 1.25  # how much dearer an operation of each step is, as measured, moves included


def takes(geometry: Any, filters: Shape) -> bool:
    """Whether a convolution is of 3 x 3 filters at every place of images padded by 1."""
    return geometry == ((1, 1), (1, 1), (1, 1), 1) and filters[2:] == (3, 3)


def pays(images: Shape, filters: Shape) -> bool:
    """Whether it is faster than the convolution of images (N, C, H, W), padded by 1, with filters (O, C, 3, 3)."""
    (n, c, h, w), o = images, filters[0]
    tiles = n * -(-h // TILE) * -(-w // TILE)
    direct = 18 * n * h * w * c * o + 36 * o * c * _BYTE
    own = 2 * _POSITIONS * tiles * (c * o * _PRODUCTS + _POSITIONS * c * _INPUT + TILE**2 * o * _OUTPUT)
    return own + 4 * _POSITIONS * o * c * _BYTE < direct


def convolution(x: Node, images: Shape, filters: np.ndarray) -> Node:
    """conv2d of images (N, H, W, C), `images` being their shape in the order NCHW, padded by 1, with known filters (O,
    C, 3, 3): (N, H, W, O)."""
    raise NotImplementedError
