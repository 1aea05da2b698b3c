"""Products with known matrices, which lie in the panels that this CPU's kernels read."""

from __future__ import annotations

import numpy as np

from .. import autodiff as ad
from ..devices.panels import panel_columns
from ..graph import Node
from ..tensors import tensor
from .operators import matmul_panels


def product(a: Node, matrix: np.ndarray, rows: int, name: str | None = None) -> Node | None:
    """a (..., m, k) times a known matrix (..., k, n) in panels, a leaf of this name; None where kernels would pack none
    for so many rows."""
    *lead, k, n = matrix.shape
    width = panel_columns(rows, n, "float32")
    if not width or n % width:
        return None
    panels = np.moveaxis(matrix.reshape(*lead, k, -1, width), -2, -3)
    return matmul_panels(a, tensor(np.ascontiguousarray(panels), name=name))


def any_product(a: Node, matrix: np.ndarray, rows: int, name: str | None = None) -> Node:
    """The product, in panels or as the matrix lies."""
    found = product(a, matrix, rows, name)
    return ad.matmul_op(a, tensor(matrix, name=name)) if found is None else found
