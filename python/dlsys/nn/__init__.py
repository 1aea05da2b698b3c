"""Networks from modules, in the manner of torch.nn: names, layouts and numbers are PyTorch's.

A module makes nodes of the graph, and nothing else: `model(x)` is a graph, whether x is a tensor or a variable.
"""

from __future__ import annotations

from ..autodiff import Parameter
from . import functional, init
from .activation import ELU, GELU, LeakyReLU, LogSoftmax, ReLU, Sigmoid, SiLU, Softmax, Softplus, Tanh
from .attention import MultiheadAttention
from .containers import ModuleList, Residual, Sequential
from .conv import Conv2d, ConvTranspose2d
from .dropout import Dropout
from .embedding import Embedding
from .linear import Flatten, Identity, Linear
from .loss import BCEWithLogitsLoss, CrossEntropyLoss, L1Loss, MSELoss, SoftmaxLoss
from .module import Module
from .norm import BatchNorm1d, BatchNorm2d, GroupNorm, LayerNorm, LayerNorm1d, RMSNorm
from .pooling import AdaptiveAvgPool2d, AvgPool2d, MaxPool2d
from .recurrent import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNCell
from .transformer import GPTBlock, PositionalEncoding, TransformerEncoder, TransformerEncoderLayer

__all__ = [
    "ELU",
    "GELU",
    "GRU",
    "LSTM",
    "RNN",
    "AdaptiveAvgPool2d",
    "AvgPool2d",
    "BCEWithLogitsLoss",
    "BatchNorm1d",
    "BatchNorm2d",
    "Conv2d",
    "ConvTranspose2d",
    "CrossEntropyLoss",
    "Dropout",
    "Embedding",
    "Flatten",
    "GPTBlock",
    "GRUCell",
    "GroupNorm",
    "Identity",
    "L1Loss",
    "LSTMCell",
    "LayerNorm",
    "LayerNorm1d",
    "LeakyReLU",
    "Linear",
    "LogSoftmax",
    "MSELoss",
    "MaxPool2d",
    "Module",
    "ModuleList",
    "MultiheadAttention",
    "Parameter",
    "PositionalEncoding",
    "RMSNorm",
    "RNNCell",
    "ReLU",
    "Residual",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "SoftmaxLoss",
    "Softplus",
    "Tanh",
    "TransformerEncoder",
    "TransformerEncoderLayer",
    "functional",
    "init",
]
