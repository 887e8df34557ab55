"""Data that a job may put where its stacks are read: bounded, readable, and of its owner only."""

from __future__ import annotations

import struct
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpu_bottleneck_exporter.host.aside import proc_reads
from gpu_bottleneck_exporter.host.process import Started
from gpu_bottleneck_exporter.stacktraces.code import MAX_CACHED_CHARACTERS, Codes
from gpu_bottleneck_exporter.stacktraces.interpreter import Interpreter
from gpu_bottleneck_exporter.stacktraces.layouts import LAYOUTS, Layout
from gpu_bottleneck_exporter.stacktraces.memory import (
    MAX_READ_BYTES,
    NoMemoryError,
    ProcessMemory,
    UnreadableError,
)
from gpu_bottleneck_exporter.stacktraces.reader import StackReader, UnreadableReason, stack_reads
from support.hangs import EXECUTES, FLUSH, unanswering
from support.linetables import CODE_WITH_TABLE, entry
from support.programs import program, started
from support.rights import NOBODY, as_user
from support.tools import missing
from support.waiting import PATIENCE_SECONDS, until

PROC = Path("/proc")
MAX_LINE = 2**31 - 1
MOST_NAMED = 513
CODE, FILE, NAME, TABLE, KIND = 1 << 20, 1 << 21, 1 << 22, 1 << 23, 77
MINORS = st.sampled_from(sorted(LAYOUTS))


class Laid(ProcessMemory):
    """A memory that holds `parts` by address, for as long as a test may take."""

    def __init__(self, parts: Mapping[int, bytes]) -> None:
        super().__init__("/proc/self", time.monotonic() + 240)
        self.parts = parts
        self.reads = 0

    def read(self, address: int, size: int) -> bytes:
        self.reads += 1
        for start, raw in self.parts.items():
            if start <= address < start + len(raw) and 0 <= size <= MAX_READ_BYTES:
                return raw[address - start :][:size].ljust(size, b"\0")
        raise UnreadableError


