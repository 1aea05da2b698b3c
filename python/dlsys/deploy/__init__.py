"""Networks for use alone: without parameters that train, stored as this CPU reads them fastest, or as a library in C.

    network.py         `Network`: a graph as a module; a module as a graph
    freezing.py        `freeze`: batch norm folded, values of parameters computed once
    panels.py          products with matrices that are stored as kernels read them
    channels_last.py   images NHWC, by the operators of operators.py with the formulas of formulas.py
    winograd.py        convolutions of 3 x 3 with a quarter of the multiplications
    export.py          `export`: a run as a shared library, which library.py writes
"""

from __future__ import annotations

from .export import export as export
from .freezing import freeze as freeze
from .network import Network as Network
