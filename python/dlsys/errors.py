"""The exceptions that dlsys raises for a user's mistake.

Each is also the built-in exception that fits it, so ``except ValueError`` keeps working.
"""

from __future__ import annotations


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


class OperatorError(DlsysError, AssertionError):
    """Parts of an operator that do not agree: its formula, reference, gradient, shape rule or kind."""


class PlanError(DlsysError, AssertionError):
    """A memory plan in which values that are needed at the same time have bytes in common."""


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
