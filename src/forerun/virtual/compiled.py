"""`torch.compile` on the virtual GPU: PyTorch captures, differentiates and partitions; graphs are then played fused.

Dynamo, AOTAutograd and Inductor's graph passes run as they are, with the min-cut partitioner that decides what the
backward pass gets and what it computes again. Instead of generating kernels, a graph is cut into kernels by the rules
of Inductor's lowering and scheduler (`torch/_inductor/graph.py`, `ir.py`, `scheduler.py`, PyTorch 2.11 to 2.13):
pointwise values are computed where they are used unless that would be dear; loops over the same elements that share
data become one kernel; what lives within one kernel takes no memory; a result takes the place of an input that dies.
Matrix products, attention and whatever is not known stay kernels of their own.
"""

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from forerun.errors import NotSupported
from forerun.trace import Issuer, Phase
from forerun.virtual.backend import DEVICE, Stream
from forerun.virtual.describe import bytes_of
from forerun.virtual.fusion import Kernel, is_random, plan_kernels, resolve, stored_base
from forerun.virtual.megatron import WeightCasts, is_weight, mark_computed_again, nodes_of_weights
from forerun.virtual.process_group import imported_streams
from forerun.virtual.recorder import Recorder

GRAPH_MODES = {"reduce-overhead", "max-autotune"}
"""Modes that record CUDA graphs, whose memory comes from a pool of its own."""


