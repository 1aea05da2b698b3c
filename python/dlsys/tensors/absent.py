"""Attributes of PyTorch's tensors that stay out, whose error says what to write instead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import no_attribute
from .node import TensorNode


class _Absent:
    """An attribute that is not there: of a tensor it raises AttributeError. A method `__getattr__` of tensors would say
    it too, and make each attribute of each node slower to read."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, tensor: Any, owner: type | None = None) -> Any:
        if tensor is None:
            return self
        raise no_attribute("a tensor", self._name, ())


class Absent(TensorNode):
    """Names of `errors.ABSENT`."""

    __slots__ = ()

    if not TYPE_CHECKING:  # for a checker they are not there
        half, bfloat16 = _Absent(), _Absent()
        real, imag, conj = _Absent(), _Absent(), _Absent()
        to_sparse, is_sparse, coalesce = _Absent(), _Absent(), _Absent()
        retain_grad, grad_fn = _Absent(), _Absent()
        svd, inverse, det, cholesky, qr = _Absent(), _Absent(), _Absent(), _Absent(), _Absent()
        data_ptr, storage, untyped_storage, share_memory_ = _Absent(), _Absent(), _Absent(), _Absent()
