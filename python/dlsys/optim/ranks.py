"""Gradients in a group of processes: the mean over all samples, of which each process has a share."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from .. import autodiff as ad
from .. import distributed
from ..errors import CommunicationError
from ..graph import Shape
from ..ops.collective import AllGather


def weighted(value: ad.Node, samples: ad.Node | None) -> ad.Node:
    """A mean over this rank's samples times their number, a node of shape (); None where all ranks have as many."""
    return value if samples is None else value * ad.cast_like_op(samples, value)


def mean_of_ranks(
    values: Sequence[ad.Node], samples: ad.Node | None, first: int = 0, shapes: Sequence[Shape] | None = None
) -> list[ad.Node]:
    """Of `weighted` values the means over all ranks' samples, to be computed on all ranks.

    Values are sent in the order in which they were made, which is that in which they will be ready. `first`: the place
    of the first among all that is sent, see `all_reduce_op`. With `shapes`, those of the values, each rank computes
    its share of the means, and they are gathered of these, unless who reads them takes the `share_in` them."""
    made = sorted(range(len(values)), key=lambda i: values[i].id)
    place = {i: first + number for number, i in enumerate(made)}
    total = None if samples is None else ad.all_reduce_op(samples, order=first - 1)

    def mean(total_of: ad.Node) -> ad.Node:
        return total_of * (1.0 / distributed.size()) if total is None else total_of / ad.cast_like_op(total, total_of)

    if shapes is None:
        return [mean(ad.all_reduce_op(value, order=place[i])) for i, value in enumerate(values)]
    shares = [mean(ad.reduce_scatter_op(value, True, place[i])) for i, value in enumerate(values)]
    return [ad.all_gather_op(share, shapes[i], place[i]) for i, share in enumerate(shares)]


def share_in(value: ad.Node) -> ad.Node | None:
    """This rank's share of a value that is gathered of the ranks' shares; None for others."""
    return value.inputs[0] if isinstance(value.op, AllGather) and "shape" in value.attrs else None


def scaled(value: ad.Node, scale: ad.Node) -> ad.Node:
    """The product with a number; of what is gathered the shares are scaled."""
    share = share_in(value)
    if share is None:
        return value * scale
    return ad.all_gather_op(share * scale, value.attrs["shape"], value.attrs["order"])


def shared(value: np.ndarray, shape: Shape) -> np.ndarray:
    """This rank's share of an array, of that shape, as `own_share`."""
    own = value.reshape(-1)[distributed.rank() * shape[0] :][: shape[0]]
    return np.pad(own, (0, shape[0] - len(own)))


def digest(values: Iterable[np.ndarray]) -> str:
    """A number of the values' bits."""
    found = hashlib.blake2b(digest_size=8)
    for value in values:
        found.update(value.tobytes())
    return found.hexdigest()


def require_same(what: str, text: str) -> None:
    """Raises CommunicationError, on all ranks, where a rank's text is another than rank 0's; the error names the rank
    and the first line that differs."""
    if distributed.size() == 1:
        return
    own = np.frombuffer(text.encode(), np.uint8)
    longest = distributed.all_reduce(len(own), "max")
    texts = distributed.all_gather(np.pad(own, (0, longest - len(own)))).reshape(distributed.size(), -1)
    lines = [bytes(found).rstrip(b"\0").decode().splitlines() for found in texts]
    for other, found in enumerate(lines):
        if found != lines[0]:
            pairs = zip([*lines[0], "nothing"], [*found, "nothing"], strict=False)
            a, b = next(((a, b) for a, b in pairs if a != b), ("more", "fewer lines"))
            raise CommunicationError(f"rank {other} of {distributed.size()} has another {what}: {b}, rank 0 has {a}")


def require_whole(parameters: Iterable[ad.Parameter]) -> None:
    """Raises CommunicationError for a parameter of which each rank has a part: the mean of the parts is nothing."""
    for parameter in parameters:
        if parameter.cell.sharded:
            told = "each rank has a part of its own: take steps by update(ad.gradients(loss, optimizer.parameters))"
            raise CommunicationError(f"{parameter.name} has no mean over the ranks, {told}")


def synchronize(parameters: Mapping[str, ad.Parameter]) -> None:
    """Give all ranks rank 0's values. Raises CommunicationError where parameters differ in number, shape or dtype, or
    are parts."""
    if distributed.size() == 1:
        return
    require_whole(parameters.values())
    types = "\n".join(f"{name} {p.dtype} {list(p.shape)}" for name, p in parameters.items())
    require_same("parameters", types)
    for parameter in parameters.values():
        ctx = parameter.device
        parameter.value = distributed.broadcast(np.asarray(parameter))
        parameter.cell.on(ctx)


def require_equal(parameters: Iterable[ad.Parameter]) -> None:
    """Raises CommunicationError, on all ranks, where a parameter has other bits on one than on the others: a rank has
    drifted. It names the rank and the first such parameter."""
    if distributed.size() == 1:
        return
    found = list(parameters)
    own = b"".join(bytes.fromhex(digest([np.asarray(p)])) for p in found)
    sums = distributed.all_gather(np.frombuffer(own, np.uint64)).reshape(distributed.size(), -1)
    for i, parameter in enumerate(found):
        values, counts = np.unique(sums[:, i], return_counts=True)
        if len(values) > 1:
            usual = values[counts.argmax()] if counts.max() > 1 else sums[0, i]
            rank = int((sums[:, i] != usual).argmax())
            told = f"{parameter.name} has other values there than on the others: was it changed by one rank alone?"
            raise CommunicationError(f"rank {rank} of {distributed.size()} has drifted: {told}")
