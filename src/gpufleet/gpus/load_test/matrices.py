"""Matrices with small whole numbers for the tensor cores, and the sums that every lane must get."""

import random
import struct

from gpufleet.gpus.load_test.kernels import SUMMED, TILES

ROWS, DEPTH, COLUMNS = 16, 16, 8
"""The shape of one multiplication: 16×16 times 16×8."""

OPERATIONS = 2 * ROWS * DEPTH * COLUMNS
"""Floating-point operations of one multiplication."""


def fragments_and_sums(seed: int) -> tuple[bytes, bytes]:
    """Return both factors and the expected sums, in the order in which the lanes of a warp load them."""
    dice = random.Random(seed)  # noqa: S311
    tiles = [_tile(dice) for _ in range(TILES)]
    factors, sums = bytearray(), bytearray()
    for lane in range(32):
        for left, right, product in tiles:
            factors += _left(left, lane) + _right(right, lane)
            sums += _sums(product, lane)
    return bytes(factors), bytes(sums)


Matrix = list[list[int]]


def _tile(dice: random.Random) -> tuple[Matrix, Matrix, Matrix]:
    left = [[dice.randint(-3, 3) for _ in range(DEPTH)] for _ in range(ROWS)]
    right = [[dice.randint(-3, 3) for _ in range(COLUMNS)] for _ in range(DEPTH)]
    product = [
        [sum(left[row][k] * right[k][column] for k in range(DEPTH)) for column in range(COLUMNS)]
        for row in range(ROWS)
    ]
    return left, right, product


def _left(matrix: Matrix, lane: int) -> bytes:
    row, column = lane >> 2, 2 * (lane & 3)
    corners = ((row, column), (row + 8, column), (row, column + 8), (row + 8, column + 8))
    return b"".join(struct.pack("<2e", matrix[r][c], matrix[r][c + 1]) for r, c in corners)


def _right(matrix: Matrix, lane: int) -> bytes:
    column, row = lane >> 2, 2 * (lane & 3)
    return b"".join(struct.pack("<2e", matrix[r][column], matrix[r + 1][column]) for r in (row, row + 8))


def _sums(product: Matrix, lane: int) -> bytes:
    row, column = lane >> 2, 2 * (lane & 3)
    values = [product[r][c] for r in (row, row + 8) for c in (column, column + 1)]
    return struct.pack("<4f", *(SUMMED * value for value in values))
