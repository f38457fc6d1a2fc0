"""Sizes that are known only at run time: integers that carry an expression in a model's symbols.

Notation
--------
symbol : a name that stands for a number at run time ("batch", "tokens").
atom : a symbol, or the floor of a polynomial divided by a number.
polynomial : a sum of products of atoms, each with an integer factor: ((atoms, factor), ...), sorted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from anatune.untyped import Arithmetic


class _Floor(NamedTuple):
    """``polynomial // divisor``."""

    polynomial: _Polynomial
    divisor: int


_Atom = str | _Floor
_Polynomial = tuple[tuple[tuple[_Atom, ...], int], ...]


class Size(int):
    """A size that is known only at run time; its value as an integer is the size that the model is planned for.

    Sums, products, floor divisions and remainders of sizes are sizes. A size equals only another size with the same
    expression, never a number. Its text is an expression in Python and in TVMScript.
    """

    polynomial: _Polynomial

    @classmethod
    def symbol(cls, name: str, value: int) -> Size:
        """Return a symbol that is planned with `value`."""
        return cls._make((((name,), 1),), value)

    @classmethod
    def _make(cls, polynomial: _Polynomial, value: int) -> Size:
        size = cls(value)
        size.polynomial = polynomial
        return size

    def at(self, lookup: Mapping[str, Arithmetic]) -> Arithmetic:
        """Evaluate the size with the values of symbols in `lookup`: numbers, or objects with arithmetic operators."""
        return _value(self.polynomial, lookup)

    @property
    def symbols(self) -> frozenset[str]:
        """The symbols that the size depends on."""
        return _symbols(self.polynomial)

    def __str__(self) -> str:
        return _text(self.polynomial)

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Size) and self.polynomial == other.polynomial

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.polynomial)

    def __bool__(self) -> bool:
        return True  # a size is never known to be 0

    def __add__(self, other: int) -> int:
        return _sum_terms((*self.polynomial, *_polynomial(other)), int(self) + int(other))

    def __mul__(self, other: int) -> int:
        if not isinstance(other, int):
            return NotImplemented  # a sequence or a float
        products = [
            (tuple(sorted((*atoms, *others), key=str)), factor * times)
            for atoms, factor in self.polynomial
            for others, times in _polynomial(other)
        ]
        return _sum_terms(products, int(self) * int(other))

    def __sub__(self, other: int) -> int:
        return self + other * -1

    def __rsub__(self, other: int) -> int:
        return self * -1 + other

    def __neg__(self) -> int:
        return self * -1

    def __floordiv__(self, other: int) -> int:
        if isinstance(other, Size):
            return self._quotient(other)
        value, polynomial = int(self) // other, self.polynomial
        if all(factor % other == 0 for _, factor in polynomial):
            return _sum_terms(((atoms, factor // other) for atoms, factor in polynomial), value)
        (atoms, factor), *more = polynomial
        if not more and factor == len(atoms) == 1 and isinstance(only := atoms[0], _Floor):  # nested floors
            return Size._make((((_Floor(only.polynomial, only.divisor * other),), 1),), value)
        return Size._make((((_Floor(polynomial, other),), 1),), value)

    def _quotient(self, other: Size) -> int:
        """Return the exact quotient of two sizes.

        Raises
        ------
        TypeError
            The quotient is not exact, or the divisor is a sum.
        """
        (atoms, factor), *more = other.polynomial
        terms = []
        for dividend, times in self.polynomial:
            remaining = list(dividend)
            if more or times % factor or any(dividend.count(atom) < atoms.count(atom) for atom in atoms):
                raise TypeError(f"{self} // {other}: a size can be divided only by its own factors and by numbers")
            for atom in atoms:
                remaining.remove(atom)
            terms.append((tuple(remaining), times // factor))
        return _sum_terms(terms, int(self) // int(other))

    def __mod__(self, other: int) -> int:
        return self - self // other * other

    __radd__, __rmul__ = __add__, __mul__


def is_run_time(sizes: object) -> bool:
    """Return whether a size, or one in a nested tuple, is known only at run time."""
    return any(map(is_run_time, sizes)) if isinstance(sizes, tuple) else isinstance(sizes, Size)


def least_size(size: int) -> int:
    """Return the value of a size whose symbols are all 1, at least 1."""
    return max(1, int(size.at(dict.fromkeys(size.symbols, 1)))) if isinstance(size, Size) else size


def symbols_of(sizes: object) -> frozenset[str]:
    """Return the symbols that a size, or those in a nested tuple, depend on."""
    if isinstance(sizes, tuple):
        return frozenset().union(*map(symbols_of, sizes))
    return sizes.symbols if isinstance(sizes, Size) else frozenset()


def _polynomial(value: int) -> _Polynomial:
    return value.polynomial if isinstance(value, Size) else (((), int(value)),)


def _sum_terms(terms: Iterable[tuple[tuple[_Atom, ...], int]], value: int) -> int:
    """Return a sum of terms: a number if no term has an atom."""
    factors: dict[tuple[_Atom, ...], int] = {}
    for atoms, factor in terms:
        factors[atoms] = factors.get(atoms, 0) + factor
    kept = tuple(sorted(((atoms, factor) for atoms, factor in factors.items() if factor), key=str))
    return Size._make(kept, value) if any(atoms for atoms, _ in kept) else value


def _evaluate(polynomial: _Polynomial, value_of: Callable[[_Atom], Arithmetic]) -> Arithmetic:
    terms = []
    for atoms, factor in polynomial:
        words = [value_of(atom) for atom in atoms]
        product = words[0] if words else factor
        for word in words[1:]:
            product = product * word
        terms.append(product * factor if words and factor != 1 else product)
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def _value(polynomial: _Polynomial, lookup: Mapping[str, Arithmetic]) -> Arithmetic:
    return _evaluate(
        polynomial, lambda atom: lookup[atom] if isinstance(atom, str) else _value(atom[0], lookup) // atom[1]
    )


def _symbols(polynomial: _Polynomial) -> frozenset[str]:
    parts = (atom for atoms, _ in polynomial for atom in atoms)
    return frozenset().union(*({atom} if isinstance(atom, str) else _symbols(atom.polynomial) for atom in parts))


def _text(polynomial: _Polynomial) -> str:
    """Return a polynomial as an expression, in parentheses unless it is an identifier."""
    terms = []
    for atoms, factor in polynomial:
        words = [atom if isinstance(atom, str) else f"({_text(atom.polynomial)} // {atom.divisor})" for atom in atoms]
        terms.append(" * ".join([*words, *([str(factor)] if factor != 1 or not words else [])]))
    text = " + ".join(terms)
    return text if text.isidentifier() else f"({text})"
