"""Plans of None, booleans, numbers and text; each value comes back exactly or is refused."""

from __future__ import annotations

from typing import Any

from outlast.journal.plan import Plan, Unfit, Walk, kind_of, shown_name

MAX_INT_BITS = 14_000
"""Longest integer: a little under the 4,300 digits that Python and msgspec read as decimal text."""


def check_text(text: str) -> None:
    """Refuse text that UTF-8 cannot hold.

    Raises: Unfit: The text has a lone surrogate.
    """
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise Unfit(
                "the text holds a lone surrogate, which UTF-8 cannot hold",
                "clean it with text.encode(errors='replace').decode()",
            ) from None


def check_int(number: int) -> None:
    """Refuse an integer that is too long to be read back.

    Raises: Unfit: It has more than `MAX_INT_BITS` bits.
    """
    if number.bit_length() > MAX_INT_BITS:
        raise Unfit(f"an integer of more than {MAX_INT_BITS:,} bits", "store it as bytes")


def check_float(number: float) -> None:
    """Refuse what JSON has no number for.

    Raises: Unfit: It is NaN or infinite.
    """
    if number - number != 0.0:
        raise Unfit(f"{number} is not a JSON number", "store None or a Decimal instead")


class NullPlan(Plan):
    """None, as null."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("None", (type(None),), (type(None),))

    @property
    def natural(self) -> bool:
        """Say that None is null."""
        return True

    def encode(self, value: Any, walk: Walk) -> None:
        """Accept None alone."""
        if value is not None:
            raise Unfit(
                f"expected None, got {shown_name(kind_of(value))}",
                "annotate what the function returns",
            )

    def decode(self, data: Any, walk: Walk) -> None:
        """Accept null alone."""
        if data is not None:
            raise self.misfit(data)


class NaturalPlan(Plan):
    """A bool, int, float or str, as itself."""

    __slots__ = ("kind",)

    def __init__(self, kind: type[Any]) -> None:
        super().__init__(kind.__name__, (kind,), (kind,))
        self.kind = kind

    @property
    def natural(self) -> bool:
        """Say that the data is the value."""
        return True

    def encode(self, value: Any, walk: Walk) -> Any:
        """Accept the exact type."""
        if type(value) is not self.kind:
            raise self.refuse(value)
        return value

    def decode(self, data: Any, walk: Walk) -> Any:
        """Accept the exact type."""
        if type(data) is not self.kind:
            raise self.misfit(data)
        return data


class TextPlan(NaturalPlan):
    """A str, as a string."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(str)

    def encode(self, value: Any, walk: Walk) -> str:
        """Accept text that UTF-8 can hold."""
        if type(value) is not str:
            raise self.refuse(value)
        walk.left -= len(value)
        if not value.isascii():
            check_text(value)
        return value


class IntPlan(NaturalPlan):
    """An int, as a number without fraction."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(int)

    def encode(self, value: Any, walk: Walk) -> int:
        """Accept integers that can be read back; a bool is none."""
        if type(value) is not int:
            raise self.refuse(value)
        if not -(1 << 63) <= value < 1 << 63:
            check_int(value)
            walk.charge(value.bit_length() >> 2)
        return value


class FloatPlan(NaturalPlan):
    """A float, as a number with fraction or exponent; an int is taken where it is exactly a float."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(float)

    def encode(self, value: Any, walk: Walk) -> float:
        """Accept finite numbers."""
        if type(value) is float:
            check_float(value)
            return value
        if type(value) is not int:
            raise self.refuse(value)
        return _exact_float(value)

    def decode(self, data: Any, walk: Walk) -> float:
        """Accept any number that is exactly a float."""
        if type(data) is float:
            return data
        if type(data) is not int:
            raise self.misfit(data)
        return _exact_float(data)


def _exact_float(number: int) -> float:
    try:
        result = float(number)
    except OverflowError:
        result = 0.0
    if result != number:
        raise Unfit("an integer that is not exactly a float", "annotate int")
    return result


class ComplexPlan(Plan):
    """A complex number, as `[real, imaginary]`."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("complex", (complex,), (list,))

    def encode(self, value: Any, walk: Walk) -> list[float]:
        """Accept finite parts."""
        if type(value) is not complex:
            raise self.refuse(value)
        check_float(value.real)
        check_float(value.imag)
        return [value.real, value.imag]

    def decode(self, data: Any, walk: Walk) -> complex:
        """Read two numbers."""
        match data:
            case [float() as real, float() as imaginary]:
                return complex(real, imaginary)
            case _:
                raise self.misfit(data)


class RangePlan(Plan):
    """A range, as `[start, stop, step]`."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("range", (range,), (list,))

    def encode(self, value: Any, walk: Walk) -> list[int]:
        """Write the three numbers."""
        if type(value) is not range:
            raise self.refuse(value)
        numbers = [value.start, value.stop, value.step]
        for number in numbers:
            check_int(number)
        return numbers

    def decode(self, data: Any, walk: Walk) -> range:
        """Read three numbers."""
        match data:
            case [int() as start, int() as stop, int() as step] if step and bool not in map(
                type, data
            ):
                return range(start, stop, step)
            case _:
                raise self.misfit(data)
