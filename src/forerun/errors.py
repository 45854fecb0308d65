"""Every error a user can meet, as one tree.

    ForerunError
    ├── InvalidSettings(ValueError)          a key, type, range or combination of settings is wrong
    ├── NotSupported(NotImplementedError)    valid by the contract, not offered by this version
    ├── UnknownDevice(LookupError)           no such GPU in the catalogue
    ├── UnknownNetwork(LookupError)          no such network or links in the catalogue
    ├── UnknownModel(LookupError)            no such architecture, hub id or directory
    ├── MissingPeak(LookupError)             the catalogue has no dense peak for a dtype
    ├── MissingExtra(ImportError)            an optional package is not installed
    ├── UnmatchedExchange(RuntimeError)      ranks that are played together do not exchange the same things
    ├── UntraceableOp(NotImplementedError)   the virtual GPU does not know an operator
    ├── NothingFits(RuntimeError)            no allowed settings fit the device
    ├── NonFiniteLoss(ArithmeticError)       training produced NaN or infinity persistently
    ├── MechanismDead(RuntimeError)          what a run is named after does nothing in it
    ├── DeviceFailed(RuntimeError)           the GPU failed, or disappeared, while a run trained on it
    ├── OutOfMemory(RuntimeError)            not even one sample at a time fits the device
    ├── BadData(ValueError)                  a data file breaks its stated format
    ├── CheckpointDamaged(RuntimeError)      a checkpoint fails its manifest
    ├── CheckpointNotWritten(OSError)        the last checkpoint of a run could not be written
    ├── FilesNotWritten(OSError)             a folder that a command writes into is full, or may not be written
    ├── ExportMoved(RuntimeError)            an exported model does not score as the run's model
    ├── LedgerConflict(RuntimeError)         a ledger row would be rewritten or contradicts another
    ├── LedgerNotWritten(OSError)            the ledger's disk is full, or it may not be written
    ├── RunNotFound(LookupError)             the ledger has no such run
    ├── RunBusy(RuntimeError)                another process trains the run
    ├── RecipeNotFound(LookupError)          no such recipe
    └── ExtensionConflict(RuntimeError)      two installed packages use one name

A message says what was asked, what was found (numbers with units) and what would work. The command line renders a
`ForerunError` as one paragraph with exit code 2; any other exception is our bug and keeps its traceback.
"""

from difflib import SequenceMatcher

CLOSE = 0.5
"""Least similarity of a name that is offered instead, as `difflib` measures it (0 to 1)."""
OFFERED = 12
"""Most names offered when none is close."""
LONGEST_NAME = 100
"""Characters of a name that are compared."""
LONGEST_MESSAGE = 3_000
"""Characters of an error's message."""


class UserNote(UserWarning):
    """Something that was decided for the user; the command line shows its text alone."""


class ForerunError(Exception):
    """Base of all errors that a user can cause or cure; a message that nobody would read to its end is cut."""

    def __init__(self, message: str = "", *others: object) -> None:
        text = str(message)
        if len(text) > LONGEST_MESSAGE:
            text = f"{text[: LONGEST_MESSAGE // 2]} … {text[-LONGEST_MESSAGE // 4 :]}"
        super().__init__(text, *others)


class InvalidSettings(ForerunError, ValueError):
    """A key, type, range or combination of settings is wrong."""


class NotSupported(ForerunError, NotImplementedError):
    """The setting is valid by the contract, but this version cannot honour it."""


class UnknownDevice(ForerunError, LookupError):
    """No GPU of that name in the catalogue."""


class UnknownNetwork(ForerunError, LookupError):
    """No network between machines, or links inside one, of that name in the catalogue."""


class UnknownModel(ForerunError, LookupError):
    """No architecture, hub id or local directory of that name."""


class MissingPeak(ForerunError, LookupError):
    """The catalogue has no dense peak for a dtype on a device."""


class MissingExtra(ForerunError, ImportError):
    """An optional package is not installed."""


class UnmatchedExchange(ForerunError, RuntimeError):
    """Ranks that are played together do not exchange the same things."""


class UntraceableOp(ForerunError, NotImplementedError):
    """The virtual GPU met an operator that it cannot run or cost."""


class NothingFits(ForerunError, RuntimeError):
    """No allowed settings fit the device."""


class NonFiniteLoss(ForerunError, ArithmeticError):
    """Training produced NaN or infinity persistently."""


class MechanismDead(ForerunError, RuntimeError):
    """What a run is named after (a learning rule, an attention) does nothing in it."""


class DeviceFailed(ForerunError, RuntimeError):
    """The device failed while a run trained on it; nothing more can be done in this process."""


class OutOfMemory(ForerunError, RuntimeError):
    """Not even one sample at a time fits the device."""


class BadData(ForerunError, ValueError):
    """A data file breaks its stated format."""


class CheckpointDamaged(ForerunError, RuntimeError):
    """A checkpoint fails its manifest."""


class CheckpointNotWritten(ForerunError, OSError):
    """The last checkpoint of a run could not be written."""


class FilesNotWritten(ForerunError, OSError):
    """A folder that a command writes into is full, or may not be written."""


class ExportMoved(ForerunError, RuntimeError):
    """An exported model does not score as the model of its run."""


class LedgerConflict(ForerunError, RuntimeError):
    """A ledger row would be rewritten, or contradicts another."""


class LedgerNotWritten(ForerunError, OSError):
    """The ledger's disk is full, or it may not be written."""


class RunNotFound(ForerunError, LookupError):
    """The ledger has no run of that id."""


class RunBusy(ForerunError, RuntimeError):
    """Another process trains the run."""


class RecipeNotFound(ForerunError, LookupError):
    """No recipe of that name is shipped."""


class ExtensionConflict(ForerunError, RuntimeError):
    """Two installed packages bring different things under one name."""


def nearest(name: str, names: list[str], count: int = 5) -> str:
    """The `names` most like `name`, joined for a message; the first ones when none is close.

    Each of them also counts by its beginning, since people leave endings off.
    """
    target = name[:LONGEST_NAME].lower()

    def likeness(candidate: str) -> float:
        return max(_ratio(target, candidate), _ratio(target, candidate[: len(target) + 1]))

    ranked = sorted((k for k in names if likeness(k.lower()) >= CLOSE), key=lambda k: (-likeness(k.lower()), len(k)))
    if ranked:
        return ", ".join(ranked[:count])
    return ", ".join(names[:OFFERED]) + (", …" if len(names) > OFFERED else "")


def _ratio(one: str, other: str) -> float:
    return SequenceMatcher(None, one, other).ratio()
