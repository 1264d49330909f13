"""Large arrays that stay inside the process between steps, and are not returned to the system each time."""

from __future__ import annotations


def tune_allocator() -> bool:
    """Keep freed memory for the next array of its size, for the rest of this process; True where that worked.

    With glibc every large array is mapped from the operating system, faulted in page by page and handed back,
    in each step of a training run again.  This raises glibc's thresholds (``M_MMAP_THRESHOLD`` and
    ``M_TRIM_THRESHOLD``) so that freed arrays are reused.  It is a setting of the whole process, so importing
    the package never makes it: a training script asks for it once.  Elsewhere than on glibc it does nothing.

    >>> import tinygrad_attn as ta
    >>> _ = ta.tune_allocator()
    """
    import ctypes
    import platform

    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    # malloc.h numbers its options: trim threshold, mmap threshold
    return all(mallopt(option, value) for option, value in ((-1, (1 << 31) - 1), (-3, 1 << 30)))
