"""PyTorch's models as networks, by way of ONNX."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

from ..autodiff import Parameter
from ..errors import GraphError
from .onnx_import import BUFFERS, OnnxNetwork, from_onnx, line


def from_torch(model: Any, args: tuple[Any, ...] = ()) -> tuple[OnnxNetwork, dict[str, Parameter]]:
    """The network of a PyTorch model, as `torch.onnx.export` writes it, and its parameters by name.

    Args:
        model: a `torch.nn.Module` in evaluation, or what `torch.export.export` returns; its dynamic extents stay open.
        args: for a Module, example arguments: tensors of the shapes that the network will have.

    Parameters and buffers are copied, under their names. Raises GraphError where a package is absent, for a model in
    training and one that cannot be exported, and what `from_onnx` raises.
    """
    try:
        torch = importlib.import_module("torch")
        importlib.import_module("onnxscript")
    except ImportError as error:
        raise GraphError(f"from_torch needs PyTorch and onnxscript: {error}: pip install torch onnxscript") from None
    if not isinstance(model, (torch.nn.Module, torch.export.ExportedProgram)):
        raise GraphError(f"from_torch: takes a torch.nn.Module or an ExportedProgram, not {type(model).__name__}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch's, of its own functions
            is_module = isinstance(model, torch.nn.Module)
            if model.training if is_module else model.run_decompositions({}).graph_signature.buffers_to_mutate:
                raise GraphError("from_torch: the model is in training: export it after model.eval()")
            program = torch.onnx.export(model, tuple(args), dynamo=True, optimize=False, verbose=False)
    except GraphError:
        raise
    except Exception as error:  # noqa: BLE001  # the exporter's own, of many kinds
        raise GraphError(f"from_torch: the model is not exported: {line(error)}") from None
    proto = program.model_proto
    proto.metadata_props.add(key=BUFFERS, value="\n".join(name for name, _ in model.named_buffers()))
    return from_onnx(proto)
