"""Writes a folder over and over until it is killed; run by ``test_transaction.py``, in an interpreter of its own.

Arguments: DEST, number of the first content, ``exchange`` or ``aside`` (how an old DEST is replaced).
A content is eight tensors of 256 KiB and a config, all of one byte value, so that a mixture of two shows.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from eagle_convert.files import transaction
from eagle_convert.writer import OutTensor, write_folder

SIZE, TENSORS = 256 << 10, 8


def plan(value: int) -> list[OutTensor]:
    piece = memoryview(bytes([value]) * (SIZE // 4))
    return [OutTensor(f"t{i}", "U8", (SIZE,), lambda: iter([piece] * 4)) for i in range(TENSORS)]


def write(dest: str, value: int) -> None:
    write_folder(dest, plan(value), {"config.json": b'{"value": %d}' % value}, force=True)


if __name__ == "__main__":
    dest, value = sys.argv[1], int(sys.argv[2])
    if sys.argv[3] == "aside":
        transaction._exchange = lambda one, other: False
    print("ready", flush=True)
    while True:
        write(dest, value % 256)
        value += 1
