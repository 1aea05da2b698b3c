"""Networks from modules, in the manner of torch.nn: names, layouts and numbers are PyTorch's.

A module makes nodes of the graph, and nothing else: `model(x)` is a graph, whether x is a tensor or a variable.
"""

from __future__ import annotations

from ..autodiff import Parameter as Parameter
from . import functional as functional, init as init, utils as utils
from .attention import (
    GPTBlock as GPTBlock, MultiheadAttention as MultiheadAttention, TransformerEncoder as TransformerEncoder,
    TransformerEncoderLayer as TransformerEncoderLayer,
)
from .cache import KVCache as KVCache
from .containers import (
    ModuleDict as ModuleDict, ModuleList as ModuleList, ParameterList as ParameterList, Residual as Residual,
    Sequential as Sequential,
)
from .images import (
    AdaptiveAvgPool2d as AdaptiveAvgPool2d, AvgPool2d as AvgPool2d, ConstantPad2d as ConstantPad2d,
    Conv1d as Conv1d, Conv2d as Conv2d, ConvTranspose2d as ConvTranspose2d, MaxPool2d as MaxPool2d,
    PixelShuffle as PixelShuffle, Unfold as Unfold, Upsample as Upsample, ZeroPad2d as ZeroPad2d,
)
from .layers import (
    BCELoss as BCELoss, BCEWithLogitsLoss as BCEWithLogitsLoss, CrossEntropyLoss as CrossEntropyLoss,
    Dropout as Dropout, ELU as ELU, Embedding as Embedding, Flatten as Flatten,
    GELU as GELU, Hardsigmoid as Hardsigmoid, Hardswish as Hardswish, Identity as Identity,
    KLDivLoss as KLDivLoss, L1Loss as L1Loss, LeakyReLU as LeakyReLU, Linear as Linear, LogSoftmax as LogSoftmax,
    Mish as Mish, MSELoss as MSELoss, NLLLoss as NLLLoss, PReLU as PReLU, ReLU as ReLU, ReLU6 as ReLU6,
    Sigmoid as Sigmoid, SiLU as SiLU, SmoothL1Loss as SmoothL1Loss, Softmax as Softmax, Softplus as Softplus,
    Tanh as Tanh, Unflatten as Unflatten,
)
from .module import Module as Module
from .norm import (
    BatchNorm1d as BatchNorm1d, BatchNorm2d as BatchNorm2d, GroupNorm as GroupNorm, LayerNorm as LayerNorm,
    RMSNorm as RMSNorm,
)
from .recurrent import (
    GRU as GRU, GRUCell as GRUCell, LSTM as LSTM, LSTMCell as LSTMCell, RNN as RNN, RNNCell as RNNCell,
)
