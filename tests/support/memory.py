"""Code of a program that moves its command line and environment, as the kernel sees them."""

from __future__ import annotations

SAYS = """
libc = ctypes.CDLL(None, use_errno=True)
libc.sbrk.restype = libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]

def memory(size):
    "Pages that take no room until they are written to."
    return libc.mmap(None, size, 3, 0x4022, -1, 0)

def say(start, end):
    "From here to the middle is our command line, from there on our environment (PR_SET_MM_MAP)."
    words = open("/proc/self/stat").read().rpartition(")")[2].split()
    code = [int(words[number - 3]) for number in (26, 27, 45, 46, 47)]
    half = (start + end) // 2
    there = libc.sbrk(0), int(words[28 - 3]), start, half, half, end
    made = struct.pack("=11QQIi", *code, *there, 0, 0, -1)
    failed = libc.prctl(35, 14, made, ctypes.c_ulong(len(made)), ctypes.c_ulong(0))
    assert not failed, os.strerror(ctypes.get_errno())

"""
