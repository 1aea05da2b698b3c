"""Names that are not there: the error tells the nearest, or what to write instead of what stays out."""

from __future__ import annotations

from typing import Any

import dlsys as dl
import pytest
from dlsys import nn, optim
from dlsys.errors import ABSENT
from helpers import error_of


@pytest.mark.parametrize(
    ("owner", "name", "told"),
    [
        (dl, "cumsm", "module 'dlsys' has no attribute 'cumsm': the nearest is 'cumsum'; docs/pytorch.md"),
        (dl, "vmap", "write the graph for a batch"),
        (dl, "complex64", "keep real and imaginary parts as two tensors"),
        (dl, "qqqqqq", "has no attribute 'qqqqqq': docs/pytorch.md says what there is"),
        (nn, "GroupNrm", "module 'dlsys.nn' has no attribute 'GroupNrm': the nearest is 'GroupNorm'"),
        (nn, "Conv3d", "images have two axes, signals one"),
        (nn.functional, "cros_entropy", "the nearest is 'cross_entropy'"),
        (nn.utils, "rnn", "sequences are padded to one length"),
        (nn.utils, "parametrizations", "compute the weight in `forward`"),
        (optim, "AdamX", "the nearest is 'Adam'"),
        (dl.autograd, "graad", "module 'dlsys.autograd' has no attribute 'graad': the nearest is 'grad'"),
        (dl.ones(2), "half", "a tensor has no attribute 'half': there are no arrays in half precision"),
        (dl.ones(2) * 2, "grad_fn", "`t.op` and `t.inputs`"),
        (dl.ones(2), "retain_grad", "`dl.autograd.grad(loss, [x])`"),
        (dl.ones(2), "to_sparse", "there are no sparse tensors"),
    ],
)
def test_a_name_that_is_not_there_says_what_to_write(owner: Any, name: str, told: str) -> None:
    assert not hasattr(owner, name)
    assert told in error_of(AttributeError, getattr, owner, name)


def test_names_with_an_underscore_are_not_searched() -> None:
    assert error_of(AttributeError, getattr, nn, "__wrapped__") == "module 'dlsys.nn' has no attribute '__wrapped__'"


@pytest.mark.parametrize("name", ABSENT)
def test_what_stays_out_is_not_there(name: str) -> None:
    assert not any(hasattr(owner, name) for owner in (nn, nn.functional, nn.utils, optim, dl.autograd, dl.ones(2)))
