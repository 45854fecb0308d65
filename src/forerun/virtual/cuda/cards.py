"""Which cards a program sees: that of its rank, or several that its one process drives by itself.

A rank has one card, which it calls by its own number; below the dispatcher that is the virtual device. A process that
drives several (`device_map`, `model.to("cuda:1")`) has a virtual device of each number, and a present one, as
`torch.cuda.set_device` and `with torch.cuda.device(1)` choose it.
"""

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from forerun.virtual.backend import DEVICE, VirtualBackend

VIRTUAL = torch.device("privateuseone")  # the slot: its name `virtual` is there once it is registered


@dataclass
class CardsInUse:
    """The cards of the machine as the process sees them."""

    own: int = 0
    """Number of the card of this rank."""
    count: int = 1
    """Cards in the machine."""
    are_driven: bool = False
    """The process drives all of them."""


_IN_USE = [CardsInUse()]


def in_use() -> CardsInUse:
    """The cards of the innermost session."""
    return _IN_USE[-1]


def this_card() -> torch.device:
    """The present card by the name that the program calls it."""
    cards = in_use()
    return torch.device("cuda", VirtualBackend.present_card if cards.are_driven else cards.own)


def name_of(device: torch.device) -> torch.device:
    """The name that the program calls a virtual device."""
    if in_use().are_driven and device.index is not None:
        return torch.device("cuda", device.index)
    return this_card()


def present() -> torch.device:
    """The virtual device of the present card; without a number where there is one card."""
    return numbered() if in_use().are_driven else VIRTUAL


def by_program_names(text: str) -> str:
    """A message of PyTorch's with the names that the program calls the virtual devices."""
    return re.sub(rf"\b{DEVICE}:(\d+)", lambda match: str(name_of(torch.device(DEVICE, int(match[1])))), text)


def numbered() -> torch.device:
    """The virtual device of the present card with its number, where PyTorch compares numbers."""
    return torch.device("privateuseone", VirtualBackend.present_card)


def number_of(device: Any) -> int:
    """The number of the card that a program means by `device`, as functions of `torch.cuda` take it."""
    cards = in_use()
    if not cards.are_driven:
        return 0
    if isinstance(device, str):
        device = torch._C.device(device)
    index = device if isinstance(device, int) else getattr(device, "index", None)
    return VirtualBackend.present_card if index is None or index < 0 else index


def choose(device: Any) -> int:
    """Make the card of `device` the present one; returns the number of the one before."""
    before = VirtualBackend.present_card
    VirtualBackend.present_card = number_of(device)
    return before


@contextlib.contextmanager
def seeing_cards(cards: CardsInUse) -> Iterator[None]:
    """While it is active, these are the cards of the machine."""
    before = VirtualBackend.present_card, VirtualBackend.cards
    VirtualBackend.present_card, VirtualBackend.cards = 0, cards.count if cards.are_driven else 1
    _IN_USE.append(cards)
    try:
        yield
    finally:
        _IN_USE.pop()
        VirtualBackend.present_card, VirtualBackend.cards = before


def card_number(device: torch.device) -> int:
    """The number of the virtual device; 0 for one without, and for any other device."""
    return device.index or 0 if device.type == DEVICE else 0
