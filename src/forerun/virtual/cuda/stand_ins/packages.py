"""Importable stand-ins for packages of CUDA kernels, while a program runs on the virtual GPU.

A package that is installed and loads stays as it is. Else a finder on `sys.meta_path` answers `import`,
`importlib.util.find_spec` and `importlib.metadata` for it, with modules whose functions issue one operator for each
kernel: right shapes, right memory, right cost. What a stand-in does not have raises an error that names it and shows
how to register one. Everything is taken back when the program ends.
"""

import contextlib
import dis
import functools
import importlib.abc
import importlib.machinery
import importlib.metadata
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from forerun.noise import quiet
from forerun.virtual.cuda.stand_ins.registry import explain_missing, kernels_of_package


@dataclass(frozen=True)
class StandInPackage:
    """A package and what its modules offer."""

    root: str
    """Name that programs import."""
    distribution: str
    version: str
    """The version whose behaviour was read."""
    modules: Callable[[], Mapping[str, Mapping[str, Any]]]
    """Full module name → its attributes; called at the first import."""
    least_capability: tuple[int, int] = (0, 0)
    most_capability: tuple[int, int] = (99, 0)
    fault: tuple[str, str] = ("", "")
    """Module and attribute in which one that can be imported keeps why its kernels did not load."""
    is_wanted: Callable[[], bool] = lambda: True
    """Whether the program that runs asks for it; other libraries look for some, and use more than a stand-in has."""
    hides: bool = False
    """Whether it stands in for one that is installed, too: which starts engines on a card that must be there."""

    def runs_on(self, capability: tuple[int, int]) -> bool:
        """Whether the package has kernels for GPUs of that compute capability."""
        return self.least_capability <= capability <= self.most_capability


class StandInDistribution(importlib.metadata.Distribution):
    """What `importlib.metadata` says of a stand-in."""

    def __init__(self, package: StandInPackage):
        self._package = package

    def read_text(self, filename: str) -> str | None:
        """Text of a file of the package's metadata; there are two."""
        package = self._package
        texts = {
            "METADATA": f"Metadata-Version: 2.1\nName: {package.distribution}\nVersion: {package.version}\n",
            "top_level.txt": f"{package.root}\n",
        }
        return texts.get(filename)

    def locate_file(self, path: Any) -> Any:
        """Nowhere: there are no files."""
        return path


class _Loader(importlib.abc.Loader):
    def __init__(self, package: StandInPackage, content: Callable[[], Mapping[str, Mapping[str, Any]]]):
        self._package, self._content = package, content

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__.update(self._content().get(module.__name__, {}))
        module.__dict__.update(kernels_of_package(module.__name__))
        module.__dict__.setdefault("__version__", self._package.version)
        module.__dict__["__getattr__"] = functools.partial(_missing, module.__name__)


def _missing(module: str, name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    caller = sys._getframe(1)
    # `from module import name` would replace an AttributeError by one of its own, which says nothing
    is_import = caller.f_code.co_code[caller.f_lasti] == dis.opmap["IMPORT_FROM"]
    raise (ImportError if is_import else AttributeError)(explain_missing(f"{module}.{name}"))


@dataclass
class StandInFinder(importlib.abc.MetaPathFinder):
    """Finds stand-ins for packages that are not installed, or are and cannot load."""

    packages: Sequence[StandInPackage]
    _content: dict[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The specification of a stand-in's module."""
        package = next((each for each in self.packages if each.root == name.partition(".")[0]), None)
        if package is None or not package.is_wanted():
            return None
        loader, is_parent = _Loader(package, functools.partial(self._content_of, package)), True
        # whether the package is there is asked while transformers is imported, which the content may need
        if name != package.root:
            content = self._content_of(package)
            is_parent = any(other.startswith(f"{name}.") for other in content)
            if name not in content and not is_parent:
                raise ModuleNotFoundError(explain_missing(name), name=name)
        return importlib.machinery.ModuleSpec(name, loader, origin="forerun", is_package=is_parent)

    def _content_of(self, package: StandInPackage) -> Mapping[str, Mapping[str, Any]]:
        if package.root not in self._content:
            self._content[package.root] = package.modules()
        return self._content[package.root]

    def find_distributions(self, context: Any = None) -> Iterator[StandInDistribution]:
        """Metadata of all stand-ins, or of the one that `context` names."""
        name = getattr(context, "name", None)
        for package in self.packages:
            is_meant = name is None or _plain(name) in (_plain(package.distribution), _plain(package.root))
            if is_meant and package.is_wanted():
                yield StandInDistribution(package)


def _plain(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


@contextlib.contextmanager
def importable(packages: Sequence[StandInPackage], capability: tuple[int, int]) -> Iterator[None]:
    """Let a program import stand-ins for those of `packages` that are not installed and that the card could run."""
    absent = [each for each in packages if each.runs_on(capability) and (each.hides or not _loads(each))]
    finder = StandInFinder(absent)
    roots = {each.root for each in absent}
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in roots}
    for name in before:
        del sys.modules[name]
    sys.meta_path.insert(0, finder)  # before one that is installed and cannot load
    _forget_answers()
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.partition(".")[0] in roots]:
            del sys.modules[name]
        sys.modules.update(before)
        _forget_answers()


def _loads(package: StandInPackage) -> bool:
    """Whether the package is installed and its kernels load without CUDA; a failed import leaves nothing behind."""
    root = package.root
    if importlib.machinery.PathFinder.find_spec(root) is None:
        return False
    before, (module, fault) = set(sys.modules), package.fault
    try:
        with quiet():
            importlib.import_module(root)
        loads = not module or getattr(importlib.import_module(module), fault, None) is None
    except (ImportError, OSError, RuntimeError, AttributeError):
        loads = False
    for name in () if loads else [name for name in set(sys.modules) - before if name.partition(".")[0] == root]:
        del sys.modules[name]
    return loads


ASKS = (
    "is_flash_attn", "is_liger_kernel", "is_apex", "is_xformers", "is_triton", "_package_distribution_mapping",
    "is_torch_cuda", "is_cuda_platform", "is_torch_bf16_gpu", "is_torch_fp16_available_on_device", "is_torch_tf32",
    "is_torch_bf16_available_on_device",
)  # fmt: skip
"""Functions of transformers that remember whether a package or a card is there (`transformers/utils/import_utils.py`,
5.24)."""


def _forget_answers() -> None:
    """Let transformers look again which packages and kernels there are."""
    answers = sys.modules.get("transformers.utils.import_utils")
    for name, function in list(vars(answers).items()) if answers else ():
        if name.startswith(ASKS) and hasattr(function, "cache_clear"):
            function.cache_clear()
    kernels = sys.modules.get("transformers.modeling_flash_attention_utils")
    if kernels is not None:
        vars(kernels)["_loaded_implementation"] = None
