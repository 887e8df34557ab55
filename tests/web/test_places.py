"""Who makes way when more connections come than there is room for."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_bottleneck_exporter.web.address import neighbourhood
from gpu_bottleneck_exporter.web.places import FEW, Places

NOW = 1000.0


@dataclass(eq=False)
class Guest:
    address: str = "192.0.2.1"
    since: float = 0.0
    came: float = 0.0
    answers: int = 0
    owed: bool = False
    gone: list[bool] = field(default_factory=list)

    def hang_up(self) -> None:
        self.gone.append(True)


def crowd(places: Places, number: int, *, address: str = "192.0.2.1") -> list[Guest]:
    guests = [Guest(address, since=float(n)) for n in range(number)]
    for guest in guests:
        places.enter(guest)
    return guests


def gone(guests: list[Guest]) -> list[int]:
    return [number for number, guest in enumerate(guests) if guest.gone]


def test_the_oldest_stranger_makes_way() -> None:
    places = Places(4)
    guests = crowd(places, 6)
    assert gone(guests) == [0, 1]


def test_one_whose_answer_is_being_made_stays() -> None:
    places = Places(3)
    guests = crowd(places, 3)
    guests[0].owed = True
    crowd(places, 1)
    assert gone(guests) == [1]


def test_strangers_never_push_out_known_ones_of_half_the_places() -> None:
    places = Places(8)
    known = crowd(places, 4)
    for guest in known:
        places.answered(guest, NOW)
    strangers = crowd(places, 100, address="192.0.2.9")
    assert gone(known) == []
    assert len(gone(strangers)) == 96


def test_known_ones_never_push_out_strangers_of_half_the_places() -> None:
    places = Places(8)
    waiting = crowd(places, 3, address="192.0.2.9")
    for _ in range(50):
        (other,) = crowd(places, 1)
        places.answered(other, NOW)
    assert gone(waiting) == []


def test_who_was_answered_again_and_again_outlives_those_who_rest() -> None:
    places = Places(8)
    (scraper,) = crowd(places, 1)
    for _ in range(3):
        places.answered(scraper, NOW)
    resting = []
    for number in range(50):
        resting += crowd(places, 1)
        places.answered(resting[-1], NOW + number)
    assert not scraper.gone
    assert gone(resting) == list(range(50 - 7))


def test_the_address_that_holds_most_pays() -> None:
    places = Places(2 * FEW)
    few = crowd(places, 3)
    many = crowd(places, 100, address="192.0.2.9")
    assert gone(few) == []
    assert len(gone(many)) == 100 - 2 * FEW + 3


def test_a_few_connections_are_nothing_to_pay_for() -> None:
    places = Places(10)
    pair = crowd(places, 2)
    for guest in pair:
        guest.since = NOW
    others = [crowd(places, 1, address=f"192.0.2.{n}")[0] for n in range(9, 20)]
    assert gone(pair) == []
    assert len(gone(others)) == 3


def test_where_all_are_being_answered_those_who_had_most_answers_can_miss_one() -> None:
    places = Places(3)
    guests = crowd(places, 3)
    for number, guest in enumerate(guests):
        guest.owed = True
        for _ in range((1, 3, 2)[number]):
            places.answered(guest, NOW)
    crowd(places, 1)
    assert gone(guests) == [1]


def test_for_want_of_files_only_those_go_who_wait_for_nothing() -> None:
    places = Places(10)
    guests = crowd(places, 4)
    for guest in guests[1:3]:
        guest.owed = True
    places.shed(16)
    assert gone(guests) == [0, 3]
    Places(1).shed(16)


def test_who_comes_waits_until_another_has_been_there_for_a_moment() -> None:
    places = Places(2, stay=1.0)
    assert places.wait(NOW) == 0
    first, second = crowd(places, 2)
    first.came, second.came = NOW, NOW + 0.5
    assert places.wait(NOW + 0.25) == 0.75
    places.answered(first, NOW + 0.9)  # however often: nobody holds the door by asking
    assert places.wait(NOW + 0.9) == pytest.approx(0.6)
    places.answered(second, NOW + 0.9)
    assert places.wait(NOW + 2) == 0
    places.leave(second)
    assert places.wait(NOW) == 0


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["enter", "answer", "leave", "owe"]),
        st.integers(0, 30),
        st.sampled_from(["192.0.2.1", "192.0.2.2", "192.0.2.3"]),
    ),
    max_size=60,
)


@given(limit=st.integers(1, 6), steps=STEPS)
def test_whoever_comes_gets_in_and_there_are_never_too_many(
    limit: int, steps: list[tuple[str, int, str]]
) -> None:
    places, inside = Places(limit), list[Guest]()
    for what, number, address in steps:
        if what == "enter":
            guest = Guest(address, since=float(number))
            places.enter(guest)
            assert not guest.gone
            inside.append(guest)
        elif inside:
            guest = inside[number % len(inside)]
            if what == "answer":
                places.answered(guest, float(number))
            elif what == "owe":
                guest.owed = not guest.owed
            else:
                places.leave(guest)
                inside.remove(guest)
        assert all(len(guest.gone) <= 1 for guest in inside)
        inside = [guest for guest in inside if not guest.gone]
        assert len(inside) <= limit


@pytest.mark.parametrize(
    ("hosts", "same"),
    [
        (("192.0.2.1", "::ffff:192.0.2.1"), True),
        (("192.0.2.1", "192.0.2.2"), False),
        (("2001:db8::1", "2001:db8::ffff:1"), True),
        (("2001:db8::1", "2001:db8:0:1::1"), False),
        (("fe80::1%eth0", "fe80::2%eth1"), True),
        (("", "testclient"), False),
    ],
)
def test_which_addresses_count_as_one(hosts: tuple[str, str], *, same: bool) -> None:
    assert (neighbourhood(hosts[0]) == neighbourhood(hosts[1])) is same
