"""Fake tensors of a program's own Python classes (`Tensor.as_subclass`: torchvision's `tv_tensors`, MONAI, fastai).

A fake tensor has a Python class already, so `as_subclass` refuses it. Here the alias that `as_subclass` makes gets a
class that is both: the program's `isinstance` and attributes work, and PyTorch still sees a fake tensor. Two things are
kept apart. `__torch_function__` is called with the program's own class, as its `super()` would else reach the fake one.
And `__dict__`, which such classes copy from tensor to tensor, shows the program's attributes alone. While an operator
runs its operands are bare.

Not covered: `type(tensor) is TheClass` of a fake tensor, classes with a `__torch_dispatch__` of their own.
"""

import contextlib
import functools
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map_only

from forerun.virtual.backend import DEVICE
from forerun.virtual.cuda.shadow import tensors_in
from forerun.virtual.put_back import replaced

_BARE = (Tensor, torch.nn.Parameter, FakeTensor)
_AS_SUBCLASS: Any = Tensor.as_subclass
_MAKE_SUBCLASS: Any = Tensor._make_subclass  # type: ignore[attr-defined]
_NEW_PARAMETER: Any = torch.nn.Parameter.__new__
_ALL_ATTRIBUTES: Any = Tensor.__dict__["__dict__"]
_NOT_OF_THE_PROGRAM: set[str] = set()
"""Attributes that a fake tensor has from its birth."""
_PREFIX = "_forerun"
"""Of those that we give tensors."""


class ProgramAttributes(dict[str, Any]):
    """The attributes that a program gave a fake tensor of its own class: what `__dict__` says, and takes.

    A dictionary, since fastai makes it that of another tensor.
    """

    def __init__(self, tensor: Tensor):
        self._all: dict[str, Any] = _ALL_ATTRIBUTES.__get__(tensor)
        super().__init__({name: value for name, value in self._all.items() if _is_of_program(name)})

    def __setitem__(self, name: str, value: Any) -> None:
        if _is_of_program(name):
            self._all[name] = value
            super().__setitem__(name, value)

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        self._all.pop(name, None)

    clear, update, pop, popitem, setdefault = (
        MutableMapping.clear, MutableMapping.update, MutableMapping.pop, MutableMapping.popitem,
        MutableMapping.setdefault,
    )  # fmt: skip

    def copy(self) -> dict[str, Any]:
        """As of a dictionary, for `copy.copy` and `copy.deepcopy` as well."""
        return dict(self)

    __copy__ = copy

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


def _is_of_program(name: str) -> bool:
    return name not in _NOT_OF_THE_PROGRAM and not name.startswith(_PREFIX)


def _set_attributes(tensor: Tensor, values: Mapping[str, Any]) -> None:
    own, values = ProgramAttributes(tensor), dict(values)
    own.clear()
    own.update(values)


def _set_attribute(tensor: Tensor, name: str, value: Any) -> None:
    """As `object` does it, but `tensor.__dict__ = …` of a fake tensor leaves what makes it one."""
    if name == "__dict__":
        _set_attributes(tensor, value)
    else:
        object.__setattr__(tensor, name, value)


