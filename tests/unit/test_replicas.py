from __future__ import annotations

import numpy as np
import pytest

from hvdtrain.replicas import checksum, fingerprint


def weighted_sum(raw):
    """Return the sum over 32-bit words in whole numbers of any size."""
    raw = raw + bytes(-len(raw) % 4)
    words = [int.from_bytes(raw[place : place + 4], "little") for place in range(0, len(raw), 4)]
    return sum((2 * place + 1) * word for place, word in enumerate(words)) % (1 << 64)


@pytest.mark.parametrize("num_words", [0, 1, 2, 1000, (1 << 15) - 1, 1 << 15, (1 << 15) + 1, 100_003])
def test_checksum_is_the_position_weighted_sum_of_words(num_words):
    array = np.random.default_rng(0).integers(0, 1 << 32, num_words, dtype=np.uint32)
    assert checksum(array) == weighted_sum(array.tobytes())


def test_checksum_of_the_largest_words_wraps_around():
    array = np.full(200_000, 0xFFFFFFFF, dtype=np.uint32)
    assert checksum(array) == 0xFFFFFFFF * 200_000**2 % (1 << 64)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "float16", "float32", "float64", "int64", "complex64"])
@pytest.mark.parametrize("length", [1, 3, 5, 8])
def test_checksum_takes_any_dtype_and_length(dtype, length):
    array = np.arange(1, length + 1).astype(dtype)
    assert checksum(array) == weighted_sum(array.tobytes())


def test_checksum_reads_values_and_not_memory():
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert checksum(array.T) == checksum(np.ascontiguousarray(array.T)) != checksum(array)
    assert checksum(array[:, ::2]) == checksum(array[:, ::2].copy())
    assert checksum(np.float32(7)) == checksum(np.array([7], dtype=np.float32))


def test_checksum_changes_with_every_flipped_bit():
    raw = bytearray(np.random.default_rng(1).bytes(37))
    whole = checksum(np.frombuffer(bytes(raw), dtype=np.uint8))
    for place in range(len(raw)):
        for bit in range(8):
            raw[place] ^= 1 << bit
            assert checksum(np.frombuffer(bytes(raw), dtype=np.uint8)) != whole
            raw[place] ^= 1 << bit


def test_checksum_changes_with_every_swap_of_two_words():
    words = np.random.default_rng(2).permutation(20).astype(np.uint32)
    whole = checksum(words)
    for one in range(20):
        for two in range(one):
            swapped = words.copy()
            swapped[[one, two]] = swapped[[two, one]]
            assert checksum(swapped) != whole


@pytest.mark.parametrize("place", [0, (1 << 15) - 1, 1 << 15, 70_000])
def test_checksum_of_many_words_changes_with_one(place):
    array = np.zeros(80_000, dtype=np.float32)
    whole = checksum(array)
    array[place] = 1e-30
    assert checksum(array) != whole


def test_checksum_changes_when_chunks_trade_places():
    array = np.arange(1 << 16, dtype=np.uint32)
    assert checksum(array) != checksum(np.roll(array, 1 << 15))


def test_checksum_tells_zero_from_minus_zero():
    assert checksum(np.array([0.0], dtype=np.float32)) != checksum(np.array([-0.0], dtype=np.float32))


def test_fingerprint_is_of_names_and_bits_whatever_their_order():
    a, b = np.array([1.0, 2.0], np.float32), np.array([3.0], np.float32)
    whole = fingerprint({"a": a, "b": b})
    assert fingerprint({"b": b, "a": a.copy()}) == whole
    others = [{"a": a}, {"a": a, "c": b}, {"a": np.nextafter(a, np.float32(9)), "b": b}, {"a": a.reshape(2, 1), "b": b}]
    assert len({whole, *map(fingerprint, others)}) == 5
