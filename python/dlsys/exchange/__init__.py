"""Models of other frameworks as ours, and ours as files for other programs.

    network.py          `Network`: a graph as a module, what every import gives; `export`: as a shared library
    freezing.py         `freeze`: for inference alone
    channels_last.py    its images NHWC, by the operators of channels_last_ops.py and of winograd.py
    onnx_import.py      `from_onnx`
    onnx_operators.py   ONNX's operators by ours
    onnx_export.py      `to_onnx`
    batches.py          networks, and models of ONNX, for any batch
    onnx_layers.py, onnx_indexing.py, onnx_sampling.py    others of them, by subject
    panels.py           products with matrices that lie as kernels read them
    resampling.py       formulas of images between their elements, composed.py others, that both imports use
    torch_import.py     `from_torch`
    torch_operators.py  the operators of torch.export by ours
"""

from __future__ import annotations

from .freezing import freeze as freeze
from .network import Network as Network, export as export
from .onnx_export import to_onnx as to_onnx
from .onnx_import import from_onnx as from_onnx
from .torch_import import from_torch as from_torch
