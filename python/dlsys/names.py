"""Names that the package and its tensors share."""

from __future__ import annotations

# By module of `dlsys.eager`: functions `dl.<name>(x, ...)` that are methods `x.<name>(...)` too.
FUNCTIONS: dict[str, tuple[str, ...]] = {
    "functions": (
        *("abs", "absolute", "add", "ceil", "clamp", "clamp_max", "clamp_min", "clip", "cos", "div"),
        *("divide", "erf", "exp", "expm1", "floor", "floor_divide", "log", "log10", "log1p", "log2"),
        *("maximum", "minimum", "mul", "multiply", "neg", "negative", "positive", "pow", "reciprocal"),
        *("relu", "remainder", "round", "rsqrt", "sigmoid", "sign", "sin", "sqrt", "square", "sub"),
        *("subtract", "tanh", "true_divide"),
    ),
    "elementary": (
        *("acos", "acosh", "addcdiv", "addcmul", "arccos", "arccosh", "arcsin", "arcsinh", "arctan"),
        *("arctan2", "arctanh", "asin", "asinh", "atan", "atan2", "atanh", "bitwise_left_shift"),
        *("bitwise_right_shift", "cosh", "deg2rad", "erfc", "exp2"),
        *("fix", "fmod", "frac", "hypot", "lerp", "logaddexp", "logit", "nan_to_num", "rad2deg", "sinh"),
        *("tan", "trunc", "xlogy"),
    ),
    "logic": (
        *("allclose", "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "eq", "equal", "ge"),
        *("greater", "greater_equal", "gt", "isclose", "isfinite", "isinf", "isnan", "isneginf", "isposinf"),
        *("le", "less", "less_equal", "logical_and", "logical_not", "logical_or", "logical_xor", "lt"),
        *("masked_fill", "ne", "not_equal"),
    ),
    "products": (
        *("addmm", "addmv", "addr", "baddbmm", "bmm", "cross", "dist", "dot", "inner", "kron", "matmul"),
        *("mm", "mv", "outer", "vdot"),
    ),
    "index": (
        *("argwhere", "gather", "index_select", "masked_select", "nonzero", "repeat_interleave", "take"),
        "take_along_dim",
    ),
    "scattering": ("index_add", "index_copy", "index_fill", "scatter", "scatter_add"),
    "reductions": (
        *("all", "amax", "amin", "aminmax", "any", "argmax", "argmin", "count_nonzero", "cumprod", "cumsum"),
        *("log_softmax", "logcumsumexp", "logsumexp", "max", "mean", "min", "nanmean", "nansum", "norm"),
        *("prod", "softmax", "std", "sum", "var"),
    ),
    "sorting": (
        *("argsort", "bincount", "cummax", "cummin", "histc", "kthvalue", "median", "msort", "quantile"),
        *("sort", "topk", "unique", "unique_consecutive"),
    ),
    "shapes": (
        *("broadcast_to", "chunk", "diff", "flatten", "flip", "fliplr", "flipud", "moveaxis", "movedim"),
        *("narrow", "permute", "ravel", "reshape", "roll", "rot90", "select", "split", "squeeze", "swapaxes"),
        *("swapdims", "t", "tensor_split", "tile", "transpose", "unbind", "unflatten", "unsqueeze"),
    ),
    "diagonals": ("diag", "diag_embed", "diagonal", "trace", "tril", "triu"),
    "inplace": ("clone",),
}
