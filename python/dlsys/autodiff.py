"""The public graph API: variables, operators, gradients, the executor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .executor import Executor as Executor
from .gradients import gradients as gradients, sum_node_list as sum_node_list
from .graph import Op as Op, find_topo_sort as find_topo_sort
from .inspect.text import format_graph as format_graph
from .ops import *  # noqa: F403  every operator, and the functions of nodes
from .ops import assign_op as assign, group_op as group
from .tensors import Parameter as Parameter, Tensor
from .tensors.creation import Variable as Variable, full_op as full_op, placeholder_op as placeholder_op
from .tensors.inplace import advance_op as advance_op, with_updates_op as with_updates_op

if TYPE_CHECKING:
    from .graph import Node as Node
else:
    Node = Tensor  # what users hold; for a checker tensors are nodes, see `dlsys.node`
