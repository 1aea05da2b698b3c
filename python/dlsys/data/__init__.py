"""Data sets: found in a directory, the cache, at a mirror, or embedded; always verified, never unpickled.

`DataLoader` makes batches of them, in an order that a seed fixes.
"""

from __future__ import annotations

from ..system import cache_folder
from .cifar10 import CIFAR10
from .dataset import DataArgumentError, Dataset, TensorDataset, default_collate
from .files import Collection, UnavailableError
from .loader import DataLoader
from .mnist import MNIST, mnist, one_hot, parse_idx, read_idx
from .text import CharacterText, Dictionary, SequenceDataset, WordText, batchify, get_batch
from .transforms import Compose, Normalize, RandomCrop, RandomHorizontalFlip
