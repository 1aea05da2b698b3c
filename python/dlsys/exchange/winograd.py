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
_BYTE = 10.0  # operations in the time that a byte of filters takes from memory
_INPUT, _OUTPUT, _PRODUCTS = 2.6, 2.5, 1.25  # how much dearer an operation of each step is, as measured, moves included


def pays(images: Shape, filters: Shape) -> bool:
    """Whether it is faster than the convolution of images (N, C, H, W), padded by 1, with filters (O, C, 3, 3)."""
    (n, c, h, w), o = images, filters[0]
    tiles = n * -(-h // TILE) * -(-w // TILE)
    direct = 18 * n * h * w * c * o + 36 * o * c * _BYTE
    own = 2 * _POSITIONS * tiles * (c * o * _PRODUCTS + _POSITIONS * c * _INPUT + TILE**2 * o * _OUTPUT)
    return own + 4 * _POSITIONS * o * c * _BYTE < direct


def convolution(x: Node, images: Shape, filters: np.ndarray) -> Node:
    """conv2d of images (N, C, H, W), padded by 1, with known filters (O, C, 3, 3): (N, O, H, W)."""
    (n, c, h, w), o = images, len(filters)
    rows, columns = -(-h // TILE), -(-w // TILE)
    tiles = n * rows * columns
    b, g, a = (np.asarray(matrix, "float64") for matrix in (_B, _G, _A))
    of_images = np.einsum("ai,bj->abij", b, b).reshape(_POSITIONS, 1, _PATCH, _PATCH)
    of_filters = np.einsum("ai,ocij,bj->aboc", g, filters.astype("float64"), g).reshape(_POSITIONS, o, c)
    of_results = np.einsum("ya,zb->yzab", a, a).reshape(TILE**2, _POSITIONS)
    known = [tensor(matrix.astype(filters.dtype)) for matrix in (of_images, of_filters, of_results)]

    padding = 1 if h % TILE == 0 == w % TILE else 0
    if not padding:
        x = ad.pad_op(x, [(0, 0), (0, 0), (1, TILE * rows + 1 - h), (1, TILE * columns + 1 - w)])
    extents = (h, w) if padding else (TILE * rows + 2, TILE * columns + 2)
    found = ad.conv2d_op(ad.reshape_op(x, (n * c, 1, *extents)), known[0], TILE, padding)
    found = ad.transpose_op(ad.reshape_op(found, (n, c, _POSITIONS, rows * columns)), (2, 1, 0, 3))
    found = ad.matmul_op(known[1], ad.reshape_op(found, (_POSITIONS, c, tiles)))
    found = ad.matmul_op(known[2], ad.reshape_op(found, (_POSITIONS, o * tiles)))
    found = ad.transpose_op(ad.reshape_op(found, (TILE, TILE, o, n, rows, columns)), (3, 2, 4, 0, 5, 1))
    found = ad.reshape_op(found, (n, o, TILE * rows, TILE * columns))
    return found if padding else found[:, :, :h, :w]
