"""Networks from modules, in the manner of torch.nn: names, layouts and numbers are PyTorch's.

A module makes nodes of the graph, and nothing else: `model(x)` is a graph, whether x is a tensor or a variable.
"""

from __future__ import annotations

from ..autodiff import Parameter
from . import functional, init, utils
from .activation import GELU, LogSoftmax, ReLU, ReLU6, Sigmoid, Softmax, Tanh
from .attention import MultiheadAttention
from .containers import ModuleList, Residual, Sequential
from .conv import Conv2d
from .dropout import Dropout
from .embedding import Embedding
from .linear import Flatten, Identity, Linear
from .loss import CrossEntropyLoss, MSELoss
from .module import Module
from .norm import BatchNorm1d, BatchNorm2d, LayerNorm
from .padding import ConstantPad2d, ZeroPad2d
from .pooling import AdaptiveAvgPool2d, AvgPool2d, MaxPool2d
from .recurrent import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNCell
from .transformer import GPTBlock, TransformerEncoder, TransformerEncoderLayer
