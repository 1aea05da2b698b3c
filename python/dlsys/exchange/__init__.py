"""Models of other frameworks as ours, and ours as files for other programs.

    onnx_import.py      `from_onnx`: `OnnxNetwork`, a model of ONNX as a module
    onnx_operators.py   the table that it reads by; onnx_layers.py has the functions of layers, onnx_values.py what
                        operators read of values
    onnx_export.py      `to_onnx`, and the table that it writes by
    torch_import.py     `from_torch`, by way of ONNX
"""

from __future__ import annotations

from .onnx_export import to_onnx as to_onnx
from .onnx_import import OnnxNetwork as OnnxNetwork, from_onnx as from_onnx
from .torch_import import from_torch as from_torch