def laid(layout: Layout, table: bytes, first_line: int, name: bytes, width: int) -> Laid:
    """A code object with `table`, whose names are `name`."""
    code = bytearray(1024)
    places = {layout.header - 8: KIND, layout.filename: FILE, layout.name: NAME}
    for at, value in (places | {layout.lines: TABLE}).items():
        code[at : at + 8] = struct.pack("=Q", value)
    code[layout.first_line : layout.first_line + 4] = struct.pack("=i", first_line)
    text = bytearray(layout.header + 24)
    text[layout.header :] = struct.pack("=QQQ", len(name) // width, 0, width << 2 | 0x20)
    text = text.ljust(layout.unicode, b"\0") + name
    lines = bytes(layout.header) + struct.pack("=QQ", len(table), 0) + table
    return Laid({CODE: bytes(code), FILE: bytes(text), NAME: bytes(text), TABLE: lines})


@given(
    MINORS,
    st.binary(max_size=64),
    st.integers(-(2**31), MAX_LINE),
    st.integers(-1, 1 << 64),
    st.binary(max_size=64),
    st.sampled_from([1, 2, 4]),
)
@example(11, entry(5000), 1, 0, b"f", 1)
@example(14, entry(7), 1, 0, b"f", 1)
@example(12, entry(6), 1, 0, b"f", 1)
@example(10, b"\x02\x7f" * 9, MAX_LINE, 9, b"", 1)
@example(10, b"", -5, 9, b"\x00\xd8", 2)
def test_a_frame_is_within_bounds_or_unreadable(  # noqa: PLR0913, PLR0917 - all that a job shapes
    minor: int, table: bytes, first_line: int, instruction: int, name: bytes, width: int
) -> None:
    memory = laid(LAYOUTS[minor], table, first_line, name, width)
    try:
        frame = Codes(memory, minor, LAYOUTS[minor], KIND).frame(CODE, instruction)
    except UnreadableError:
        return
    assert 0 < frame.line <= MAX_LINE
    for text in (frame.function, frame.file):
        assert len(text) <= MOST_NAMED
        assert text.isprintable()


def test_retained_bytes_of_a_process_are_bounded() -> None:
    """A node's stack reader remembers 64 processes, and may take 256 MiB for all it does."""
    names = "\U0001f600".encode("utf-32-le") * 9999
    memory = laid(LAYOUTS[11], b"\x80\x00", 1, names, 4)
    codes, parts = Codes(memory, 11, LAYOUTS[11], KIND), dict(memory.parts)
    memory.parts = parts
    for at in range(CODE + (1 << 32), CODE + (MAX_CACHED_CHARACTERS // 200 << 32), 1 << 32):
        parts[at] = parts[CODE]
        codes.frame(at, 0)
        del parts[at]
    result = sum(sys.getsizeof(text) for frame in codes._frames.values() for text in frame[:2])
    assert 0 < result <= 5 * MAX_CACHED_CHARACTERS


@pytest.mark.parametrize("step", [-7, 40, MAX_LINE - 50, -MAX_LINE + 99])
def test_a_step_of_any_c_int_is_read(step: int) -> None:
    number, groups = abs(step) << 1 | (step < 0), bytearray()
    while number > 63:
        groups.append(number & 63 | 64)
        number >>= 6
    table = bytes([0x80 | 14 << 3 | 7, *groups, number])
    memory = laid(LAYOUTS[11], table, 50, b"f", 1)
    place = CODE + (LAYOUTS[11].instructions or 0)
    line = 50 + step
    if line > 0:
        assert Codes(memory, 11, LAYOUTS[11], KIND).frame(CODE, place).line == line
    else:
        with pytest.raises(UnreadableError):
            Codes(memory, 11, LAYOUTS[11], KIND).frame(CODE, place)


@given(MINORS, st.binary(min_size=8, max_size=4096), st.integers(0, 1 << 32))
def test_a_whole_process_of_any_bytes_takes_a_bounded_number_of_reads(
    minor: int, raw: bytes, seed: int
) -> None:
    """Whatever is asked for lies somewhere in `raw`, as if that went on for ever."""

    class Endless(Laid):
        def read(self, address: int, size: int) -> bytes:
            self.reads += 1
            if not 0 <= size <= MAX_READ_BYTES:
                raise UnreadableError
            at = (address ^ seed) % len(raw)
            return (raw * (size // len(raw) + 2))[at : at + size]

    memory = Endless({})
    interpreter = Interpreter.__new__(Interpreter)
    interpreter.memory, interpreter.minor = memory, minor
    interpreter._layout, interpreter._runtime = LAYOUTS[minor], 4096
    interpreter._size, interpreter._call_size = 256, 256
    kind = int.from_bytes(memory.read(CODE + LAYOUTS[minor].header - 8, 8), "little")
    interpreter._codes = Codes(memory, minor, LAYOUTS[minor], kind)
    try:
        for thread in interpreter.threads():
            for frame in interpreter.stack(thread):
                assert 0 < frame.line <= MAX_LINE
                assert len(frame.file) <= MOST_NAMED
    except (UnreadableError, NoMemoryError):
        pass
    assert memory.reads < 50_000


def test_a_walk_through_a_table_ends_with_the_time_of_the_read() -> None:
    memory = ProcessMemory("/proc/self", time.monotonic() + 0.02)
    with pytest.raises(UnreadableError):
        for _ in memory.timely(range(10**8)):
            pass


@pytest.mark.skipif(sys.version_info < (3, 11), reason="another format")
@pytest.mark.parametrize("groups", [7, 5000])
def test_a_line_of_thousands_of_digits_costs_its_own_stack(groups: int) -> None:
    with (
        program(CODE_WITH_TABLE, entry(groups).hex()) as process,
        StackReader(PROC, PATIENCE_SECONDS) as it,
    ):
        result = until(
            lambda: it.read([started(process.pid)], ())[process.pid] == [] or None, "no stack"
        )
        assert result
        with program("ready()\nos.read(0, 1)") as other:
            until(lambda: it.read([started(other.pid)], ())[other.pid], "the stack of another")


def test_a_function_may_be_in_a_file_without_a_name() -> None:
    with (
        program('exec(compile("ready()\\nos.read(0, 1)", "", "exec"))') as process,
        StackReader(PROC, PATIENCE_SECONDS) as reader,
    ):

        def place() -> tuple[str, int] | None:
            result = reader.read([started(process.pid)], ())[process.pid]
            assert not isinstance(result, UnreadableReason)
            return (result[0].frames[0].file, result[0].frames[0].line) if result else None

        assert until(lambda: (at := place()) and at[1] == 2 and at, "its second line") == ("", 2)


SLEEPS = "ready()\nos.read(0, 1)"
NOT_OURS = "its owner may not be that of all holders of the GPU"


class TestOwners:
    """Mains and helpers; those of root have no pod, container or job."""

    def test_helpers_of_another_user_are_not_read(self) -> None:
        with (
            program(SLEEPS, way=as_user(NOBODY)) as main,
            program(SLEEPS, way=as_user(NOBODY)) as own,
            program(SLEEPS) as roots,
            StackReader(PROC, PATIENCE_SECONDS) as reader,
        ):
            others = [started(item.pid) for item in (roots, roots, own)]
            result = reader.read([started(main.pid)], others)
            assert {*result} == {main.pid, own.pid}
            assert {*reader.read([started(roots.pid)], others)} == {roots.pid}

    def test_mains_of_several_owners_are_not_read(self) -> None:
        with (
            program(SLEEPS, way=as_user(NOBODY)) as process,
            program(SLEEPS) as roots,
            StackReader(PROC, PATIENCE_SECONDS) as reader,
        ):
            mains = [started(process.pid), started(roots.pid)]
            assert reader.read(mains, mains) == {process.pid: NOT_OURS, roots.pid: NOT_OURS}
            assert reader.read(mains[:1], ())[process.pid] != NOT_OURS

    def test_a_process_that_changed_its_user_for_good_belongs_to_the_new_one(self) -> None:
        """The kernel gives its `mem` to root, as the process may still hold data of root's."""
        changed = f"os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\n{SLEEPS}"
        with (
            program(changed) as main,
            program(SLEEPS) as roots,
            program(SLEEPS, way=as_user(NOBODY)) as own,
            StackReader(PROC, PATIENCE_SECONDS) as reader,
        ):
            result = reader.read([started(main.pid)], [started(roots.pid), started(own.pid)])
            assert {*result} == {main.pid, own.pid}
            assert not any(isinstance(item, UnreadableReason) for item in result.values())

    @pytest.mark.parametrize("ids", [(NOBODY, 0, 0), (0, NOBODY, 0), (NOBODY, NOBODY, 0)])
    def test_a_process_of_several_users_has_no_owner(self, ids: tuple[int, int, int]) -> None:
        with (
            program(f"os.setresuid{ids}\n{SLEEPS}") as main,
            program(SLEEPS) as roots,
            StackReader(PROC, PATIENCE_SECONDS) as reader,
        ):
            result = reader.read([started(main.pid)], [started(roots.pid)])
            assert result == {main.pid: NOT_OURS}

    @pytest.mark.parametrize(
        ("tenant", "reads_roots"), [(("", ""), False), (("", "7"), False), (("pod", ""), True)]
    )
    def test_root_is_another_owner_but_in_a_pod(
        self, tenant: tuple[str, str], *, reads_roots: bool
    ) -> None:
        """Root's processes in the groups of a Slurm job are slurmstepd and sshd."""
        with (
            program(SLEEPS, way=as_user(NOBODY)) as user,
            program(SLEEPS) as roots,
            StackReader(PROC, PATIENCE_SECONDS, lambda _: tenant) as reader,
        ):
            both = [started(user.pid), started(roots.pid)]
            for main in both:
                result = reader.read([main], both)
                assert {*result} == ({user.pid, roots.pid} if reads_roots else {main[0]})

    def test_users_within_the_namespace_of_a_user_are_that_user(self) -> None:
        """A container without root, whose program runs as www-data."""
        code = f"""
def become(*ids):
    os.setresgid(*ids)
    os.setresuid(*ids)
    ctypes.CDLL(None).prctl(4, 1)  # PR_SET_DUMPABLE
os.setgroups([])
become(1000, 1000, 1000)
ready(ctypes.CDLL(None).unshare(0x10000000))  # CLONE_NEWUSER
told()
become(33, 33, 33)
{SLEEPS}"""
        with (
            program(code) as main,
            program(SLEEPS, way=as_user(1000)) as own,
            StackReader(PROC, PATIENCE_SECONDS) as reader,
        ):
            if main.words != ["0"]:
                missing("no user namespace may be made")
            for name in ("uid_map", "gid_map"):
                Path(f"/proc/{main.pid}/{name}").write_text("0 1000 1\n1 100000 65536\n")
            main.ask()
            result = reader.read([started(main.pid)], [started(own.pid)])
            assert {*result} == {main.pid, own.pid}
            assert not any(isinstance(item, UnreadableReason) for item in result.values())

    def test_a_pid_that_is_anothers_by_now_is_not_read(self) -> None:
        with program(SLEEPS) as process, StackReader(PROC, PATIENCE_SECONDS) as reader:
            pid, ticks = started(process.pid)
            assert reader.read([(pid, (ticks or 0) - 1)], ()) == {pid: "it has ended"}
            assert reader.read([(pid, ticks)], ())[pid] != "it has ended"

    def test_one_that_hangs_in_an_execve_does_not_hold_up_the_reader(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for item in (stack_reads, proc_reads):
            monkeypatch.setattr(item, "_timeout", 0.25)
        fields: dict[int, object] = {}

        def read(mains: Sequence[Started]) -> None:
            with StackReader(PROC, PATIENCE_SECONDS) as reader:
                fields.update(reader.read(mains, ()))

        with unanswering(tmp_path, FLUSH) as server, program(EXECUTES, tmp_path / "file") as bad:
            mains = [started(bad.pid)]
            bad.tell()
            until(lambda: server.ask("?"), "that it closes the file")
            reading = threading.Thread(target=read, args=(mains,), daemon=True)
            reading.start()
            try:
                until(lambda: not reading.is_alive(), "the end of the read")
                assert fields == {bad.pid: "its memory does not answer"}
            finally:
                server.tell("answer")
