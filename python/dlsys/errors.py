"""The exceptions that dlsys raises for a user's mistake.

Each is also the built-in exception that fits it, so ``except ValueError`` keeps working.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import NoReturn


class DlsysError(Exception):
    """Base of every exception that dlsys raises on purpose."""


class ShapeError(DlsysError, ValueError):
    """Shapes that do not fit each other or the operator."""


class DTypeError(DlsysError, TypeError):
    """Dtypes that do not agree, or that an operator does not compute in."""


class IndexRangeError(DlsysError, IndexError):
    """An index beyond the extent of its axis."""


class GraphError(DlsysError, ValueError):
    """A graph that cannot be built or run: an input that is no node, a constant that is no number, ..."""


class StateError(ShapeError, GraphError, RuntimeError):
    """A `state_dict` whose names or shapes are not a module's; PyTorch raises RuntimeError."""


class FeedError(DlsysError, ValueError):
    """A feed that is missing or not an array, or feeds that are no dictionary from nodes."""


class DeviceError(DlsysError, RuntimeError):
    """A device that is absent, or an array on the wrong one."""


class KernelArgumentError(DlsysError, ValueError):
    """An argument that a kernel cannot be called with."""


class TargetError(DlsysError, ValueError):
    """A compilation target that is unknown or that this machine lacks."""


class DataError(DlsysError, RuntimeError):
    """A file that cannot be found, read or written, or whose checksum is wrong."""


class CommunicationError(DlsysError, RuntimeError):
    """Processes of one run that differ where they must not, an exchange that is none, or an MPI that is missing."""


_COMPLEX = "there are no complex numbers: keep real and imaginary parts as two tensors"
_SPARSE = "there are no sparse tensors: use nn.Embedding, take, index_add or scatter_add"
_HALF = "there are no arrays in half precision: `dl.autocast` rounds a GPU's products"
_LENGTHS = "sequences are padded to one length: mask what is added, or pass a mask of attention"
_COMPILED = "`dl.autodiff.Executor` compiles a graph, a training step with it"
_HOOKS = "`dl.autograd.grad(loss, [x])` gives the gradient of any tensor, `x.register_hook` changes one"
_REWRITTEN = "compute the weight in `forward`, of parameters of your own"
_AXES = "images have two axes, signals one"
ABSENT = {
    **dict.fromkeys(("func", "vmap", "functional_call"), "write the graph for a batch; gradients are nodes of it"),
    **dict.fromkeys(("compile", "jit", "fx"), _COMPILED),
    **dict.fromkeys(("complex64", "complex128", "cfloat", "complex", "real", "imag", "conj", "fft", "stft"), _COMPLEX),
    **dict.fromkeys(("view_as_complex", "view_as_real", "polar", "is_complex"), _COMPLEX),
    **dict.fromkeys(("sparse", "to_sparse", "sparse_coo_tensor", "is_sparse", "to_dense", "coalesce"), _SPARSE),
    **dict.fromkeys(("half", "bfloat16"), _HALF),
    "amp": "`dl.autocast` rounds a GPU's products",
    **dict.fromkeys(("rnn", "pack_padded_sequence", "pad_packed_sequence", "pack_sequence", "nested"), _LENGTHS),
    **dict.fromkeys(("parametrizations", "parametrize", "weight_norm", "spectral_norm", "prune"), _REWRITTEN),
    **dict.fromkeys(("retain_grad", "register_full_backward_hook"), _HOOKS),
    **dict.fromkeys(("Conv3d", "ConvTranspose3d", "MaxPool3d", "AvgPool3d", "BatchNorm3d", "conv3d"), _AXES),
    **dict.fromkeys(("parallel", "DataParallel"), "start several processes by mpiexec: see `dlsys.distributed`"),
    **dict.fromkeys(("svd", "inverse", "det", "cholesky", "qr"), "use np.linalg with `t.numpy()`"),
    **dict.fromkeys(("data_ptr", "storage", "untyped_storage"), "`t.numpy()` and `t.__dlpack__()` give the memory"),
    **dict.fromkeys(("multiprocessing", "share_memory_"), "workers of `dl.data.DataLoader` are threads"),
    "grad_fn": "the operator and the inputs of a tensor are `t.op` and `t.inputs`",
    "backends": "settings are functions: docs/settings.md",
    "set_default_dtype": "numbers are float32: pass `dtype`",
}
"""What stays out of dlsys, by PyTorch's names, and what to write instead."""


def missing_names(module: str, known: Iterable[str]) -> Callable[[str], NoReturn]:
    """A module's `__getattr__`, for names that it lacks: raises `no_attribute`."""

    def get(name: str) -> NoReturn:
        raise no_attribute(f"module {module!r}", name, known)

    return get


def no_attribute(owner: str, name: str, known: Iterable[str]) -> AttributeError:
    """The error for a name that a module, or a tensor, lacks: what to write instead of what stays out, else the nearest
    of the names that it has."""
    said = f"{owner} has no attribute {name!r}"
    if name.startswith("_"):
        return AttributeError(said)
    near = difflib.get_close_matches(name, (one for one in known if not one.startswith("_")), 1, 0.7)
    instead = ABSENT.get(name) or (f"the nearest is {near[0]!r}" if near else "")
    return AttributeError(f"{said}: {instead + '; ' if instead else ''}docs/pytorch.md says what there is")
