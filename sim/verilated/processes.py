"""Run programs for a build, and end them when the build ends.

If a signal ends this process, the programs that it started end as well: :func:`ended_by_signals` turns the signal
into an exception, and :func:`run` and :func:`in_parallel` end their programs on any exception.
"""

import _thread
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TypeVar

__all__ = ["PATIENCE", "EndedError", "ToolError", "ended_by_signals", "heard", "in_parallel", "is_alive", "run",
           "status"]

Item = TypeVar("Item")
Result = TypeVar("Result")

#: Signals that end a program.
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Number of seconds after a signal during which further signals do not interrupt cleanup.
PATIENCE = 3.0
#: Number of lines at the end of a failed program's output that an error message shows.
_TAIL = 40
#: Number of seconds that a program is given to end before it is killed.
_GRACE = 2.0
#: Number of seconds after which a signal is resent if Python has discarded its exception.
_AGAIN = 0.05
#: Polling interval in seconds while threads are ending.
_POLL = 0.001
#: Seconds that the main thread waits at a time. If a signal arrives between Python's check for signals and the system
#: call that waits, the call is not interrupted: the signal handler runs only after it returns.
_WAIT = 0.25


class _Group:
    """Programs started by one call of :func:`in_parallel`; none is started after the group has ended."""

    def __init__(self) -> None:
        self.running: set[subprocess.Popen[str]] = set()
        self.ended = False
        self.lock = threading.Lock()

    def end(self) -> None:
        """Start no more programs, and end the running programs."""
        with self.lock:
            self.ended = True
            running = list(self.running)
        for process in running:
            _end(process)


#: Group of each thread, if it has one.
_local = threading.local()


class ToolError(RuntimeError):
    """Raised when a program is missing or has failed."""


class EndedError(SystemExit):
    """Raised when a signal asks this process to end. Exit code: 128 + signal number, as in a shell."""

    def __init__(self, number: int):
        self.signal = signal.Signals(number)
        super().__init__(128 + number)


