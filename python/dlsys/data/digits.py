"""scikit-learn's 1,797 handwritten digits of 8x8 pixels, augmented to MNIST's shape, for use without MNIST.

The digits are split first and augmented afterwards, so that no digit is in two parts
(E. Alpaydin, C. Kaynak: Optical Recognition of Handwritten Digits, UCI, 1998).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from ..errors import DataError

SOURCE = "scikit-learn's digits, augmented"
SIDE = 28
DIGIT = 20 / 8
"""Target pixels per source pixel: as in MNIST, a digit fills 20x20 of the 28x28."""
SHIFTS = (-1.0, 0.0, 1.0)
"""Down and to the right, in target pixels."""
TURNS = (-8.0, 0.0, 8.0)
"""Counterclockwise, in degrees."""
SCALES = (0.95, 1.0, 1.05)
PAPER = 0.5
"""Pixels with a smaller share of full ink become white paper. Enlarged strokes are broad and blurred; with this cut
they are as thin as MNIST's."""
SEED = 123


def augmented_digits(counts: Sequence[int]) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each of `counts` the images, uint8 (count, 28, 28), and the labels, int64 (count,).

    The digits are divided among the parts in proportion to the counts. Within a part every image is a different pair
    of digit and variant. Raises DataError if a part has fewer pairs than images.
    """
    # imported here: it takes seconds, and is not needed with MNIST
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    rng = np.random.RandomState(SEED)
    order = rng.permutation(len(pixels))
    ends = np.rint(np.cumsum(counts) / max(sum(counts), 1) * len(pixels)).astype(int)
    maps = variants()
    parts = []
    for count, pool in zip(counts, np.split(order, ends[:-1]), strict=True):
        if count > len(pool) * len(maps):
            raise DataError(f"{len(pool)} digits in {len(maps)} variants give no {count} images")
        chosen = rng.permutation(len(pool) * len(maps))[:count]
        digit, variant = pool[chosen // len(maps)], chosen % len(maps)
        images = np.empty((count, SIDE * SIDE), np.uint8)
        for number, matrix in enumerate(maps):
            here = np.flatnonzero(variant == number)
            ink = pixels[digit[here]].astype(np.float32) @ matrix / np.float32(16)
            images[here] = np.rint(((ink - PAPER) / (1 - PAPER)).clip(0, 1) * 255)
        parts.append((images.reshape(count, SIDE, SIDE), labels[digit].astype(np.int64)))
    return parts


def variants() -> np.ndarray:
    """float32 (81, 64, 784): each shift, turn and scale as the linear map from 8x8 pixels to 28x28.

    Interpolation is linear in the pixels, so a variant is known by what it does to the 64 images of a single
    bright pixel; applying it to thousands of digits is then one matrix product.
    """
    from scipy import ndimage

    # Splines of the bright pixels, on a dark frame so that a digit fades out at its border.
    frame = 2
    basis = np.eye(64).reshape(64, 8, 8)
    splines = [ndimage.spline_filter(np.pad(image, frame), order=3) for image in basis]
    maps = []
    for down, right, turn, scale in itertools.product(SHIFTS, SHIFTS, TURNS, SCALES):
        sin, cos = np.sin(np.deg2rad(turn)), np.cos(np.deg2rad(turn))
        # target -> source about both centres: undo the shift, then the turn, then the scale
        matrix = np.array([[cos, sin], [-sin, cos]]) / (DIGIT * scale)
        centre = np.array([(SIDE - 1) / 2 + down, (SIDE - 1) / 2 + right])
        offset = (8 - 1) / 2 + frame - matrix @ centre
        placed = [ndimage.affine_transform(s, matrix, offset, (SIDE, SIDE), order=3, prefilter=False) for s in splines]
        maps.append([image.ravel() for image in placed])
    return np.array(maps, np.float32)
