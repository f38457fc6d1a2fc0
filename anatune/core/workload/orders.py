"""In which order the dimensions of an image's tensor lie: channels first, last, or in blocks."""

from __future__ import annotations

import re
from typing import NamedTuple

_FIRST_WORDS = {1: "NCW", 2: "NCHW", 3: "NCDHW"}
_LAST_WORDS = {1: "NWC", 2: "NHWC", 3: "NDHWC"}
_DIGITS = 4


class Order(NamedTuple):
    """The order of a tensor of images, whatever the number of their dimensions.

    Attributes
    ----------
    is_last : bool
        Channels are the last dimension; else the second one.
    block : int
        Channels that are the last dimension while the blocks of them are the second one; 0: channels are one dimension.
    """

    is_last: bool = False
    block: int = 0

    def word(self, num_dimensions: int) -> str:
        """Return the order's name for images of so many dimensions: "NCHW", "NHWC", "NCHW16c"."""
        if self.is_last:
            return _LAST_WORDS[num_dimensions]
        return _FIRST_WORDS[num_dimensions] + (f"{self.block}c" if self.block else "")


CHANNELS_FIRST, CHANNELS_LAST = Order(), Order(is_last=True)


def layout_word(data: Order, result: Order, num_dimensions: int) -> str:
    """Return a convolution's layout: one order's name, or the data's and the result's."""
    words = [order.word(num_dimensions) for order in (data, result)]
    return words[0] if data == result else ":".join(words)


def order_named(word: object, num_dimensions: int) -> Order | None:
    """Return the order that a word means, those for two dimensions understood for any number; None: it means none.

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
    found = re.fullmatch(f"(?:{first}|NCHW)([1-9][0-9]{{0,{_DIGITS - 1}}})C", word.upper())
    return Order(block=int(found[1])) if found else None
