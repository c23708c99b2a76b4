"""How many rows a Parquet object says it has: the number in its footer that a log's statistics must agree with.

Read by hand, because the decoder at hand aborts on bytes that are not Parquet, and damage is what is looked for here.
Source: the Apache Parquet format ("File Format", ``FileMetaData.num_rows``, field 3) and Thrift's compact protocol.
"""

from __future__ import annotations

from typing import Final

_MAGIC: Final = b"PAR1"
_TAIL: Final = 8  # the footer's length and the magic
_NUM_ROWS: Final = 3
_VARINT_BITS: Final = 63
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT, _UUID = range(1, 14)
_SIZES: Final = {_TRUE: 0, _FALSE: 0, _BYTE: 1, _DOUBLE: 8, _UUID: 16}  # a boolean field is its own header


def row_count(data: bytes) -> int:
    """The number of rows in the footer of a whole Parquet object.

    Raises:
        ValueError: it is no Parquet object, or its footer is damaged (or encrypted).
    """
    if len(data) < len(_MAGIC) + _TAIL or data[:4] != _MAGIC or data[-4:] != _MAGIC:
        msg = "no Parquet object: it does not begin and end with PAR1"
        raise ValueError(msg)
    end = len(data) - _TAIL
    begin = end - int.from_bytes(data[end : end + 4], "little")
    try:
        if begin >= len(_MAGIC):
            return _Compact(data[begin:end]).num_rows()
    except (IndexError, RecursionError):
        pass
    msg = "the Parquet footer is damaged"
    raise ValueError(msg)


class _Compact:
    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def num_rows(self) -> int:
        """Goes through the outermost struct up to the field."""
        number = 0
        while (header := self._byte()) != 0:
            number = number + (header >> 4) if header >> 4 else self._zigzag()
            kind = header & 15
            if number == _NUM_ROWS and kind == _I64:
                return self._zigzag()
            self._skip(kind)
        raise IndexError

    def _skip(self, kind: int) -> None:
        if kind in _SIZES:
            self._at += _SIZES[kind]
        elif kind in (_I16, _I32, _I64):
            self._varint()
        elif kind == _BINARY:
            length = self._varint()  # in a line of its own: += would take the position before it
            self._at += length
        elif kind in (_LIST, _SET):
            header = self._byte()
            count = self._varint() if header >> 4 == 15 else header >> 4
            for _ in range(count):
                self._skip_element(header & 15)
        elif kind == _MAP:
            count = self._varint()
            kinds = self._byte() if count else 0
            for _ in range(count):
                self._skip_element(kinds >> 4)
                self._skip_element(kinds & 15)
        elif kind == _STRUCT:
            while (header := self._byte()) != 0:
                if not header >> 4:
                    self._zigzag()
                self._skip(header & 15)
        else:
            raise IndexError

    def _skip_element(self, kind: int) -> None:
        if kind in (_TRUE, _FALSE):
            self._byte()  # within a collection a boolean has a byte of its own
        else:
            self._skip(kind)

    def _byte(self) -> int:
        byte = self._data[self._at]
        self._at += 1
        return byte

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
            if shift > _VARINT_BITS:  # one without an end would take time in the square of its length
                raise IndexError

    def _zigzag(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)
