"""The ranges in which the keys of a batch lie."""

from __future__ import annotations

from headrace.cdc.apply.key_ranges import merge_ranges


def test_the_widest_gaps_between_keys_are_left_out():
    buckets = [(1, 9), (10, 19), (500, 510), (511, 530), (9000, 9001)]

    assert merge_ranges(buckets, most=3) == [(1, 19), (500, 530), (9000, 9001)]
    assert merge_ranges(buckets, most=2) == [(1, 530), (9000, 9001)]
    assert merge_ranges(buckets, most=1) == [(1, 9001)]


def test_every_key_is_within_a_range():
    buckets = [(low, low + low % 7) for low in range(0, 1000, 13)]

    ranges = merge_ranges(buckets)
    assert all(any(low <= key <= high for low, high in ranges) for bucket in buckets for key in bucket)
