"""Networks from modules, in the manner of torch.nn: names, layouts and numbers are PyTorch's.

A module makes nodes of the graph, and nothing else: `model(x)` is a graph, whether x is a tensor or a variable.
"""

from __future__ import annotations

from ..autodiff import Parameter
from . import functional, init, needle, utils
from .activation import GELU, LeakyReLU, LogSoftmax, ReLU, ReLU6, Sigmoid, SiLU, Softmax, Tanh
from .attention import MultiheadAttention
from .containers import ModuleDict, ModuleList, Residual, Sequential
from .conv import Conv, Conv2d
from .dropout import Dropout
from .embedding import Embedding
from .linear import Flatten, Identity, Linear
from .loss import BCEWithLogitsLoss, CrossEntropyLoss, MSELoss, NLLLoss, SoftmaxLoss
from .module import Module
from .needle import AttentionLayer, MultiHeadAttention, Transformer, TransformerLayer
from .norm import BatchNorm1d, BatchNorm2d, LayerNorm, LayerNorm1d
from .padding import ConstantPad2d, ZeroPad2d
from .pooling import AdaptiveAvgPool2d, AvgPool2d, MaxPool2d
from .recurrent import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNCell
from .transformer import GPTBlock, PositionalEncoding, TransformerEncoder, TransformerEncoderLayer

__all__ = [
    "GELU",
    "GRU",
    "LSTM",
    "RNN",
    "AdaptiveAvgPool2d",
    "AttentionLayer",
    "AvgPool2d",
    "BCEWithLogitsLoss",
    "BatchNorm1d",
    "BatchNorm2d",
    "ConstantPad2d",
    "Conv",
    "Conv2d",
    "CrossEntropyLoss",
    "Dropout",
    "Embedding",
    "Flatten",
    "GPTBlock",
    "GRUCell",
    "Identity",
    "LSTMCell",
    "LayerNorm",
    "LayerNorm1d",
    "LeakyReLU",
    "Linear",
    "LogSoftmax",
    "MSELoss",
    "MaxPool2d",
    "Module",
    "ModuleDict",
    "ModuleList",
    "MultiHeadAttention",
    "MultiheadAttention",
    "NLLLoss",
    "Parameter",
    "PositionalEncoding",
    "RNNCell",
    "ReLU",
    "ReLU6",
    "Residual",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "SoftmaxLoss",
    "Tanh",
    "Transformer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
    "TransformerLayer",
    "ZeroPad2d",
    "functional",
    "init",
    "needle",
    "utils",
]
