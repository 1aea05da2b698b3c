"""Models of other frameworks as ours, and ours as files for other programs.

    onnx_import.py      `from_onnx`: `OnnxNetwork`, a model of ONNX as a module
    onnx_operators.py   ONNX's operators by ours; onnx_layers.py those of layers, composed.py what these share
    onnx_export.py      `to_onnx`
    torch_import.py     `from_torch`, by way of ONNX
"""

from __future__ import annotations

from .onnx_export import to_onnx as to_onnx
from .onnx_import import OnnxNetwork as OnnxNetwork, from_onnx as from_onnx
from .torch_import import from_torch as from_torch
