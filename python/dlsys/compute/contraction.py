"""Contractions: each one plain sum of a product of two reads, so that a schedule can recognise
`C[m, n] = sum_k A(m, k) * B(k, n)` by structure. What is padded or spread is a stage before it."""

from __future__ import annotations

from typing import Any

from tvm import te, tirx

from .base import FIRST, Expr, Pair, Shape, constant, full, read_padded, shape_of
from .indexing import reshape

ONE, NONE = (1, 1), (0, 0)  # of strides and dilations, and of padding


def pad_images(x: te.Tensor, padding: Pair, axes: Pair = FIRST) -> te.Tensor:
    """Images with `padding` rows and columns of zeros on each side."""
    rows, columns = (shape_of(x)[axis] + 2 * own for axis, own in zip(axes, padding, strict=True))
    return spread_images("padded", x, (rows, columns), padding, axes=axes)


def spread_images(
    name: str, x: te.Tensor, spatial: Pair, first: Pair, stride: Pair = ONE, axes: Pair = FIRST
) -> te.Tensor:
    """Images of `spatial` rows and columns: x's set apart by the stride, from row and column `first` on; elsewhere
    zeros."""
    shape = list(shape_of(x))
    for axis, extent in zip(axes, spatial, strict=True):
        shape[axis] = extent
    if tuple(shape) == shape_of(x) and stride == ONE and first == NONE:
        return x

    def at(*index: Any) -> Expr:
        place, tests = list(index), []
        for axis, start, step in zip(axes, first, stride, strict=True):
            own, count = index[axis] - start, shape_of(x)[axis]
            if (start, step, count) != (0, 1, shape[axis]):
                tests += [own >= 0, own < (count - 1) * step + 1] + [tirx.floormod(own, step) == 0] * (step > 1)
            place[axis] = tirx.floordiv(own, step)
        return tirx.if_then_else(tirx.all(*tests), x(*place), constant(0, x.dtype))

    return te.compute(shape, at, name=name)


def _dtype(a: te.Tensor, b: te.Tensor) -> str:
    """The dtype of products: that of both factors, int32 of uint8 and int8."""
    return str(a.dtype) if a.dtype == b.dtype else "int32"


def _times(a: Expr, b: Expr) -> Expr:
    """The product of two elements."""
    return a * b if a.ty == b.ty else a.astype("int32") * b.astype("int32")


def _named(rank: int, lead: int, inner: str, trans: bool) -> list[str]:
    """The names of the axes of one of a product's operands: small letters those of a matrix, of a vector k; others
    those of its batch, the last of `lead` axes."""
    batch = [f"B{axis}" for axis in range(lead)]
    return ["k"] if rank == 1 else [*batch[lead + 2 - rank :], *(inner[::-1] if trans else inner)]


def matmul(a: te.Tensor, b: te.Tensor, trans_A: bool = False, trans_B: bool = False) -> te.Tensor:
    """op(a) op(b), where op swaps the last two axes or leaves them; leading axes broadcast, a vector is a row on
    the left and a column on the right, whose axis of one element is dropped."""
    lead = max(len(a.shape), len(b.shape), 2) - 2
    operands = (a, _named(len(a.shape), lead, "mk", trans_A)), (b, _named(len(b.shape), lead, "kn", trans_B))
    extents: dict[str, int] = {}
    for x, axes in operands:
        extents |= {axis: n for axis, n in zip(axes, shape_of(x), strict=True) if n != 1 or axis not in extents}
    out = [axis for axis in (*(f"B{i}" for i in range(lead)), "m", "n") if axis in extents]
    shape = tuple(extents[axis] for axis in out)
    if extents["k"] == 0:
        return full(shape, 0.0, _dtype(a, b))
    k = te.reduce_axis((0, extents["k"]), name="k")

    def at(*index: Any) -> Expr:
        place = {**dict(zip(out, index, strict=True)), "k": k}
        factors = []
        for x, axes in operands:
            named = zip(axes, shape_of(x), strict=True)
            factors.append(x(*[0 if n == 1 and axis.isupper() else place[axis] for axis, n in named]))
        return te.sum(_times(*factors), axis=k)

    return te.compute(shape, at, name="matmul")


def sum_axes(**extents: int) -> list[tirx.IterVar]:
    """The indices of a sum, by name."""
    return [te.reduce_axis((0, extent), name=name) for name, extent in extents.items()]


