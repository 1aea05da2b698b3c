"""TVM, imported before all that uses it.

Its foreign function interface imports PyTorch wherever that is installed, which takes two seconds, to exchange arrays
faster; the exchange by DLPack does not need it. PyTorch is hidden for the time of the import, unless it is there.
"""

from __future__ import annotations

import sys

if "torch" not in sys.modules:
    sys.modules["torch"] = None  # type: ignore[assignment]  # Python's way to say that there is none
    try:
        import tvm  # noqa: F401
    finally:
        del sys.modules["torch"]
