"""Files that are made to hurt whoever opens them."""

from __future__ import annotations

import struct
import zlib

SVG = b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><script>alert(1)</script></svg>'


def png_bomb(side: int = 30_000) -> bytes:
    """A whole PNG of a few kilobytes whose black pixels would take side * side / 8 bytes, 900 megapixels as they are."""
    row = zlib.compressobj(9)
    line = b"\0" * (1 + side // 8)
    squeezed = b"".join(row.compress(line * 500) for _ in range(side // 500)) + row.flush()
    head = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + _chunk(b"IDAT", squeezed) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
