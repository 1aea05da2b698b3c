"""Names that the package and its tensors share."""

from __future__ import annotations

# By module of `dlsys.tensors`: functions `dl.<name>(x, ...)` that are methods `x.<name>(...)` too.
FUNCTIONS: dict[str, tuple[str, ...]] = {
    "functions": (
        *("abs", "absolute", "add", "ceil", "clamp", "clip", "cos", "div", "divide", "erf"),
        *("exp", "floor", "floor_divide", "log", "maximum", "minimum", "mul"),
        *("multiply", "neg", "negative", "pow", "reciprocal", "relu", "remainder", "round"),
        *("rsqrt", "sigmoid", "sign", "sin", "sqrt", "square", "sub", "subtract", "tanh"),
        "true_divide",
    ),
    "logic": (
        *("allclose", "eq", "equal", "ge", "greater", "greater_equal", "gt", "isclose"),
        *("isfinite", "isinf", "isnan", "le", "less", "less_equal", "logical_and"),
        *("logical_not", "logical_or", "logical_xor", "lt", "masked_fill", "ne", "not_equal"),
    ),
    "products": ("bmm", "dot", "matmul", "mm", "outer"),
    "index": ("gather", "index_select", "masked_select", "nonzero", "scatter_add"),
    "reductions": (
        *("all", "amax", "amin", "any", "argmax", "argmin", "log_softmax"),
        *("logsumexp", "max", "mean", "min", "norm", "softmax", "std", "sum", "var"),
    ),
    "sorting": ("argsort", "sort", "topk"),
    "shapes": (
        *("broadcast_to", "chunk", "flatten", "flip", "narrow", "permute", "reshape", "select"),
        *("split", "squeeze", "swapaxes", "t", "transpose", "unbind", "unsqueeze"),
    ),
    "diagonals": ("tril", "triu"),
    "inplace": ("clone",),
}
