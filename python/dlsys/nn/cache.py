"""`nn.KVCache`: the keys and values of the tokens so far, for networks that generate one token after another."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import ops
from ..checks import integer
from ..errors import GraphError, ShapeError
from ..graph import Handle
from ..scopes import scopes
from ..tensors import Tensor, arange, no_grad, tensor, zeros
from ..tensors.inplace import lasting


class KVCache:
    """Keys and values in arrays of a fixed capacity, written at a position.

    ```python
    cache = nn.KVCache(capacity=256)
    keys, values, seen = cache.append(k, v)  # k, v: (batch, heads, tokens, d)
    y = F.scaled_dot_product_attention(q, keys, values, attn_mask=seen)
    ```

    All shapes stay the same from call to call, so a step that `dlsys.compile` records is recorded once; keys beyond the
    position are not seen. What is appended has no history of gradients.

    Attributes:
        capacity: how many tokens there is room for.
        length: how many have been appended.
        position: the same as a tensor, int64 (1,), which a compiled function reads: that of the next token.
    """

    def __init__(self, capacity: int) -> None:
        """Raises GraphError for a capacity that is no integer from 1 on."""
        self.capacity: int = integer("KVCache", "capacity", capacity, 1)
        self.length: int = 0
        self.position: Tensor = tensor(np.zeros(1, np.int64), name="position")
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    def reset(self) -> None:
        """Forget all tokens."""
        self.truncate(0)

    def truncate(self, length: int) -> None:
        """Forget all tokens but the first, such as those with which a prompt was padded. Raises GraphError for a length
        that is no integer from 0 to the present one."""
        if integer("KVCache.truncate", "length", length, 0) > self.length:
            raise GraphError(f"KVCache.truncate: {self.length} tokens are kept, and not {length}")
        self.length = length
        self.position.value = np.array([length])

    def append(self, keys: Any, values: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Writes keys (..., T, d) and values (..., T, e) of T tokens at the position, and moves it by T.

        Returns all keys (..., capacity, d), all values (..., capacity, e), and which of the keys each of the T tokens
        sees: booleans (T, capacity), those up to its own. Raises ShapeError for what does not fit what was appended
        before, GraphError, at the call, for more tokens than the capacity.
        """
        count = _tokens("keys", keys)
        if _tokens("values", values) != count or tuple(keys.shape[:-2]) != tuple(values.shape[:-2]):
            raise ShapeError(f"KVCache.append: keys {tuple(keys.shape)} and values {tuple(values.shape)} do not fit")
        self._move(count)
        with no_grad():
            if self._keys is None or self._values is None:
                self._keys, self._values = self._empty("keys", keys), self._empty("values", values)
            position, places = self.position, arange(self.capacity)
            for kept, new in ((self._keys, keys), (self._values, values)):
                if kept.shape[:-2] != tuple(new.shape[:-2]) or kept.shape[-1] != new.shape[-1]:
                    raise ShapeError(f"KVCache.append: {tuple(new.shape)} does not fit what is kept, {kept.shape}")
                kept.assign(_written(kept, new.detach(), position, places))
            seen = places.unsqueeze(0) <= position + arange(count).unsqueeze(1)
            position.assign(position + count)
        return self._keys, self._values, seen

    def _empty(self, name: str, like: Any) -> Tensor:
        made = lasting(lambda: zeros(*like.shape[:-2], self.capacity, like.shape[-1], dtype=like.dtype))
        made.name = name
        return made

    def _move(self, count: int) -> None:
        """Count the tokens, in each call of a compiled function too. Raises GraphError beyond the capacity."""

        def move() -> None:
            if self.length + count > self.capacity:
                told = f"{self.length} tokens are kept, and {count} more are beyond the capacity of {self.capacity}"
                raise GraphError(f"KVCache.append: {told}: reset() it, or make a larger one")
            self.length += count

        if scopes.recording is None:
            move()
        else:
            scopes.recording.before_call.append(move)


def _tokens(what: str, value: Any) -> int:
    if not isinstance(value, Handle) or len(value.shape) < 2:
        raise ShapeError(f"KVCache.append: {what} must be a tensor (..., tokens, d)")
    return int(value.shape[-2])


def _written(kept: Tensor, new: Tensor, position: Tensor, places: Tensor) -> Tensor:
    """The cached rows, with the new ones from the position on."""
    count = new.shape[-2]
    at = (places - position).unsqueeze(1)  # (capacity, 1): which of the new rows is at a place
    if count == 1:
        return ops.where_op(at == 0, new, kept)
    rows = ops.take_op(new, at.squeeze(1).clamp(0, count - 1), len(new.shape) - 2)
    return ops.where_op((at >= 0) & (at < count), rows, kept)