@functools.cache
def fake_class(kind: type) -> type:
    """The class of fake tensors that are also of the program's `kind`."""

    def torch_function(_: type, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        own = tuple(kind if each is both else each for each in types)
        return kind.__torch_function__(func, own, args, kwargs or {})  # type: ignore[attr-defined]

    namespace = {
        "__module__": kind.__module__, "__doc__": kind.__doc__, "__torch_function__": classmethod(torch_function),
        "__dict__": property(ProgramAttributes, _set_attributes),
    }  # fmt: skip
    both = type(kind.__name__, (kind, FakeTensor), namespace)
    return both


_WITHOUT_CLASS = type("Tensor", (FakeTensor,), {"__dict__": property(ProgramAttributes, _set_attributes)})
"""Of a tensor of the program's class that was made a plain one, which keeps and takes the program's attributes."""


@contextlib.contextmanager
def bare_operands(args: Any, kwargs: dict[str, Any]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Operands as an operator sees them, without the program's classes: PyTorch's kernels of shapes call methods."""
    own = [tensor for tensor in tensors_in((args, kwargs)) if type(tensor) not in _BARE]
    if not own:
        yield args, kwargs
        return
    fakes = [(tensor, type(tensor)) for tensor in own if isinstance(tensor, FakeTensor)]
    if len(own) > len(fakes):
        args, kwargs = tree_map_only(Tensor, _without_class, (args, kwargs))
    for tensor, _ in fakes:
        tensor.__class__ = FakeTensor
    try:
        yield args, kwargs
    finally:
        for tensor, kind in fakes:
            tensor.__class__ = kind


def _without_class(tensor: Tensor) -> Tensor:
    """A real tensor of a class that only overrides Python's view of it as a bare one; others as they are."""
    kind: Any = type(tensor)
    is_plain = kind.__torch_dispatch__ is Tensor.__torch_dispatch__  # type: ignore[attr-defined]
    if kind in _BARE or isinstance(tensor, FakeTensor) or not is_plain:
        return tensor
    with torch._C.DisableTorchFunctionSubclass():
        return _AS_SUBCLASS(tensor, Tensor)


def _as_subclass(tensor: Tensor, cls: type) -> Tensor:
    """`Tensor.as_subclass`, of fake tensors too."""
    if not isinstance(tensor, FakeTensor):
        if issubclass(cls, FakeTensor) and cls is not FakeTensor:  # the type of another tensor, which is fake
            cls = Tensor if cls is _WITHOUT_CLASS else cls.__bases__[0]
        return _AS_SUBCLASS(tensor, cls)
    with torch._C.DisableTorchFunctionSubclass():
        alias: Any = torch.ops.aten.alias(tensor)
    is_plain = issubclass(FakeTensor, cls)  # `as_subclass(Tensor)` leaves a fake tensor without the program's class
    if not is_plain or type(tensor) not in _BARE:
        _give_class(alias, _WITHOUT_CLASS if is_plain else cls)
    return alias


def _give_class(tensor: Any, kind: type) -> None:
    """Let a fake tensor be of the program's `kind` as well."""
    _NOT_OF_THE_PROGRAM.update(_ALL_ATTRIBUTES.__get__(tensor))
    FakeTensor.__setattr__ = _set_attribute  # type: ignore[method-assign, assignment]
    tensor.__class__ = kind if issubclass(kind, FakeTensor) else fake_class(kind)


def _make_subclass(cls: type, data: Tensor, require_grad: bool = False, **options: Any) -> Tensor:
    """`Tensor._make_subclass`, of fake data too: how libraries make parameters of their own classes."""
    if issubclass(cls, FakeTensor) and cls is not FakeTensor:  # copies call `type(parameter).__new__`
        cls = cls.__bases__[0]
    if not isinstance(data, FakeTensor) or cls in _BARE:
        return _MAKE_SUBCLASS(cls, data, require_grad, **options)
    alias: Any = data.detach()
    alias._is_param = issubclass(cls, torch.nn.Parameter)
    _give_class(alias, cls)
    return alias.requires_grad_() if require_grad else alias


def _new_parameter(
    cls: Any, data: Tensor | None = None, requires_grad: bool = True, *args: Any, **options: Any
) -> Tensor:
    """`Parameter.__new__`, which drops the program's class where data are not plain tensors (parameter.py, 2.13)."""
    if cls is torch.nn.Parameter or args or options or not isinstance(data, FakeTensor):
        return _NEW_PARAMETER(cls, data, requires_grad, *args, **options)
    return _make_subclass(cls, data, requires_grad)


def parameter_like(old: Tensor, new: Tensor) -> Tensor:
    """A parameter with the data of `new`, of the class that `old` is of."""
    is_plain = type(old) in _BARE
    return torch.nn.Parameter(new, old.requires_grad) if is_plain else _make_subclass(type(old), new, old.requires_grad)


def _replace_flat_data(tensor: FakeTensor, new: Tensor) -> None:
    """`tensor.data = new` of FSDP1's flat parameter or a part of it, which goes to the host and back within a step.

    Autograd's graph knows the tensor below Python, so that one has to stay, with the dispatch keys that it has. What
    comes from elsewhere shares its storage (FSDP compares storages) and says its device by its label alone.
    """
    of_card, twin = _has_keys_of_card(tensor), new
    if of_card != _has_keys_of_card(new):
        with torch._C.DisableTorchFunctionSubclass(), _disable_current_modes():
            bare = new
            if not isinstance(new, FakeTensor):
                bare = torch.empty_strided(new.shape, new.stride(), dtype=new.dtype, device="meta")
            with in_kernel_invocation_manager(tensor.fake_mode):
                twin = FakeTensor(tensor.fake_mode, bare, torch.device(DEVICE, 0) if of_card else torch.device("cpu"))
    torch.Tensor.data.__set__(tensor, twin)  # type: ignore[attr-defined]
    tensor.fake_device = new.fake_device if isinstance(new, FakeTensor) else new.device


def _has_keys_of_card(tensor: Tensor) -> bool:
    return torch._C._dispatch_keys(tensor).has(torch._C.DispatchKey.AutogradPrivateUse1)


def _is_flat(tensor: Tensor | None) -> bool:
    """Whether FSDP1 marked it as a flat parameter (torch/distributed/fsdp/_flat_param.py, 2.13)."""
    return getattr(tensor, "_is_flat_param", False)


def replace_data(tensor: Tensor, new: Tensor) -> None:
    """`tensor.data = new`, also where PyTorch refuses: a fake tensor is of another type, or of one device for ever.

    The object stays the same, as `torch.utils.swap_tensors` does it (torch/utils/__init__.py, 2.13), and of its class.
    """
    if isinstance(tensor, FakeTensor) and (_is_flat(tensor) or _is_flat(new._base)):
        _replace_flat_data(tensor, new)
        return
    fakes = [each for each in (tensor, new) if isinstance(each, FakeTensor)]
    if not fakes or (len(fakes) == 2 and fakes[0].fake_device == fakes[1].fake_device):
        torch.Tensor.data.__set__(tensor, new)  # type: ignore[attr-defined]
        return
    kind: Any = type(tensor)
    twin: Any = torch.Tensor.data.__get__(new)  # type: ignore[attr-defined]  # counts writes apart, unlike `detach`
    if isinstance(tensor, torch.nn.Parameter):
        twin = torch.nn.Parameter(twin, tensor.requires_grad)
    twin.grad = tensor.grad
    is_own = kind not in _BARE
    own = dict(vars(tensor))
    if not is_own and isinstance(tensor, FakeTensor):  # those that a program gave it, as FSDP1 does its flat parameters
        from_birth = _ALL_ATTRIBUTES.__get__(twin if isinstance(twin, FakeTensor) else tensor.detach())
        own = {name: own[name] for name in own if name not in from_birth and not name.startswith(_PREFIX)}
    if is_own and isinstance(new, FakeTensor):
        _give_class(twin, kind)
    for name, value in own.items():
        setattr(twin, name, value)
    torch._C._swap_tensor_impl(tensor, twin)  # type: ignore[attr-defined]
    tensor.__class__, twin.__class__ = twin.__class__, tensor.__class__  # type: ignore[assignment]
    ours, theirs = _ALL_ATTRIBUTES.__get__(tensor), _ALL_ATTRIBUTES.__get__(twin)
    _ALL_ATTRIBUTES.__set__(tensor, theirs)
    _ALL_ATTRIBUTES.__set__(twin, ours)


@contextlib.contextmanager
def making_subclasses() -> Iterator[None]:
    """`as_subclass`, `_make_subclass` and parameters of a program's own class take fake tensors."""
    make, new = staticmethod(_make_subclass), staticmethod(_new_parameter)
    try:
        with (
            replaced(Tensor, "as_subclass", _as_subclass),
            replaced(Tensor, "_make_subclass", make),
            replaced(torch.nn.Parameter, "__new__", new),
        ):
            yield
    finally:
        if "__setattr__" in vars(FakeTensor):
            del FakeTensor.__setattr__
