"""Names and numbers of cards, with one card of a rank and with several of one process."""

import torch

from forerun.virtual.backend import VirtualBackend
from forerun.virtual.cuda.cards import (
    VIRTUAL,
    CardsInUse,
    by_program_names,
    choose,
    name_of,
    number_of,
    present,
    seeing_cards,
    this_card,
)
from forerun.virtual.registration import register


def test_a_rank_has_one_card_under_its_own_number():
    register()
    with seeing_cards(CardsInUse(own=3, count=8)):
        assert (this_card(), name_of(torch.device("virtual", 0))) == (torch.device("cuda", 3), torch.device("cuda", 3))
        assert (number_of("cuda:5"), present()) == (0, VIRTUAL)
        assert by_program_names("two devices, virtual:0 and cpu!") == "two devices, cuda:3 and cpu!"
    assert this_card() == torch.device("cuda", 0)


def test_a_process_drives_several_and_one_is_present():
    register()
    with seeing_cards(CardsInUse(count=4, are_driven=True)):
        assert [number_of(each) for each in (None, 2, "cuda:3", torch.device("cuda", 1), "cuda", -1)] == [
            0,
            2,
            3,
            1,
            0,
            0,
        ]
        before = choose(2)
        assert (before, this_card(), present()) == (0, torch.device("cuda", 2), torch.device("virtual", 2))
        assert name_of(torch.device("virtual", 1)) == torch.device("cuda", 1)
        assert VirtualBackend().device_count() == 4
    assert (VirtualBackend.present_card, VirtualBackend.cards) == (0, 1)
