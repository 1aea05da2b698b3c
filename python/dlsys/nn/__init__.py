"""Networks from modules, in the manner of torch.nn: names, layouts and numbers are PyTorch's.

A module makes nodes of the graph, and nothing else: `model(x)` is a graph, whether x is a tensor or a variable.
"""

from __future__ import annotations

from ..autodiff import Parameter
from . import functional, init, utils
from .attention import GPTBlock, MultiheadAttention, TransformerEncoder, TransformerEncoderLayer
from .containers import ModuleList, Residual, Sequential
from .images import AdaptiveAvgPool2d, AvgPool2d, ConstantPad2d, Conv2d, MaxPool2d, ZeroPad2d
from .layers import (
    CrossEntropyLoss, Dropout, Embedding, Flatten, GELU, Identity, Linear, LogSoftmax, MSELoss, ReLU, ReLU6, Sigmoid,
    Softmax, Tanh,
)
from .module import Module
from .norm import BatchNorm1d, BatchNorm2d, LayerNorm
from .recurrent import GRU, GRUCell, LSTM, LSTMCell, RNN, RNNCell
