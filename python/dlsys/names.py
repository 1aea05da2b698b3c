"""Names that the package and its tensors share."""

from __future__ import annotations

# By module of `dlsys.eager`: functions `dl.<name>(x, ...)` that are methods `x.<name>(...)` too.
FUNCTIONS: dict[str, tuple[str, ...]] = {
    "functions": (
        *("abs", "add", "allclose", "ceil", "clamp", "clip", "cos", "div", "eq", "equal"),
        *("erf", "exp", "expm1", "floor", "floor_divide", "ge", "gt", "isclose", "isfinite", "isinf"),
        *("isnan", "le", "log", "log10", "log1p", "log2", "logical_and", "logical_not", "logical_or"),
        *("logical_xor", "lt", "masked_fill", "maximum", "minimum", "mul", "ne", "neg"),
        *("pow", "reciprocal", "relu", "remainder", "round", "rsqrt", "sigmoid", "sign"),
        *("sin", "sqrt", "square", "sub", "tanh"),
    ),
    "products": ("bmm", "dot", "matmul", "mm", "outer"),
    "index": ("gather", "index_select", "masked_select", "nonzero", "repeat_interleave", "take"),
    "reductions": (
        *("all", "amax", "amin", "any", "argmax", "argmin", "argsort", "cumsum", "log_softmax", "logsumexp", "max"),
        *("mean", "min", "norm", "prod", "softmax", "sort", "std", "sum", "topk", "var"),
    ),
    "shapes": (
        *("broadcast_to", "chunk", "flatten", "flip", "movedim", "permute", "reshape", "roll"),
        *("split", "squeeze", "swapaxes", "transpose", "unbind", "unsqueeze"),
    ),
    "creation": ("tril", "triu"),
}
