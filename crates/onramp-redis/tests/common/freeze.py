"""Stops threads of a running program by ptrace, while its other threads go on.

freeze.py PID NAME: stops the threads of process PID whose names begin with NAME, prints their
number, and lets them go on at the end of standard input. Tests of the daemon's fleet import it.
"""

import ctypes, os, sys

SEIZE, INTERRUPT, DETACH, WALL = 0x4206, 0x4207, 17, 0x40000000

trace = ctypes.CDLL(None, use_errno=True).ptrace
trace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
trace.restype = ctypes.c_long


def ptrace(request, tid):
    if trace(request, tid, None, None):
        number = ctypes.get_errno()
        raise OSError(number, f"ptrace {request:#x} of thread {tid}: {os.strerror(number)}")


def named(pid, name):
    """The threads of a process whose names begin with `name`."""
    found = []
    for tid in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{tid}/comm") as file:
                if file.read().startswith(name):
                    found.append(int(tid))
        except (FileNotFoundError, ProcessLookupError):
            pass  # It has ended meanwhile.
    return found


# The system calls in which a thread waits: futex, epoll_wait, epoll_pwait, epoll_pwait2.
WAITS = {"202", "232", "281", "441"} if os.uname().machine == "x86_64" else {"98", "22", "441"}


def waits(pid, tid):
    with open(f"/proc/{pid}/task/{tid}/syscall") as file:
        return file.read().split()[0] in WAITS


def freeze(pid, name, waiting=False):
    """Stops the threads, also those that one of them starts meanwhile, and returns them. With
    `waiting`, stops each while it waits in the kernel, so that it holds no lock for which the
    program's other threads could wait. The same thread of this program has to thaw them."""
    frozen = []
    while new := [tid for tid in named(pid, name) if tid not in frozen]:
        for tid in new:
            try:
                ptrace(SEIZE, tid)
                ptrace(INTERRUPT, tid)
                os.waitpid(tid, WALL)
                if waiting and not waits(pid, tid):
                    ptrace(DETACH, tid)
                    continue
            except ProcessLookupError:
                continue  # It has ended meanwhile.
            frozen.append(tid)
    return frozen


def thaw(tids):
    for tid in tids:
        ptrace(DETACH, tid)


if __name__ == "__main__":
    frozen = freeze(int(sys.argv[1]), sys.argv[2], waiting=True)
    print(len(frozen), flush=True)
    sys.stdin.read()
    thaw(frozen)
