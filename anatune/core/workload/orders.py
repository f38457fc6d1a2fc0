"""Orders of the dimensions of an image's tensor: channels first, last, or in blocks."""

from __future__ import annotations

import re
from typing import NamedTuple

_FIRST_WORDS = {1: "NCW", 2: "NCHW", 3: "NCDHW"}
_LAST_WORDS = {1: "NWC", 2: "NHWC", 3: "NDHWC"}
_DIGITS = 4


class Order(NamedTuple):
    """The order of the dimensions of image tensors, for any number of spatial dimensions.

    Attributes
    ----------
    is_last : bool
        Whether the channels are the last dimension; otherwise they are the second one.
    block : int
        Number of channels in a block. The blocks are the second dimension, the channels of a block the last one. 0:
        there are no blocks.
    """

    is_last: bool = False
    block: int = 0

    def word(self, num_dimensions: int) -> str:
        """Return the order's name for `num_dimensions` spatial dimensions: "NCHW", "NHWC", "NCHW16c"."""
        if self.is_last:
            return _LAST_WORDS[num_dimensions]
        return _FIRST_WORDS[num_dimensions] + (f"{self.block}c" if self.block else "")


CHANNELS_FIRST, CHANNELS_LAST = Order(), Order(is_last=True)


def layout_word(data: Order, result: Order, num_dimensions: int) -> str:
    """Return the name of a convolution's layout: one order, or those of data and result."""
    words = [order.word(num_dimensions) for order in (data, result)]
    return words[0] if data == result else ":".join(words)


def parse_order(word: object, num_dimensions: int) -> Order | None:
    """Return the order that a word names, or None; the words for two dimensions are accepted for any number.

    Examples
    --------
    >>> order_named("nchw16c", 2)
    Order(is_last=False, block=16)
    """
    if not isinstance(word, str):
        return None
    first = _FIRST_WORDS[num_dimensions]
    if word.upper() in (first, "NCHW"):
        return CHANNELS_FIRST
    if word.upper() in (_LAST_WORDS[num_dimensions], "NHWC"):
        return CHANNELS_LAST
    match = re.fullmatch(f"(?:{first}|NCHW)([1-9][0-9]{{0,{_DIGITS - 1}}})C", word.upper())
    return Order(block=int(match[1])) if match else None
