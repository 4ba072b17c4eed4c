"""Dicts of a bounded number of values."""

from detmode.process.memo import keep_bounded


def test_the_oldest_quarter_makes_room():
    """Until it is full nothing is dropped, then what was kept first, and no more than needed."""
    memo = {}
    for number in range(8):
        assert keep_bounded(memo, number, str(number), 8) == str(number)
    assert list(memo) == list(range(8))
    keep_bounded(memo, 8, "8", 8)
    assert list(memo) == list(range(2, 9))
    for number in range(9, 1000):
        keep_bounded(memo, number, str(number), 8)
        assert len(memo) <= 8
    assert memo[999] == "999"


def test_a_key_that_another_thread_drops():
    """Two threads that make room at the same time do not meet each other's keys."""

    class Key(int):
        def __hash__(self):
            # Another thread is there first: it makes room between a key's look-up and its end.
            memo.pop(0, None)
            return int.__hash__(self)

    memo = {}
    for number in (Key(0), 1, 2, 3, 4):
        keep_bounded(memo, number, number, 4)
    assert list(memo) == [1, 2, 3, 4]
