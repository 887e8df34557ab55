"""A training loop on a virtual GPU, in which one line is slow.

    python planted.py KIND BOARD GPU PARENT FOLDER

The line is marked with `hot: KIND`; others take half as long.
"""

from __future__ import annotations

import logging
import mmap
import multiprocessing
import os
import pickle
import queue
import re
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.queues import Queue
from pathlib import Path

from gpu_bottleneck_exporter.demo.board.board import Board, VirtualGpu
from gpu_bottleneck_exporter.demo.board.work import TRAINING
from gpu_bottleneck_exporter.demo.orphans import die_with_parent

SLOW, FAST, STEP = 0.04, 0.02, 0.03
TEXT = "It was the best of times, it was the worst of times. " * 4000
log = logging.getLogger("planted")


def burn(seconds: float) -> int:
    end, total = time.thread_time() + seconds, 0
    while time.thread_time() < end:
        total += sum(range(500))
    return total


def shared(batches: queue.Queue[int] | Queue[int], decode: Callable[[], None]) -> None:
    while True:
        decode()
        batches.put(1)


def decode_in_thread() -> None:
    end = time.thread_time() + SLOW
    while time.thread_time() < end:
        sorted(range(300_000), key=float)  # hot: loader
    time.sleep(FAST)


def collate() -> None:
    end = time.thread_time() + SLOW
    while time.thread_time() < end:
        sum(map(float, range(100_000)))  # hot: collate
    time.sleep(FAST)


def work_in_process(batches: Queue[int], parent: int) -> None:
    die_with_parent(parent)
    shared(batches, collate)


def loader(gpu: VirtualGpu, _: Path) -> None:
    batches: queue.Queue[int] = queue.Queue(1)
    threading.Thread(target=shared, args=(batches, decode_in_thread), daemon=True).start()
    while True:
        batches.get()
        gpu.run(STEP, TRAINING)


def collating(gpu: VirtualGpu, _: Path) -> None:
    batches: Queue[int] = multiprocessing.get_context("fork").Queue(1)
    multiprocessing.Process(
        target=work_in_process, args=(batches, os.getpid()), daemon=True
    ).start()
    while True:
        batches.get()
        gpu.run(STEP, TRAINING)


def main_loop(gpu: VirtualGpu, _: Path) -> None:
    while True:
        end = time.thread_time() + SLOW
        while time.thread_time() < end:
            [number * number for number in range(200_000)]  # hot: main_loop
        burn(FAST)
        gpu.run(STEP, TRAINING)


def logging_(gpu: VirtualGpu, folder: Path) -> None:
    logging.basicConfig(filename=folder / "log", filemode="w", level=logging.INFO)
    losses = [number / 7 for number in range(20_000)]
    while True:
        for _ in range(6):
            log.info("losses %s", losses)  # hot: logging
        burn(FAST / 2)
        os.truncate(folder / "log", 0)
        gpu.run(STEP, TRAINING)


def tokeniser(gpu: VirtualGpu, _: Path) -> None:
    words = re.compile(r"\w+|[^\w\s]+")
    while True:
        end = time.thread_time() + SLOW
        while time.thread_time() < end:
            words.findall(TEXT)  # hot: tokeniser
        burn(FAST / 2)
        gpu.run(STEP, TRAINING)


def lock(gpu: VirtualGpu, _: Path) -> None:
    held = threading.Lock()

    def hold() -> None:
        while True:
            with held:
                time.sleep(1.5 * SLOW)
            time.sleep(0.001)

    threading.Thread(target=hold, daemon=True).start()
    while True:
        with held:  # hot: lock
            pass
        burn(FAST / 4)
        gpu.run(STEP / 2, TRAINING)


def checkpoint(gpu: VirtualGpu, _: Path) -> None:
    weights = [float(number) for number in range(1_000_000)]
    while True:
        # Into memory: on a slow disk, opening and closing a file may take longer.
        with tempfile.SpooledTemporaryFile() as file:
            pickle.dump(weights, file)  # hot: checkpoint
        burn(FAST / 4)
        gpu.run(STEP, TRAINING)


def counting(_: VirtualGpu, folder: Path) -> None:
    """A loop that counts what it gets done, and never rests."""
    with (folder / "count").open("r+b") as file, mmap.mmap(file.fileno(), 8) as counted:
        number = 0
        while True:
            [n * n for n in range(200)]
            number += 1
            struct.pack_into("q", counted, 0, number)


KINDS = {
    "loader": loader,
    "collate": collating,
    "main_loop": main_loop,
    "logging": logging_,
    "tokeniser": tokeniser,
    "lock": lock,
    "checkpoint": checkpoint,
}


def hot_line(kind: str) -> int:
    """The number of the slow line."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(n for n, line in enumerate(lines, 1) if line.endswith(f"# hot: {kind}"))


if __name__ == "__main__":
    kind, board, index, parent, folder = sys.argv[1:]
    die_with_parent(int(parent))
    gpu = Board(Path(board)).gpus[int(index)]
    gpu.hold(os.getpid(), 2**32)
    {**KINDS, "counting": counting}[kind](gpu, Path(folder))
