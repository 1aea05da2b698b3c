"""Convolutions of 3 x 3 by Winograd's minimal filtering F(4 x 4, 3 x 3): a quarter of the multiplications.

Of each tile of 4 x 4 results the 6 x 6 images d below it and the filters g are transformed, multiplied element by
element, summed over the channels, and transformed back: y = A^T [(G g G^T) * (B^T d B)] A. The element-by-element
products are 36 matrix products of tiles x channels with channels x filters. A transform is a matrix along the rows of
tiles, then along their columns (`transform_tiles`, `join_tiles`). Lavin and Gray, "Fast Algorithms for Convolutional
Neural Networks" (2016). Rounding errors are some ten times those of the sum itself, about 1e-5 of the largest result.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import autodiff as ad
from ..graph import Node, Shape
from ..tensors import tensor
from .operators import join_tiles_op, transform_tiles_op
from .panels import any_product

TILE = 4
_PATCH = TILE + 2
_POSITIONS = _PATCH**2
_B = [[4, 0, -5, 0, 1, 0], [0, -4, -4, 1, 1, 0], [0, 4, -4, -1, 1, 0],
      [0, -2, -1, 2, 1, 0], [0, 2, -1, -2, 1, 0], [0, 4, 0, -5, 0, 1]]  # fmt: skip
_G = [[1 / 4, 0, 0], [-1 / 6, -1 / 6, -1 / 6], [-1 / 6, 1 / 6, -1 / 6],
      [1 / 24, 1 / 12, 1 / 6], [1 / 24, -1 / 12, 1 / 6], [0, 0, 1]]  # fmt: skip
_A = [[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]]
_BYTE = 10.0  # operations in the time that a byte of filters takes from memory
_PRODUCTS = 1.15  # times as long takes an operation of the 36 products
_INPUT, _OUTPUT = 70.0, 55.0  # operations in the time of the two transforms, for each of their elements


def takes(geometry: Any, filters: Shape) -> bool:
    """Whether a convolution is of 3 x 3 filters at every place of images padded by 1."""
    return geometry == ((1, 1), (1, 1), (1, 1), 1) and filters[2:] == (3, 3)


def pays(images: Shape, filters: Shape) -> bool:
    """Whether it is faster than the convolution of images (N, C, H, W), padded by 1, with filters (O, C, 3, 3)."""
    (n, c, h, w), o = images, filters[0]
    tiles = n * -(-h // TILE) * -(-w // TILE)
    direct = 18 * n * h * w * c * o + 36 * o * c * _BYTE
    own = _POSITIONS * tiles * (2 * c * o * _PRODUCTS + c * _INPUT + o * _OUTPUT)
    return own + 4 * _POSITIONS * o * c * _BYTE < direct


def convolution(x: Node, images: Shape, filters: np.ndarray, name: str | None = None) -> Node:
    """conv2d of images (N, H, W, C), `images` being their shape in the order NCHW, padded by 1, with known filters (O,
    C, 3, 3), whose transform is a leaf of this name: (N, H, W, O)."""
    (n, c, h, w), o = images, len(filters)
    rows, columns = -(-h // TILE), -(-w // TILE)
    g = np.asarray(_G, "float64")
    of_filters = np.einsum("ai,ocij,bj->baco", g, filters.astype("float64"), g).reshape(_POSITIONS, c, o)
    of_images, of_results = (tensor(np.asarray(matrix, filters.dtype)) for matrix in (_B, _A))

    found: Node = transform_tiles_op(x, of_images, 1, rows, TILE, 1)
    found = transform_tiles_op(found, of_images, 3, columns, TILE, 1)
    tiles = n * rows * columns
    found = ad.reshape_op(found, (_POSITIONS, tiles, c))
    found = any_product(found, of_filters.astype(filters.dtype), tiles, name)
    found = join_tiles_op(ad.reshape_op(found, (_PATCH, _PATCH, n, rows, columns, o)), of_results, 3, w)
    return join_tiles_op(found, of_results, 1, h)
