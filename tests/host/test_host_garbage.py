"""The collector held off: off inside, as it was outside, and what is there is walked no more."""

import gc

import pytest

from cutaway.host import garbage


@pytest.fixture(autouse=True)
def _threshold():
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize("was_on", [True, False])
def test_it_is_off_inside_and_as_it_was_behind(was_on):
    before = gc.isenabled()
    (gc.enable if was_on else gc.disable)()
    try:
        with garbage.hold_off():
            assert not gc.isenabled()
        assert gc.isenabled() is was_on
        with pytest.raises(ZeroDivisionError), garbage.hold_off():
            _ = 1 / 0
        assert gc.isenabled() is was_on
    finally:
        (gc.enable if before else gc.disable)()


def test_the_first_use_of_a_process_alone_takes_objects_out_of_collections():
    class Node:
        pass

    gc.unfreeze()
    first = Node()
    with garbage.hold_off():
        pass
    frozen = gc.get_freeze_count()
    later = Node()
    assert not any(each is first for each in gc.get_objects())
    with garbage.hold_off():
        pass
    # Fewer, where a thread of an earlier test lets go of what it had.
    assert gc.get_freeze_count() <= frozen
    assert any(each is later for each in gc.get_objects())
    gc.unfreeze()


def test_what_comes_later_is_walked_seldom():
    gc.unfreeze()
    older = gc.get_threshold()[1:]
    with garbage.hold_off():
        pass
    assert gc.get_threshold() == (garbage.YOUNG, *older)
    gc.unfreeze()
