"""Values that are kept up to a number of them."""

from detmode.process.bounded import Bounded


def test_the_oldest_quarter_makes_room():
    """Until it is full nothing is dropped, then what was kept first, and no more than needed."""
    memo = Bounded(8)
    for number in range(8):
        assert memo.keep(number, str(number)) == str(number)
    assert list(memo) == list(range(8))
    memo.keep(8, "8")
    assert list(memo) == list(range(2, 9))
    for number in range(9, 1000):
        memo.keep(number, str(number))
        assert len(memo) <= 8
    assert memo[999] == "999"


def test_a_key_that_another_thread_drops():
    """Two threads that make room at the same time do not meet each other's keys."""

    class Key(int):
        def __hash__(self):
            # Another thread is there first: it makes room between a key's look-up and its end.
            memo.pop(0, None)
            return int.__hash__(self)

    memo = Bounded(4)
    for number in (Key(0), 1, 2, 3, 4):
        memo.keep(number, number)
    assert list(memo) == [1, 2, 3, 4]
