import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from sim.verilated import toolchain
from sim.verilated.processes import EndedError, ended_by_signals, in_parallel, is_alive, run, status
from tests.refusals import refuses


def test_run_shows_the_end_of_output_and_log(tmp_path):
    (tmp_path / "tool.log").write_text("from the log\n")
    program = "print('from the output'); raise SystemExit(3)"
    expected = "exit code 3\nfrom the output\n--- end of tool.log ---\nfrom the log"
    with pytest.raises(toolchain.ToolError, match=expected):
        toolchain.run([sys.executable, "-c", program], cwd=tmp_path, log=tmp_path / "tool.log")


def test_run_says_what_cannot_be_started(tmp_path):
    with pytest.raises(toolchain.ToolError, match=r"^/no/such/program could not be started: .*No such file"):
        run(["/no/such/program"], cwd=tmp_path)


def test_in_parallel_keeps_the_order():
    assert in_parallel(lambda number: number * number, range(9)) == [number * number for number in range(9)]


def test_in_parallel_ends_what_goes_on_after_a_failure(tmp_path):
    begun = time.monotonic()

    def work(number):
        if number == 1:
            raise ValueError("number 1")
        run(["sleep", "300"], cwd=tmp_path)

    refuses("number 1", in_parallel, work, range(2))
    assert time.monotonic() - begun < 30


#: Script that ignores the request to terminate and starts another program.
STUBBORN = """
import pathlib, signal, subprocess, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path("ready").touch()
time.sleep(1)
subprocess.run(["sleep", "300"])
"""


def test_in_parallel_ends_programs_that_ignore_it(tmp_path):
    """Programs that ignore the request to terminate are killed, together with programs that they start meanwhile."""
    begun = time.monotonic()

    def work(number):
        if number == 1:
            while not (tmp_path / "ready").exists():
                assert time.monotonic() < begun + 60
                time.sleep(0.01)
            raise ValueError("number 1")
        run([sys.executable, "-c", STUBBORN], cwd=tmp_path)

    refuses("number 1", in_parallel, work, range(2))
    assert time.monotonic() < begun + 100


#: Script that calls in_parallel many times, while a signal raises an exception at some point of each call.
INTERRUPTED = """
import faulthandler
import random
import signal
import sys
import time
from sim.verilated.processes import in_parallel

class Interrupted(BaseException):
    pass

def interrupt(number, frame):
    raise Interrupted

faulthandler.dump_traceback_later(50, exit=True)
signal.signal(signal.SIGALRM, interrupt)
generator, interrupted = random.Random(int(sys.argv[1])), 0
for _ in range(3000):
    try:
        signal.setitimer(signal.ITIMER_REAL, generator.uniform(1e-5, 6e-4))
        in_parallel(lambda number: time.sleep(0.0002), range(8))
        signal.setitimer(signal.ITIMER_REAL, 0)
    except Interrupted:
        interrupted += 1
print(interrupted)
"""


def test_in_parallel_can_be_interrupted_anywhere():
    """Wherever a signal raises its exception, all threads are joined, and no thread waits for a lock forever."""
    ended = subprocess.run([sys.executable, "-c", INTERRUPTED, "1"], cwd=Path(__file__).parents[3],
                           capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) > 1000


#: Script that prints its handler of SIGTERM.
ASKED = "import signal; print(int(signal.getsignal(signal.SIGTERM)))"


class TestSignals:
    def test_exit_code(self):
        with pytest.raises(EndedError) as caught, ended_by_signals():
            signal.raise_signal(signal.SIGTERM)
        assert (caught.value.code, caught.value.signal) == (143, signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

    def test_while_it_is_tidied_up(self, tmp_path):
        """During cleanup, a second signal has no effect, but programs that are started during cleanup do not ignore
        it."""
        output = []

        def tidied_up():
            with contextlib.ExitStack() as stack:
                stack.callback(lambda: output.append(run([sys.executable, "-c", ASKED], cwd=tmp_path)))
                stack.callback(signal.raise_signal, signal.SIGTERM)
                signal.raise_signal(signal.SIGTERM)

        with pytest.raises(EndedError), ended_by_signals():
            tidied_up()
        assert output == [f"{int(signal.SIG_DFL)}\n"]

    def test_in_a_finalizer(self):
        """A signal ends the block even if it arrives during a finalizer, where Python discards exceptions."""
        class Signalled:
            def __del__(self):
                signal.raise_signal(signal.SIGTERM)

        def work():
            Signalled()
            time.sleep(60)

        hook = sys.unraisablehook
        with pytest.raises(EndedError) as caught, ended_by_signals():
            work()
        assert caught.value.signal == signal.SIGTERM
        assert sys.unraisablehook is hook

    def test_one_that_is_ignored_stays_so(self):
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            with ended_by_signals():
                signal.raise_signal(signal.SIGHUP)
        finally:
            signal.signal(signal.SIGHUP, before)

    def test_in_another_thread(self):
        before = []

        def work():
            with ended_by_signals():
                before.append(signal.getsignal(signal.SIGTERM))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join(timeout=10)
        assert before == [signal.SIG_DFL]


def test_states_of_processes():
    """The reported state of a process is right, whether the process is sleeping, stopped, has ended, or is no longer
    listed."""
    process = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
    try:
        assert status(process.pid)[1] == str(os.getpid())
        process.send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + 30
        while status(process.pid)[0] != "T":
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert is_alive(process.pid)
        process.kill()
        while is_alive(process.pid):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert status(process.pid)[0] == "Z"
    finally:
        process.kill()
        process.wait()
    assert status(process.pid) == []
    assert not is_alive(process.pid)