@contextlib.contextmanager
def heard(kind: type[BaseException], listen: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Resend a signal if its handler raised an exception in a finalizer, where Python discards it.

    Parameters
    ----------
    kind : type
        Exception type; its instances have an attribute ``signal`` with the signal number.
    listen : callable
        Called before the signal is resent.
    """
    before, active = sys.unraisablehook, True

    def send(number: int) -> None:
        time.sleep(_AGAIN)  # By then, the finalizer has returned; if not, the hook runs again.
        main = threading.main_thread().ident
        if active and main is not None:
            signal.pthread_kill(main, number)

    def hook(dropped: "sys.UnraisableHookArgs") -> None:
        number = getattr(dropped.exc_value, "signal", None)
        if isinstance(dropped.exc_value, kind) and number is not None:
            listen()
            _thread.start_new_thread(send, (number,))
        else:
            before(dropped)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        active, sys.unraisablehook = False, before


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Make SIGINT, SIGTERM and SIGHUP raise :class:`EndedError` in the main thread, to allow cleanup.

    Signals that are ignored (as under ``nohup``) or already handled by the program are not changed. If cleanup takes
    longer than :data:`PATIENCE` seconds, another signal ends the process immediately. Outside the main thread, this
    does nothing.
    """
    def end(number: int, frame: FrameType | None) -> None:
        # Cleanup must not be interrupted either. Programs would inherit SIG_IGN, but not this handler.
        asked = time.monotonic()

        def again(number: int, frame: FrameType | None) -> None:
            if time.monotonic() > asked + PATIENCE:
                os._exit(128 + number)

        for handled in _ENDING:
            if handled in before:
                signal.signal(handled, again)
        raise EndedError(number)

    def listen() -> None:
        for handled in before:
            signal.signal(handled, end)

    before: dict[int, signal._HANDLER] = {}
    if threading.current_thread() is threading.main_thread():
        for number in _ENDING:
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                before[number] = signal.signal(number, end)
    try:
        with heard(EndedError, listen) if before else contextlib.nullcontext():
            yield
    finally:
        for handled, handler in before.items():
            signal.signal(handled, handler)


def run(command: Sequence[str], *, cwd: Path, log: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    """Run a program until it ends, and return its output.

    Parameters
    ----------
    command : sequence of str
        Program and arguments.
    cwd : Path
        Working folder. Programs compiled to WebAssembly can only access files below it.
    log : Path or None
        Log file written by the program. Its last lines are included in error messages, since the standard output of a
        program compiled to WebAssembly may be lost.
    env : mapping or None
        Environment variables, instead of the variables of this process.

    Raises
    ------
    ToolError
        The program cannot be started or fails.
    """
    group: _Group | None = getattr(_local, "group", None)
    with contextlib.nullcontext() if group is None else group.lock:
        if group is not None and group.ended:
            raise ToolError(f"{command[0]} was not started, since the build has ended")
        try:
            process = subprocess.Popen(command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                       stdin=subprocess.DEVNULL, text=True, errors="replace")
        except OSError as error:
            raise ToolError(f"{command[0]} could not be started: {error}") from None
        if group is not None:
            group.running.add(process)
    try:
        output = _output(process)
    except BaseException:
        _end(process)
        raise
    finally:
        if process.stdout is not None:
            process.stdout.close()
        if group is not None:
            group.running.discard(process)
    if process.returncode != 0:
        lines = output.splitlines()[-_TAIL:]
        if log is not None and log.exists():
            lines += [f"--- end of {log.name} ---", *log.read_text(errors="replace").splitlines()[-_TAIL:]]
        program = " ".join(command[:4])
        raise ToolError("\n".join([f"{program} ... failed with exit code {process.returncode}", *lines]))
    return output


def in_parallel(work: Callable[[Item], Result], items: Iterable[Item], *, most: int | None = None) -> list[Result]:
    """Return the results of ``work`` in item order; up to ``most`` run at a time (default: one per core).

    If an item fails or this thread is interrupted, no more items are started, and the programs that :func:`run` has
    started for other items are ended.
    """
    left = list(enumerate(items))[::-1]
    results: dict[int, Result] = {}
    errors: list[BaseException] = []
    group = _Group()

    def serve(ended: threading.Lock) -> None:
        _local.group = group
        try:
            while True:
                with group.lock:
                    if group.ended or not left:
                        return
                    number, item = left.pop()
                results[number] = work(item)
        except BaseException as error:  # raised again in the caller's thread
            errors.append(error)
            group.end()
        finally:
            finished.append(ended)
            ended.release()

    # An exception raised by a signal can leave a lock of an executor or a Thread acquired forever, since their
    # methods are written in Python: joining such a thread would wait forever. A plain lock is acquired atomically.
    threads: list[threading.Lock] = []
    finished: list[threading.Lock] = []
    try:
        for _ in range(min(most or os.cpu_count() or 1, len(left))):
            ended = threading.Lock()
            ended.acquire()
            _thread.start_new_thread(serve, (ended,))
            threads.append(ended)
        for ended in threads:
            while not ended.acquire(timeout=_WAIT):
                pass
    except BaseException:
        group.end()
        while len(finished) < len(threads):  # a thread may have acquired its lock here
            time.sleep(_POLL)
        raise
    if errors:
        raise errors[0]
    return [results[number] for number in range(len(results))]


def _output(process: subprocess.Popen[str]) -> str:
    """Wait for a program to end, and return its output."""
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=_WAIT)[0]


def _end(process: subprocess.Popen[str]) -> None:
    """End a program and its descendants, since compiler drivers do not end the programs that they start."""
    if process.poll() is None:
        family = _stopped(process.pid)
        for number in (signal.SIGTERM, signal.SIGCONT):
            for member in family:
                _send(member, number)
        try:
            process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            for member in {*family, *_stopped(process.pid)}:  # more processes may have started meanwhile
                _send(member, signal.SIGKILL)
            # If a signal raises an exception, Popen's wait lock may stay acquired; this call would then wait forever.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE)


def status(process: int) -> list[str]:
    """Fields of a process from its state onwards, as in proc(5); empty if the process has ended or /proc is missing.
    """
    try:
        return Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def is_alive(process: int) -> bool:
    """Whether a process is alive and not a zombie. Always False without /proc."""
    return status(process)[:1] not in ([], ["Z"], ["X"])


def _stopped(process: int) -> list[int]:
    """Stop a process and all descendants that the system lists, and return their process IDs.

    A stopped process cannot start more processes in the meantime.
    """
    _send(process, signal.SIGSTOP)
    try:
        deadline = time.monotonic() + _GRACE
        while time.monotonic() < deadline:
            fields = status(process)
            if not fields or fields[0] in "TtZX":
                break
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:  # it has ended, or /proc does not exist
        children = []
    return [process, *(number for child in children for number in _stopped(int(child)))]


def _send(process: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, number)