def virtual_backend(
    recorder: Recorder,
    mode: str,
    prepared: Callable[["CompiledGraph"], Any] = lambda graph: graph,
    casts: WeightCasts | None = None,
) -> Callable[[fx.GraphModule, Sequence[Any]], Any]:
    """A backend for `torch.compile` that plays graphs on the virtual device and has them recorded.

    `prepared` gets each graph and returns what is called in its place; `casts` has graphs compute once a step what
    depends on weights alone, and gather again in backward passes.
    """
    pool = GraphPool() if mode in GRAPH_MODES and casts is None else None

    # torch/_inductor/compile_fx.py (2.13) calls this in place of `compile_fx_inner`, once for each graph that it cut
    def compile_inside(graph: fx.GraphModule, inputs: Sequence[Any], **how: Any) -> Any:
        is_inference = bool(how.get("is_inference"))
        _post_grad_passes(graph, inputs, is_inference=is_inference)
        last = takes_channels_last(graph, is_inference=is_inference)
        static = how.get("static_input_idxs") or ()
        return prepared(CompiledGraph(graph, recorder, pool, static=static, channels_last=last, casts=casts))

    def backend(graph: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        from torch._inductor.compile_fx import compile_fx

        # torch/_inductor/config.py:1079 (2.13): folding reads the values of constants, and fake tensors have none
        patches: dict[str, Any] = {"joint_graph_constant_folding": False}
        if casts is not None:
            patches["joint_custom_pre_pass"] = mark_computed_again
        return compile_fx(graph, inputs, inner_compile=compile_inside, config_patches=patches)  # type: ignore[arg-type]

    return backend


@contextlib.contextmanager
def compiling_afresh(*, fails_at_limit: bool = True) -> Iterator[None]:
    """Begin without graphs of other programs; `fails_at_limit` is for steps that PyTorch must not give up compiling.

    Raises:
        NotSupported: it gave up.
    """
    import torch._dynamo
    import torch._functorch.config as functorch_config
    from torch._dynamo.exc import FailOnRecompileLimitHit

    def copy(tensor: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
        """A constant on the virtual device holds nothing that could be copied."""
        return tensor if tensor.device.type == DEVICE else original(tensor, memo)

    original = torch.Tensor.__deepcopy__
    torch.Tensor.__deepcopy__ = copy  # type: ignore[method-assign]
    torch._dynamo.reset()
    # torch/_functorch/config.py:378 (2.13): compiled later, a backward graph is copied first, and constants cannot be
    at_once = functorch_config.patch(force_non_lazy_backward_lowering=True)
    try:
        with (
            torch._dynamo.config.patch(fail_on_recompile_limit_hit=fails_at_limit),
            at_once,
            _capturing_without_modes(),
        ):
            yield
    except FailOnRecompileLimitHit as error:
        raise NotSupported(
            f"compile: a function of the model is compiled anew for one call after another, and PyTorch gives up after "
            f"{torch._dynamo.config.recompile_limit} graphs of it; the rest would run as it is, which is not modelled. "
            f"Set compile to none."
        ) from error
    finally:
        torch.Tensor.__deepcopy__ = original  # type: ignore[method-assign]
        torch._dynamo.reset()


@contextlib.contextmanager
def _capturing_without_modes() -> Iterator[None]:
    """Have Dynamo put the modes of the virtual device aside under DDP too, as it does everywhere else."""
    # torch/_dynamo/convert_frame.py:2600-2627 (2.13): with an active DDP module it returns before that line
    from torch._dynamo.convert_frame import CatchErrorsWrapper

    original = CatchErrorsWrapper.__call__

    def capture(self: Any, *frame: Any) -> Any:
        is_replicated = torch.nn.parallel.DistributedDataParallel._get_active_ddp_module() is not None
        with _disable_current_modes() if is_replicated else contextlib.nullcontext(), imported_streams():
            return original(self, *frame)

    CatchErrorsWrapper.__call__ = capture  # type: ignore[method-assign]
    try:
        yield
    finally:
        CatchErrorsWrapper.__call__ = original  # type: ignore[method-assign]


def _post_grad_passes(graph: fx.GraphModule, inputs: Sequence[Any], *, is_inference: bool) -> None:
    from torch._guards import detect_fake_mode
    from torch._inductor.fx_passes.post_grad import post_grad_passes, view_to_reshape
    from torch._inductor.virtualized import V

    with V.set_fake_mode(detect_fake_mode(inputs)), _random_state_of_the_host():
        view_to_reshape(graph)
        post_grad_passes(graph, is_inference)


@contextlib.contextmanager
def _random_state_of_the_host() -> Iterator[None]:
    """Let passes evaluate anew what draws numbers that are drawn again when recomputed."""
    from torch._prims import rng_prims

    # torch/_prims/rng_prims.py:182 (2.13): the state to save is that of a kind of device, and ours is not in its list
    original: Any = rng_prims.get_device
    rng_prims.get_device = lambda args, kwargs: "cpu" if original(args, kwargs) == DEVICE else original(args, kwargs)
    try:
        yield
    finally:
        rng_prims.get_device = original


def takes_channels_last(graph: fx.GraphModule, *, is_inference: bool) -> bool:
    """Whether Inductor lays out a graph's images with channels last, whatever the program does."""
    from torch._inductor.graph import GraphLowering

    return GraphLowering.decide_layout_opt(graph, is_inference=is_inference)


class GraphPool:
    """The memory of recorded CUDA graphs: a stream's pool, and what graphs left in it."""

    def __init__(self):
        self.stream = Stream()
        self._results: dict[int, StorageWeakRef] = {}
        self._buffers: dict[Any, torch.Tensor] = {}
        self._calls: Counter[int] = Counter()
        self._is_backward = False

    def call_number(self, graph: int, *, is_backward: bool) -> int:
        """Which call of a graph this is since the forward pass began: each has a place, and a recording, of its own."""
        if self._is_backward and not is_backward:
            self._calls.clear()
        self._is_backward = is_backward
        self._calls[graph] += 1
        return self._calls[graph]

    def keep(self, results: Sequence[Any]) -> None:
        """Note what a graph leaves in its memory."""
        for value in results:
            if isinstance(value, torch.Tensor):
                storage = value.untyped_storage()
                self._results[storage._cdata] = StorageWeakRef(storage)

    def holds(self, value: torch.Tensor) -> bool:
        """Whether a graph left the value there."""
        result = self._results.get(value.untyped_storage()._cdata)
        return result is not None and not result.expired()

    def fixed(self, value: torch.Tensor, recording: Any) -> torch.Tensor:
        """The value at the fixed address where one recording of a graph reads it."""
        if recording not in self._buffers:
            self._buffers[recording] = torch.empty_like(value)
        return self._buffers[recording].copy_(value)


AT_RANDOM_STATE = {"run_and_save_rng_state", "run_with_rng_state", "graphsafe_run_with_rng_state"}
"""Wrap an operator that draws numbers, so that it draws the same again when it is recomputed."""
BORROWED = ("primals", "tangents", "arg")
"""Names that AOTAutograd gives to inputs whose memory a graph may not use for its results; saved activations it may."""


class CompiledGraph:
    """One captured graph; called with a list of inputs that it empties, as Inductor's wrappers are."""

    def __init__(
        self,
        graph: fx.GraphModule,
        recorder: Recorder,
        pool: GraphPool | None,
        static: Sequence[int],
        *,
        channels_last: bool = False,
        casts: WeightCasts | None = None,
    ):
        # torch/_functorch/_aot_autograd/utils.py:125 (2.13) looks for it on the instance: inputs arrive in one list,
        # which is emptied so that they can die while the graph runs
        self._boxed_call = True
        self.recorder = recorder
        self.pool = pool
        self.graph = graph
        self.inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
        self.output = next(node for node in graph.graph.nodes if node.op == "output")
        self.kernels = plan_kernels(graph.graph)
        self.last_use = self._last_uses()
        self.ending = self._ending()
        self.copied = [i for i in range(len(self.inputs)) if i not in set(static)] if pool else []
        self.channels_last = channels_last
        self.casts, self.weights = casts, [node for node in self.inputs if casts is not None and is_weight(node)]
        self.of_weights = self._kernels_of_weights() if casts is not None else set[int]()

    def __call__(self, arguments: list[Any]) -> Any:
        """Play the graph."""
        values: dict[fx.Node, Any] = dict(zip(self.inputs, arguments, strict=True))
        arguments.clear()
        issuer = self.casts.issuer if self.casts is not None else Issuer.GRAPH if self.pool else Issuer.COMPILED
        with self.recorder.issued_by(issuer), self._in_pool():
            self._copy_inputs(values)
            weights = [values[node] for node in self.weights]
            cast = self.casts.values(self, weights) if self.casts is not None else None
            is_again = bool(cast)
            values |= cast or {}
            for number, kernel in enumerate(self.kernels):
                is_cast = cast is not None and number in self.of_weights
                if not (is_cast and is_again):
                    self._play(kernel, number, values)
                if cast is not None and is_cast and not is_again:
                    cast.update((node, values[node]) for node in kernel.nodes if self._is_read_elsewhere(node))
                for node in self.last_use.get(number, ()):
                    values.pop(node, None)
            results = [value_of(argument, values) for argument in self.output.args[0]]  # type: ignore[union-attr]
        if self.pool is not None:
            self.pool.keep(results)
        return results

    def _kernels_of_weights(self) -> set[int]:
        """Numbers of the kernels that work on weights alone."""
        nodes = nodes_of_weights(self.graph.graph)
        return {number for number, kernel in enumerate(self.kernels) if nodes.issuperset(kernel.nodes)}

    def _is_read_elsewhere(self, node: fx.Node) -> bool:
        """Whether a kernel that works on more than weights reads a value of one that does not."""
        inside = itertools.chain.from_iterable(self.kernels[number].nodes for number in self.of_weights)
        return not set(node.users).issubset(inside)

    def _copy_inputs(self, values: dict[fx.Node, Any]) -> None:
        """Copy inputs that move to fixed addresses, which is where a CUDA graph reads them."""
        if self.pool is None:
            return
        # torch/_inductor/cudagraph_trees.py:988-993 (2.13): all inputs but parameters and outputs of other graphs move;
        # blocks share one graph, which is recorded once for the parameters of each, and one without any for each call
        number = self.pool.call_number(id(self), is_backward=self.recorder.current_phase is Phase.BACKWARD)
        block = tuple(id(value) for value in values.values() if isinstance(value, torch.nn.Parameter)) or number
        # cudagraph_trees.py, cudagraphify_impl: a graph of dynamic shapes is recorded anew for each set of its integers
        sizes = tuple(value for value in values.values() if isinstance(value, int))
        for index in self.copied:
            value = values[self.inputs[index]]
            if isinstance(value, torch.Tensor) and not self.pool.holds(value):
                values[self.inputs[index]] = self.pool.fixed(value, (id(self), block, sizes, index))

    @contextlib.contextmanager
    def _in_pool(self) -> Iterator[None]:
        if self.pool is None:
            yield
            return
        backend: Any = getattr(torch, "virtual")  # noqa: B009 (registered at run time)
        with backend.stream(self.pool.stream):
            yield

    def _play(self, kernel: Kernel, number: int, values: dict[fx.Node, Any]) -> None:
        recorder = self.recorder
        with recorder.in_module(kernel.module):
            for node in kernel.nodes:
                # a kernel of its own is recorded as the operator that it is; views and parts of fused ones are not
                with contextlib.nullcontext() if node is kernel.alone else recorder.muted():
                    if self.channels_last and node.target is torch.ops.aten.convolution.default:
                        self._lay_out(node, values)
                    values[node] = run(node, values)
            if kernel.alone is None and kernel.outputs and not recorder.is_muted:
                recorder.fused(
                    kernel.name,
                    [(values[node], None if rows is None else bytes_of(values[rows])) for node, rows in kernel.reads],
                    [part for node in kernel.outputs for part in pytree.tree_leaves(values[node])],
                    [values[node] for node in self.ending.get(number, ())],
                    sum(values[node].numel() for node in kernel.nodes if is_random(node)),
                )

    def _lay_out(self, convolution: fx.Node, values: dict[fx.Node, Any]) -> None:
        """Copy what is not laid out with channels last: images that come from outside, and weights."""
        for node in convolution.all_input_nodes[:2]:
            if values[node].dim() == 4:  # torch/_inductor/kernel/conv.py (2.13): no layout is asked for in 3 dimensions
                values[node] = values[node].contiguous(memory_format=torch.channels_last)

    def _last_uses(self) -> dict[int, list[fx.Node]]:
        """Values to drop after each kernel, by the kernel's number."""
        last: dict[fx.Node, int] = {}
        for number, kernel in enumerate(self.kernels):
            for node in kernel.nodes:
                for used in (node, *node.all_input_nodes):
                    last[used] = number
            for read, rows in kernel.reads:
                last[read] = number
                if rows is not None:
                    last[rows] = number
        returned = set(self.output.all_input_nodes)
        nodes_by_kernel: dict[int, list[fx.Node]] = {}
        for node, number in last.items():
            if node not in returned:
                nodes_by_kernel.setdefault(number, []).append(node)
        for node in self.inputs:
            if node not in last and node not in returned:
                nodes_by_kernel.setdefault(0, []).append(node)
        return nodes_by_kernel

    def _ending(self) -> dict[int, list[fx.Node]]:
        """For each kernel by number, one value for each memory that ends with it; borrowed memory never ends here."""
        # torch/_inductor/scheduler.py:1466 (2.13), decide_inplace_update: a result may take the place of such an input
        last: dict[fx.Node, tuple[int, fx.Node]] = {}
        returned = {stored_base(node) for node in self.output.all_input_nodes}
        for number, nodes in sorted(self.last_use.items()):
            for node in nodes:
                last[stored_base(node)] = number, node
        nodes_by_kernel: dict[int, list[fx.Node]] = {}
        for base, (number, node) in last.items():
            is_borrowed = base.op == "placeholder" and base.name.startswith(BORROWED)
            if base not in returned and not is_borrowed and isinstance(node.meta.get("val"), torch.Tensor):
                nodes_by_kernel.setdefault(number, []).append(node)
        return nodes_by_kernel


def value_of(argument: Any, values: dict[fx.Node, Any]) -> Any:
    """An argument of a node with nodes replaced by their values."""
    return fx.map_arg(argument, lambda node: values[node])


def run(node: fx.Node, values: dict[fx.Node, Any]) -> Any:
    """The value of one node."""
    if node.op == "get_attr":
        return resolve(node)
    target: Any = node.target
    arguments, keywords = list(value_of(node.args, values)), dict(value_of(node.kwargs, values))
    name = getattr(target, "__name__", "")
    if name not in AT_RANDOM_STATE:
        return target(*arguments, **keywords)
    # torch/_prims/rng_prims.py (2.13): the state comes as the first argument, or as the keyword `rng_state`
    if name == "run_with_rng_state":
        arguments.pop(0)
    keywords.pop("rng_state", None)
    result = arguments[0](*arguments[1:], **keywords)
    return (torch.empty(16, dtype=torch.uint8, device="cpu"), result) if name == "run_and_save_rng_state" else result
