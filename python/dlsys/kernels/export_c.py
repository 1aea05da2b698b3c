"""The header of an exported library, and its names."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from math import prod

from ..graph import Shape

Argument = tuple[str, Shape, str, bool]
"""An array's name, shape and dtype, and whether the function writes it."""
_TYPES = {"float32": "float", "float64": "double", "bool": "bool"}  # of C; others are int64_t and its like
_KEYWORDS = (
    "auto bool break case char const continue default do double else enum extern float for goto if inline int long "
    "register restrict return short signed sizeof static struct switch typedef union unsigned void volatile while "
    "class delete false new operator private protected public template this throw true try typename using virtual"
)


def unlike(names: Sequence[str]) -> list[str]:
    """The names, each another: `weight`, `weight_1`."""
    found: dict[str, None] = {}
    for name in names:
        others = (f"{name}_{i}" for i in itertools.count(1))
        found[next(other for other in itertools.chain([name], others) if other not in found)] = None
    return list(found)


def identifiers(names: Sequence[str]) -> list[str]:
    """The names as Python and C could have them, each another: `_0_weight`, `_0_weight_1`."""
    return unlike([re.sub(r"\W|^(?=\d)", "_", name) for name in names])


def header(name: str, library: str, cpu: str, arguments: Sequence[Argument], arena: str) -> str:
    """The text of the header. `arena`: the name of the argument that is memory to work in, empty where there is
    none."""
    of_c = [f"{own}_" if own in _KEYWORDS.split() else own for own in identifiers([own for own, *_ in arguments])]
    guard = f"DLSYS_{name.upper()}_H"
    lines = [
        f"/* The function {name} of {library}, which dlsys has written for {cpu}. */",
        f"#ifndef {guard}\n#define {guard}\n#include <stdbool.h>\n#include <stdint.h>\n",
    ]
    told = []
    for own, (label, shape, dtype, written) in zip(of_c, arguments, strict=True):
        extents = "".join(f"[{extent}]" for extent in shape)
        if label == arena:
            size = f"{name.upper()}_ARENA"
            lines.append(f"#define {size} {prod(shape)} /* bytes */\n")
            told.append((f"void* {own}", f"memory to work in, {size} bytes; two calls at the same time need two"))
        else:
            kind = _TYPES.get(dtype, f"{dtype}_t")
            told.append((f"{'' if written else 'const '}{kind}* {own}", f"{_comment(label)}: {dtype}{extents}"))
    ends = [","] * (len(told) - 1) + [");"]
    declared = "\n".join(f"    {own}{end} /* {what} */" for (own, what), end in zip(told, ends, strict=True))
    lines += [
        '#ifdef __cplusplus\nextern "C" {\n#endif',
        "/* Returns 0; another number where a kernel has failed, as it got no memory. */",
        f"int {name}(\n{declared}",
        "#ifdef __cplusplus\n}\n#endif\n#endif",
    ]
    return "\n".join(lines) + "\n"


def _comment(text: str) -> str:
    """A name within a comment, which it does not end."""
    return re.sub(r"[^ -~]|\*/|/\*", "_", text)