def _grouped(x: te.Tensor, axis: int, groups: int) -> te.Tensor:
    """x with `axis` in two, (groups, the rest of it); x itself where there is one group."""
    if groups == 1:
        return x
    extents = shape_of(x)
    own = extents[axis] // groups

    at = lambda *index: x(*index[:axis], index[axis] * own + index[axis + 1], *index[axis + 2 :])  # noqa: E731
    return te.compute((*extents[:axis], groups, own, *extents[axis + 1 :]), at, name="grouped")


def _of_groups(name: str, at: Any, shape: Shape, axis: int, groups: int) -> te.Tensor:
    """The result of `shape`, computed at indices in which `axis` is two, as `_grouped` has them."""
    if groups == 1:
        return te.compute(shape, at, name=name)
    within = (*shape[:axis], groups, shape[axis] // groups, *shape[axis + 1 :])
    return reshape(te.compute(within, at, name=name), shape)


def conv2d(
    x: te.Tensor, f: te.Tensor, stride: Pair = ONE, padding: Pair = NONE, dilation: Pair = ONE,
    groups: int = 1,
) -> te.Tensor:
    """Cross-correlation of images x, NCHW, with filters f, OIHW, for each group of channels and filters:
    out[n, o, y, z] = sum_{c, i, j} pad(x)[n, c, y * s + i * d, z * s' + j * d'] * f[o, c, i, j]."""
    (batch, _, height, width), (filters, channels, fy, fz) = shape_of(x), shape_of(f)
    (sy, sz), (py, pz), (dy, dz) = stride, padding, dilation
    space = (height + 2 * py - (fy - 1) * dy - 1) // sy + 1, (width + 2 * pz - (fz - 1) * dz - 1) // sz + 1
    if channels == 0 or batch == 0:
        return full((batch, filters, *space), 0.0, _dtype(x, f))
    groups, depthwise = _split(shape_of(f), groups)
    padded, own = pad_images(_grouped(x, 1, groups), padding), _grouped(f, 0, groups)
    *lead, i, j = sum_axes(**({} if depthwise else {"c": channels}), i=fy, j=fz)

    def at(n: Any, *index: Any) -> Expr:
        *g, o, y, z = index
        channel, c = (o, 0) if depthwise else (lead[0], lead[0])
        value = padded(n, *g, channel, y * sy + i * dy, z * sz + j * dz)
        return te.sum(_times(value, own(*g, o, c, i, j)), axis=[*lead, i, j])

    return _of_groups("conv2d", at, (batch, filters, *space), 1, groups)


def conv2d_input_gradient(
    f: te.Tensor, grad: te.Tensor, shape: Shape, stride: Pair = ONE, padding: Pair = NONE, dilation: Pair = ONE,
    groups: int = 1,
) -> te.Tensor:
    """The gradient of `conv2d` with respect to its images, of `shape`: the output's gradient, set apart by
    the stride and padded, against the filters turned by half a turn,
    out[n, c, y, z] = sum_{o, i, j} spread(grad)[n, o, y + i * d, z + j * d'] * f[o, c, fy - 1 - i, fz - 1 - j]."""
    (batch, filters, gy, gz), (*_, fy, fz), (dy, dz) = shape_of(grad), shape_of(f), dilation
    if 0 in (filters, batch, gy, gz):
        return full(shape, 0.0, str(grad.dtype))
    if stride != (1, 1) and dilation == (1, 1) and groups == 1 and not (shape[2] % stride[0] or shape[3] % stride[1]):
        return _input_gradient_by_phases(f, grad, shape, stride, padding)
    groups, depthwise = _split(shape_of(f), groups)
    h, w = (fy - 1) * dy, (fz - 1) * dz
    first = (h - padding[0], w - padding[1])  # zeros before the first gradient
    spread = spread_images("spread", _grouped(grad, 1, groups), (shape[2] + h, shape[3] + w), first, stride)
    own = _grouped(f, 0, groups)
    *lead, i, j = sum_axes(**({} if depthwise else {"o": filters // groups}), i=fy, j=fz)

    def at(n: Any, *index: Any) -> Expr:
        *g, c, y, z = index
        o, channel = (c, 0) if depthwise else (lead[0], c)
        turned = own(*g, o, channel, fy - 1 - i, fz - 1 - j)
        return te.sum(spread(n, *g, o, y + i * dy, z + j * dz) * turned, axis=[*lead, i, j])

    return _of_groups("conv2d_input_gradient", at, shape, 1, groups)


def _input_gradient_by_phases(f: te.Tensor, grad: te.Tensor, shape: Shape, stride: Pair, padding: Pair) -> te.Tensor:
    """`conv2d_input_gradient` for strides that divide the images, without the zeros between the gradients: row Y s + a,
    of phase a, meets the filters' rows i = e + s i' only, with e = (a + p) mod s, in a convolution of the gradient's
    rows Y + q - i', q = (a + p) div s. The taps are laid out in the order of those rows, i' backwards."""
    (batch, filters, *_), (_, channels, fy, fz), (sy, sz), (py, pz) = shape_of(grad), shape_of(f), stride, padding
    ty, tz, rows, columns = -(-fy // sy), -(-fz // sz), shape[2] // sy, shape[3] // sz  # taps of a phase, its image
    zero = constant(0, grad.dtype)

    def split(phase: Any, pad: int, step: int) -> tuple[Any, Any]:
        """(phase + pad) mod step and div step. Written as a choice: where TVM 0.27 fuses the loops of two phases, it
        simplifies two such sums to a wrong index."""
        q, e = divmod(pad, step)
        over = phase >= step - e
        return tirx.Select(over, phase + e - step, phase + e), tirx.Select(over, q + 1, q)

    def tap(a: Any, b: Any, o: Any, c: Any, i: Any, j: Any) -> Expr:
        y, z = split(a, py, sy)[0] + (ty - 1 - i) * sy, split(b, pz, sz)[0] + (tz - 1 - j) * sz
        return tirx.if_then_else(tirx.all(y < fy, z < fz), f(o, c, y, z), zero)

    def lie(n: Any, a: Any, b: Any, o: Any, y: Any, z: Any) -> Expr:
        v, w = y + split(a, py, sy)[1] - (ty - 1), z + split(b, pz, sz)[1] - (tz - 1)
        return read_padded(grad, (n, o, v, w), FIRST, ONE, 0.0)

    taps = te.compute((sy, sz, filters, channels, ty, tz), tap, name="taps")
    laid = te.compute((batch, sy, sz, filters, rows + ty - 1, columns + tz - 1), lie, name="laid")
    o, i, j = sum_axes(o=filters, i=ty, j=tz)

    def at(n: Any, a: Any, b: Any, c: Any, y: Any, z: Any) -> Expr:
        return te.sum(laid(n, a, b, o, y + i, z + j) * taps(a, b, o, c, i, j), axis=[o, i, j])

    def together(n: Any, c: Any, y: Any, z: Any) -> Expr:
        phase = tirx.floormod(y, sy), tirx.floormod(z, sz)
        return phases(n, *phase, c, tirx.floordiv(y, sy), tirx.floordiv(z, sz))

    phases = te.compute((batch, sy, sz, channels, rows, columns), at, name="conv2d_input_gradient")
    return te.compute(shape, together, name="together")


def conv2d_filter_gradient(
    x: te.Tensor, grad: te.Tensor, shape: Shape, stride: Pair = ONE, padding: Pair = NONE, dilation: Pair = ONE,
    groups: int = 1,
) -> te.Tensor:
    """The gradient of `conv2d` with respect to its filters, of `shape`:
    out[o, c, i, j] = sum_{n, y, z} grad[n, o, y, z] * pad(x)[n, c, y * s + i * d, z * s' + j * d']."""
    (batch, _, gy, gz), (sy, sz), (dy, dz) = shape_of(grad), stride, dilation
    if batch == 0 or gy == 0 or gz == 0:
        return full(shape, 0.0, str(x.dtype))
    groups, depthwise = _split(shape, groups)
    padded, grads = pad_images(_grouped(x, 1, groups), padding), _grouped(grad, 1, groups)
    n, y, z = sum_axes(n=batch, y=gy, z=gz)

    def at(*index: Any) -> Expr:
        *g, o, c, i, j = index
        value = padded(n, *g, o + c if depthwise else c, y * sy + i * dy, z * sz + j * dz)
        return te.sum(grads(n, *g, o, y, z) * value, axis=[n, y, z])

    return _of_groups("conv2d_filter_gradient", at, shape, 0, groups)


def _split(filters: Shape, groups: int) -> tuple[int, bool]:
    """In how many groups channels and filters are put apart, and whether each filter has a channel of its own: then in
    one, as there is no sum over channels."""
    depthwise = groups > 1 and filters[:2] == (groups, 1)
    return 1 if depthwise else groups, depthwise
