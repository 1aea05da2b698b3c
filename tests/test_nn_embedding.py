"""Embeddings whose rows are of bounded norm, and whose gradients are divided by frequency, beside PyTorch's."""

from __future__ import annotations

