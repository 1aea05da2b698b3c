"""Data sets, from a directory, the cache, a mirror or this package: their checksums are verified, nothing is unpickled.

`DataLoader` makes batches of them, in an order that depends on a seed.
"""

from __future__ import annotations

from .cifar10 import CIFAR10 as CIFAR10
from .dataset import (
    DataArgumentError as DataArgumentError, Dataset as Dataset, Subset as Subset, TensorDataset as TensorDataset,
    default_collate as default_collate, random_split as random_split,
)
from .files import Collection as Collection, UnavailableError as UnavailableError
from .loader import DataLoader as DataLoader
from .mnist import (
    MNIST as MNIST, mnist as mnist, one_hot as one_hot, read_idx as read_idx,
)
from .text import (
    CharacterText as CharacterText, Dictionary as Dictionary, SequenceDataset as SequenceDataset,
    WordText as WordText, batchify as batchify,
)
from .transforms import (
    Compose as Compose, Normalize as Normalize, RandomCrop as RandomCrop,
    RandomHorizontalFlip as RandomHorizontalFlip,
)
