"""Names that the package and its tensors share."""

from __future__ import annotations

# By module of `dlsys.tensors`: functions `dl.<name>(x, ...)` that are methods `x.<name>(...)` too.
FUNCTIONS: dict[str, tuple[str, ...]] = {
    "functions": (
        *("abs", "add", "ceil", "clamp", "clip", "cos", "div", "eq", "exp", "floor", "ge", "gt", "le", "log", "lt"),
        *("matmul", "maximum", "minimum", "mul", "ne", "neg", "pow", "relu", "round", "rsqrt", "sigmoid", "sin"),
        *("sqrt", "sub", "tanh"),
    ),
    "logic": (
        *("allclose", "equal", "isfinite", "isinf", "isnan", "logical_and", "logical_not", "logical_or"),
        "masked_fill",
    ),
    "products": ("bmm", "mm"),
    "index": ("gather", "nonzero", "scatter_add"),
    "reductions": (
        *("all", "amax", "amin", "any", "argmax", "argmin", "log_softmax"),
        *("logsumexp", "max", "mean", "min", "norm", "softmax", "std", "sum", "var"),
    ),
    "sorting": ("argsort", "sort", "topk"),
    "shapes": (
        *("broadcast_to", "chunk", "flatten", "flip", "permute", "reshape", "split", "squeeze", "swapaxes", "t"),
        *("transpose", "unbind", "unsqueeze"),
    ),
    "diagonals": ("tril", "triu"),
    "inplace": ("clone",),
}
