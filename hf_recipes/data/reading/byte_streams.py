"""Text files as streams of UTF-8 bytes: unpacked (.gz, .zst), UTF-16 and UTF-32 with a byte order mark re-encoded."""

from __future__ import annotations

import codecs
import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

from hf_recipes.core.errors import UserError

PACKED = (".gz", ".zst")
READ_BYTES = 1 << 20
SNIFFED_BYTES = 4096
GUESSED_BYTES = 1 << 16  # how much of the text around the fault the guess at its encoding rests on
# UTF-32 first: its little-endian mark begins with that of UTF-16.
MARKS: tuple[tuple[bytes, str], ...] = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """Turn what goes wrong while a file is read into one `UserError` sentence that names it."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise UserError(encoding_problem(file, error.encoding)) from None
    except (EOFError, zlib.error, OSError) as error:
        raise UserError(_read_problem(file, error)) from None


def _read_problem(file: Path, error: Exception) -> str:
    packed = file.suffix.lower() in PACKED and not getattr(error, "filename", None)
    if packed and (isinstance(error, EOFError) or "Truncated" in str(error)):
        return f"'{file}' is cut short: its {file.suffix} archive ends before its end mark; get the file again."
    if packed:
        return f"'{file}' is not a sound {file.suffix} archive ({error}): get the file again."
    return f"'{file}' cannot be read: {getattr(error, 'strerror', None) or error}."


def open_bytes(file: Path) -> IO[bytes]:
    """The unpacked bytes of a file, as they are."""
    ending = file.suffix.lower()
    if ending == ".gz":
        return io.BufferedReader(gzip.open(file), READ_BYTES)
    if ending == ".zst":
        import pyarrow

        return io.BufferedReader(pyarrow.CompressedInputStream(pyarrow.OSFile(str(file)), "zstd"), READ_BYTES)
    return open(file, "rb", buffering=READ_BYTES)


def open_utf8(file: Path) -> IO[bytes]:
    """The text of a file as UTF-8 bytes without a byte order mark; UTF-8 itself is not checked here.

    Raises:
        UserError: the file is UTF-16 or UTF-32 without a byte order mark.
        UnicodeDecodeError: while reading, a file whose mark says UTF-16 or UTF-32 is not.
    """
    stream = open_bytes(file)
    head = stream.peek(SNIFFED_BYTES)[:SNIFFED_BYTES]  # type: ignore[attr-defined]
    encoding = next((name for mark, name in MARKS if head.startswith(mark)), None)
    if encoding == "utf-8-sig":
        stream.read(len(codecs.BOM_UTF8))
    elif encoding:
        return io.BufferedReader(_AsUtf8(stream, encoding), READ_BYTES)
    elif likely := _encoding_by_zeros(head):
        stream.close()
        raise UserError(f"'{file}' is not UTF-8: {_looks_like(file, likely)}.")
    return stream


class _AsUtf8(io.RawIOBase):
    """A stream of text in another encoding, read as UTF-8."""

    def __init__(self, stream: IO[bytes], encoding: str) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder(encoding)()
        self._left = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while not self._left:
            chunk = self._stream.read(READ_BYTES)
            self._left = self._decoder.decode(chunk, final=not chunk).encode("utf-8", "surrogatepass")
            if not chunk:
                break
        some, self._left = self._left[: len(buffer)], self._left[len(buffer) :]
        buffer[: len(some)] = some
        return len(some)

    def close(self) -> None:
        self._stream.close()
        super().close()


def _encoding_by_zeros(head: bytes) -> str | None:
    """UTF-16 or UTF-32 without a mark, told by the zero bytes that Latin text has in it."""
    if len(head) < 8 or head.count(0) * 4 < len(head):
        return None
    even, odd = head[::2].count(0), head[1::2].count(0)
    if even and odd:
        return "UTF-32-BE" if head[0] == 0 else "UTF-32-LE"
    return "UTF-16-BE" if even else "UTF-16-LE"


class BadByte(NamedTuple):
    """The first byte of a file that does not belong to its encoding; `offset` in the unpacked file, from 0."""

    offset: int
    line: int
    around: bytes


def first_bad_byte(file: Path, encoding: str = "utf-8") -> BadByte | None:
    """Find the first byte that is not of `encoding`, or None when all are."""
    decoder = codecs.getincrementaldecoder(encoding)()
    done, lines = 0, 1
    with open_bytes(file) as stream:
        while True:
            chunk = stream.read(READ_BYTES)
            pending = decoder.getstate()[0]
            try:
                text = decoder.decode(chunk, final=not chunk)
            except UnicodeDecodeError as error:
                bytes_read = pending + chunk
                start = max(0, error.start - GUESSED_BYTES // 2)
                around = bytes_read[start : start + GUESSED_BYTES]
                return BadByte(
                    done - len(pending) + error.start, lines + bytes_read.count(b"\n", 0, error.start), around
                )
            lines += text.count("\n")
            done += len(chunk)
            if not chunk:
                return None


def encoding_problem(file: Path, encoding: str = "utf-8") -> str:
    """One sentence: which byte of a file is not of its encoding, what the text looks like instead, what to do."""
    name = encoding.upper().replace("_", "-")
    bad = first_bad_byte(file, encoding)
    if bad is None:
        return f"'{file}' is not {name}: convert it to UTF-8."
    where = f"'{file}' is not {name} (byte {bad.offset}, line {bad.line})"
    likely = guess_encoding(bad.around)
    return f"{where}: {_looks_like(file, likely)}." if likely else f"{where}: convert it to UTF-8."


def guess_encoding(text: bytes) -> str | None:
    """The encoding that `text` most likely has, as iconv names it; None where there is no telling."""
    try:
        from charset_normalizer import from_bytes
    except ImportError:
        return None
    best = from_bytes(text).best()
    if best is None or best.encoding in ("utf_8", "ascii"):
        return None
    # Where these bytes read the same in several encodings, that of Western Windows is the most usual by far.
    likely = "cp1252" if "cp1252" in best.could_be_from_charset else best.encoding
    return likely.upper().replace("_", "-")


def _looks_like(file: Path, encoding: str) -> str:
    name = file.with_suffix("").name if file.suffix.lower() in PACKED else file.name
    command = f"iconv -f {encoding} -t UTF-8 {name} > utf8-{name}"
    return f"it may be {encoding} (a guess: look at the result); convert it, e.g. {command}"
