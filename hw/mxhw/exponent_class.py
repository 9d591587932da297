"""What the exponent alone decides about a narrowing, as tables derived from the element's descriptor (N-1, N-2).

Everything here is pure integer Python. ``exponent`` is always the value's biased exponent on the element's scale before
rounding: the element's own field where it is 1 or more, below that the subnormal range.
"""

from mxmodel.formats import FP4_E2M1, FP8_E4M3, FP8_E5M2, ElementFormat

__all__ = ["CLASS_CODES", "ROUNDING_CODES", "ExponentClasses"]

CLASS_CODES: dict[ElementFormat, tuple[int, ...]] = {
    FP4_E2M1: (0, 4, 2, 6, 7, 1, 3, 5),
    FP8_E4M3: (1, 0, 3, 6, 4, 7, 5),
    FP8_E5M2: (3, 5, 1, 0, 4, 2),
}
"""Which three bits stand for class 0, 1, 2 ... of an element; their number where nothing is said here.

Any numbering is correct. These were found by ``class_code_search``, which says for what; they save about a fifth.
"""

ROUNDING_CODES: dict[ElementFormat, tuple[int, ...]] = {
    FP8_E4M3: (3, 6, 1, 5, 7, 2, 4, 0),
    FP8_E5M2: (0, 3, 4, 1, 2, 5, 7, 6),
}
"""The same for the cases of the rounding table (``split_mux_table``)."""


class ExponentClasses:
    """The few ways in which an exponent can matter, numbered.

    Classes 0 .. trailing_bits + 1 are the places that the significand moves right before it is rounded: 0 for a normal
    result, 1 for the binade below the smallest normal, and so on down to where only a rounding up is left. Class
    ``flat`` takes nothing from the significand: a zero or max-normal. Class ``top`` is the binade of max-normal.

    Parameters
    ----------
    element : the target format
    source_subnormals : whether exponent 0 is the source's own subnormal range, without a leading one. Where source and
        element have the same bias such a value is already on the element's grid.
    """

    def __init__(self, element: ElementFormat, *, source_subnormals: bool) -> None:
        self.element = element
        self.source_subnormals = source_subnormals
        self.flat = element.trailing_bits + 2
        self.top = element.trailing_bits + 3

    @property
    def count(self) -> int:
        return self.top + 1

    @property
    def top_exponent(self) -> int:
        """The biased exponent of max-normal."""
        return self.element.max_normal_code >> self.element.trailing_bits

    @property
    def top_trailing(self) -> int:
        """The trailing significand of max-normal."""
        return self.element.max_normal_code & self.element.trailing_mask

    @property
    def nan_code(self) -> int:
        """The canonical NaN, or max-normal in an element without one."""
        return self.element.max_normal_code if self.element.nan_code is None else self.element.nan_code

    def exponent(self, within: int, upper: int, low: int) -> int:
        """The exponent that an operand has as three signals.

        ``within``: it is one of the 2^(w + 1) exponents around the middle of the element's w-bit range; ``upper``: it
        is in their upper half, or above them all; ``low``: w bits, its place in the half. Outside, one exponent above
        or below the element's reach stands for all.
        """
        middle = 1 << (self.element.exponent_bits - 1)
        if not within:
            return self.top_exponent + 1 if upper else -self.element.trailing_bits - 1
        return low + middle if upper else low - middle

    def class_of(self, exponent: int) -> int:
        if exponent == self.top_exponent:
            return self.top
        if exponent > self.top_exponent or exponent < -self.element.trailing_bits:
            return self.flat
        if self.source_subnormals and exponent == 0:
            return 0
        return max(0, 1 - exponent)

    def keeps(self, exponent: int) -> bool:
        """Whether the result's exponent field is ``exponent``, but for a carry; otherwise it is all ones or 0."""
        return self.class_of(exponent) == 0 or (self.class_of(exponent) == self.top and not self.top_exponent & 1)

    def kept(self, number: int, trailing: int, upper: int) -> int | None:
        """The result's trailing significand before rounding, for a value of class ``number``."""
        if number >= self.count or (upper and 0 < number < self.flat):
            return None
        if number == self.flat:
            return self.top_trailing if upper else 0
        if number == self.top:
            return min(trailing, self.top_trailing)
        return self._significand(trailing, 0, 0, number) >> (number + 2) & self.element.trailing_mask

    def rounds_up(self, number: int, trailing: int, guard: int, sticky: int) -> int | None:
        """Whether round to nearest, ties to even, adds one to ``kept``; never past max-normal."""
        if number >= self.count:
            return None
        if number == self.flat or (number == self.top and trailing >= self.top_trailing):
            return 0
        places = 0 if number == self.top else number
        significand = self._significand(trailing, guard, sticky, places)
        rest = significand & ((4 << places) - 1)
        odd = significand >> (places + 2) & 1
        return int(rest + odd > 2 << places)

    def magnitude(self, exponent: int, trailing: int, guard: int, sticky: int) -> int:
        """The whole code without its sign, of a finite value."""
        number = self.class_of(exponent)
        upper = int(exponent > 0)
        kept, rounds_up = self.kept(number, trailing, upper), self.rounds_up(number, trailing, guard, sticky)
        assert kept is not None
        assert rounds_up is not None
        field = min(max(exponent, 0), self.top_exponent)
        return (field << self.element.trailing_bits) + kept + rounds_up

    def _significand(self, trailing: int, guard: int, sticky: int, places: int) -> int:
        """Leading one, trailing bits, guard and sticky as one integer; the leading one shows only where it moves."""
        leading = (1 << self.element.trailing_bits) if places else 0
        return (leading + trailing) << 2 | guard << 1 | sticky
