"""Weights on 2 MB pages, where Linux gives them (6.1 and later).

A step on a CPU reads every weight once; on 4 KB pages a fifth of that time goes into address translation. It is a hint:
where it is refused everything works as before.
"""

from __future__ import annotations

import ctypes
import sys

PAGE = 1 << 21
_MADV_COLLAPSE = 25


def collapse(address: int, nbytes: int) -> bool:
    """Ask for 2 MB pages under ``nbytes`` at ``address``, widened to whole pages (what else lies there only moves).

    Returns whether the kernel did it for all of them.
    """
    if not sys.platform.startswith("linux"):
        return False
    start, end = address // PAGE * PAGE, -(-(address + nbytes) // PAGE) * PAGE
    libc = ctypes.CDLL(None)
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    done: int = libc.madvise(start, end - start, _MADV_COLLAPSE)
    return done == 0
