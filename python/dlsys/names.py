"""Names that the package and its tensors share."""

from __future__ import annotations

# By module of `dlsys.tensors`: functions `dl.<name>(x, ...)` that are methods `x.<name>(...)` too.
FUNCTIONS: dict[str, tuple[str, ...]] = {
    "functions": (
        *("abs", "add", "bmm", "ceil", "clamp", "clip", "cos", "div", "eq", "exp", "floor", "ge", "gt", "le", "log"),
        *("lt", "matmul", "maximum", "minimum", "mm", "mul", "ne", "neg", "pow", "relu", "round", "rsqrt", "sigmoid"),
        *("sin", "sqrt", "sub", "tanh"),
    ),
    "index": ("gather", "nonzero", "scatter_add"),
    "reductions": (
        *("all", "allclose", "amax", "amin", "any", "argmax", "argmin", "argsort", "equal", "isfinite", "isinf"),
        *("isnan", "log_softmax", "logical_and", "logical_not", "logical_or", "logsumexp", "masked_fill", "max"),
        *("mean", "min", "norm", "softmax", "sort", "std", "sum", "topk", "var"),
    ),
    "shapes": (
        *("broadcast_to", "chunk", "flatten", "flip", "permute", "reshape", "split", "squeeze", "swapaxes", "t"),
        *("transpose", "tril", "triu", "unbind", "unsqueeze"),
    ),
    "inplace": ("clone",),
}
