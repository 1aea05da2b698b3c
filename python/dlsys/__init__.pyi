"""The public names: where each is from. Editors and checkers read this file, and `__init__.py` loads from it."""

from math import e as e
from math import inf as inf
from math import nan as nan
from math import pi as pi

from . import autodiff as autodiff
from . import data as data
from . import devices as devices
from . import distributed as distributed
from . import distributions as distributions
from . import errors as errors
from . import kernels as kernels
from . import needle as needle
from . import nn as nn
from . import ops as ops
from . import optim as optim
from . import random as random
from . import relax as relax
from . import serialization as serialization
from . import training as training
from . import tvm_op as tvm_op
from .deploy import export as export
from .deploy import freeze as freeze
from .devices import Array as Array
from .devices import Context as Context
from .devices import array as array
from .devices import context as context
from .devices import cpu as cpu
from .devices import cuda as cuda
from .devices import device as device
from .devices import get_float32_matmul_precision as get_float32_matmul_precision
from .devices import get_num_threads as get_num_threads
from .devices import gpu as gpu
from .devices import numpy as numpy
from .devices import set_float32_matmul_precision as set_float32_matmul_precision
from .devices import set_flush_denormal as set_flush_denormal
from .devices import set_num_threads as set_num_threads
from .errors import DataError as DataError
from .errors import DeviceError as DeviceError
from .errors import DlsysError as DlsysError
from .errors import DTypeError as DTypeError
from .errors import FeedError as FeedError
from .errors import GraphError as GraphError
from .errors import IndexRangeError as IndexRangeError
from .errors import KernelArgumentError as KernelArgumentError
from .errors import OperatorError as OperatorError
from .errors import PlanError as PlanError
from .errors import ShapeError as ShapeError
from .errors import StateError as StateError
from .errors import TargetError as TargetError
from .exchange import from_onnx as from_onnx
from .exchange import from_torch as from_torch
from .exchange import to_onnx as to_onnx
from .operator_check import check_operator as check_operator
from .ops.primitive import primitive as primitive
from .ops.scan import scan as scan
from .random import Generator as Generator
from .random import manual_seed as manual_seed
from .random import multinomial as multinomial
from .random import rand as rand
from .random import randint as randint
from .random import randn as randn
from .random import randn_like as randn_like
from .rpc import remote as remote
from .scopes import autocast as autocast
from .serialization import load as load
from .serialization import save as save
from .tensors import FloatTensor as FloatTensor
from .tensors import LongTensor as LongTensor
from .tensors import Tensor as Tensor
from .tensors import arange as arange
from .tensors import as_tensor as as_tensor
from .tensors import autograd as autograd
from .tensors import cat as cat
from .tensors import cdist as cdist
from .tensors import compile as compile
from .tensors import einsum as einsum
from .tensors import empty as empty
from .tensors import enable_grad as enable_grad
from .tensors import eye as eye
from .tensors import from_dlpack as from_dlpack
from .tensors import from_numpy as from_numpy
from .tensors import full as full
from .tensors import inference_mode as inference_mode
from .tensors import is_floating_point as is_floating_point
from .tensors import is_grad_enabled as is_grad_enabled
from .tensors import is_tensor as is_tensor
from .tensors import linalg as linalg
from .tensors import linspace as linspace
from .tensors import meshgrid as meshgrid
from .tensors import no_grad as no_grad
from .tensors import numel as numel
from .tensors import ones as ones
from .tensors import ones_like as ones_like
from .tensors import set_grad_enabled as set_grad_enabled
from .tensors import stack as stack
from .tensors import tensor as tensor
from .tensors import var_mean as var_mean
from .tensors import where as where
from .tensors import zeros as zeros
from .tensors import zeros_like as zeros_like
from .training import accuracy as accuracy
from .training import evaluate_on as evaluate_on
from .training import fit as fit

__version__: str
__all__: list[str]

# dtypes, by PyTorch's other names too; float16 and bfloat16 are of `autocast` alone
bool, uint8, uint32, int32, int64 = "bool", "uint8", "uint32", "int32", "int64"
bfloat16, float16, float32, float64 = "bfloat16", "float16", "float32", "float64"
int, long, float, double = "int32", "int64", "float32", "float64"
newaxis = None

# Methods of tensors as functions, which take arrays and numbers too
abs, add, all, allclose, amax = Tensor.abs, Tensor.add, Tensor.all, Tensor.allclose, Tensor.amax
amin, any, argmax, argmin, argsort = Tensor.amin, Tensor.any, Tensor.argmax, Tensor.argmin, Tensor.argsort
bmm, broadcast_to, ceil, chunk = Tensor.bmm, Tensor.broadcast_to, Tensor.ceil, Tensor.chunk
clamp, clip, clone, cos, cumprod = Tensor.clamp, Tensor.clip, Tensor.clone, Tensor.cos, Tensor.cumprod
cumsum, div, eq = Tensor.cumsum, Tensor.div, Tensor.eq
equal, erf, exp, expm1, flatten = Tensor.equal, Tensor.erf, Tensor.exp, Tensor.expm1, Tensor.flatten
flip, floor, floor_divide, fmod = Tensor.flip, Tensor.floor, Tensor.floor_divide, Tensor.fmod
gather = Tensor.gather
ge, gt, index_add, index_select = Tensor.ge, Tensor.gt, Tensor.index_add, Tensor.index_select
isclose, isfinite, isinf, isnan, le = Tensor.isclose, Tensor.isfinite, Tensor.isinf, Tensor.isnan, Tensor.le
log, log1p, log_softmax, logical_and = Tensor.log, Tensor.log1p, Tensor.log_softmax, Tensor.logical_and
logical_not, logical_or, logsumexp, lt = Tensor.logical_not, Tensor.logical_or, Tensor.logsumexp, Tensor.lt
masked_fill, masked_select, matmul, max = Tensor.masked_fill, Tensor.masked_select, Tensor.matmul, Tensor.max
maximum, mean, min, minimum, mm = Tensor.maximum, Tensor.mean, Tensor.min, Tensor.minimum, Tensor.mm
mul, ne, neg, nonzero, norm = Tensor.mul, Tensor.ne, Tensor.neg, Tensor.nonzero, Tensor.norm
outer, permute, pow, prod, relu = Tensor.outer, Tensor.permute, Tensor.pow, Tensor.prod, Tensor.relu
remainder, repeat_interleave, reshape = Tensor.remainder, Tensor.repeat_interleave, Tensor.reshape
roll, round, rsqrt, scatter = Tensor.roll, Tensor.round, Tensor.rsqrt, Tensor.scatter
scatter_add, sigmoid, sign, sin = Tensor.scatter_add, Tensor.sigmoid, Tensor.sign, Tensor.sin
softmax, sort, split, sqrt, square = Tensor.softmax, Tensor.sort, Tensor.split, Tensor.sqrt, Tensor.square
squeeze, std, sub, sum, swapaxes = Tensor.squeeze, Tensor.std, Tensor.sub, Tensor.sum, Tensor.swapaxes
t, tanh, topk, transpose, tril = Tensor.t, Tensor.tanh, Tensor.topk, Tensor.transpose, Tensor.tril
triu, unbind, unsqueeze, var = Tensor.triu, Tensor.unbind, Tensor.unsqueeze, Tensor.var
bincount, diag, dot, log10 = Tensor.bincount, Tensor.diag, Tensor.dot, Tensor.log10
mv, narrow, unique = Tensor.mv, Tensor.narrow, Tensor.unique
