# SPDX-License-Identifier: Apache-2.0
"""Starts MPI jobs on this machine and leaves nothing of them behind.

What tests need to know about the launchers (Open MPI 4.1.4, MPICH 4.0.2):
- Open MPI refuses to run as root, and more ranks than cores, unless told otherwise; ranks that spin must yield.
- A rank that is killed ends the job by default, and the others with it, with a status other than 0. `recovery=True` has
  the survivors live; the launcher's status says nothing then. Survivors therefore write files, which tests read.
- Open MPI puts each rank in a process group of its own, so killing the launcher's group misses them: whatever carries
  this job's mark in its environment is looked for and killed, one by one.
"""

import contextlib
import dataclasses
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
import uuid

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("ROUTEPACK_MPI_BIN", ROOT / "build" / "mpi" / "bin"))
LAUNCHERS = {"openmpi": "mpirun.openmpi", "mpich": "mpiexec.hydra"}
MARK = "ROUTEPACK_TEST_JOB"


@dataclasses.dataclass
class Job:
    """What is left of a job: the launcher's status (None when it ran out of time) and what it printed."""

    returncode: int | None
    stdout: str
    stderr: str
    seconds: float
    leftovers: list[str]  # command lines of processes that outlived the launcher, and had to be killed

    def check(self) -> "Job":
        assert self.returncode == 0, f"status {self.returncode}\n{self.stdout}{self.stderr}"
        assert self.leftovers == []
        return self


def program(name: str, flavour: str) -> pathlib.Path:
    """tests/mpi/<name>.cc, or routepack itself, built for this MPI."""
    if name == "routepack":
        return BIN / {"openmpi": "routepack-mpi", "mpich": "routepack-mpich"}[flavour]
    return BIN / f"{name}-{flavour}"


def flavours() -> list[str]:
    """Those to test: the one that the environment names, or all that were built and have a launcher."""
    if wish := os.environ.get("ROUTEPACK_MPI_FLAVOUR"):
        return [wish]
    return [f for f in LAUNCHERS if shutil.which(LAUNCHERS[f]) and program("transport_check", f).exists()]


def command(flavour: str, ranks: int, argv: list, *, recovery: bool = False, options=()) -> list[str]:
    """The launcher with its arguments; `options` are further ones of its own."""
    if flavour == "openmpi":
        # Without --mca orte_abort_on_non_zero_status 0 the first survivor that ends with another status ends the rest.
        more = ["--enable-recovery", "--mca", "orte_abort_on_non_zero_status", "0"] if recovery else []
        return [LAUNCHERS[flavour], *more, *options, "--oversubscribe", "-np", str(ranks), *map(str, argv)]
    if recovery:
        # Hydra kills the other ranks of a host all the same when it sees that one ended by a signal, and sends them
        # SIGUSR1 when one closed its connection. A shell around each rank makes an exit status of the signal.
        argv = ["/bin/sh", "-c", "trap '' USR1; \"$@\"; exit $?", "rank", *argv]
    more = ["-disable-auto-cleanup"] if recovery else []
    return [LAUNCHERS[flavour], *more, *options, "-n", str(ranks), *map(str, argv)]


def environment(flavour: str, folder: str, *, tcp: bool = False) -> dict[str, str]:
    """All traffic stays on this machine: shared memory, or TCP over the loopback interface."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PMI_", "PMIX_", "MPI", "HYDRA_", "UCX_"))}
    if flavour == "openmpi":
        env |= {
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_mpi_yield_when_idle": "1",
            "OMPI_MCA_hwloc_base_binding_policy": "none",
            "OMPI_MCA_pml": "ob1",
            "OMPI_MCA_btl": "self,tcp" if tcp else "self,vader",
            "OMPI_MCA_btl_tcp_if_include": "lo",
            "OMPI_MCA_oob_tcp_if_include": "lo",
            "OMPI_MCA_plm": "isolated",  # no ssh, no batch system
            "OMPI_MCA_orte_tmpdir_base": folder,
            "OMPI_MCA_btl_vader_backing_directory": folder,
        }
    else:
        env |= {
            "HYDRA_IFACE": "lo",
            "HYDRA_LAUNCHER": "fork",
            "HYDRA_TMPDIR": folder,
            "UCX_TLS": "self,tcp" if tcp else "self,sm",
            "UCX_NET_DEVICES": "lo",
            "UCX_LOG_LEVEL": "fatal",
        }
    return env


def marked(mark: str) -> dict[int, str]:
    """Processes of a job: pid and command line. Those that have ended and wait for their parent do not count."""
    found = {}
    wanted = f"{MARK}={mark}".encode()
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return found


def wait(launcher: subprocess.Popen, timeout: float, until) -> int | None:
    """The launcher's status; None when `until` says before that the job is over. @raises subprocess.TimeoutExpired"""
    if until is None:
        return launcher.wait(timeout)
    last = time.monotonic() + timeout
    while (status := launcher.poll()) is None and not until():
        if time.monotonic() > last:
            raise subprocess.TimeoutExpired(launcher.args, timeout)
        time.sleep(0.01)
    return status


def launch(flavour, ranks, argv, *, recovery=False, timeout, env=None, tcp=False, grace=5.0, prefix=(), options=(),
           until=None) -> Job:
    """Runs a job. After the launcher has ended, or `timeout` seconds, what is left of it has `grace` seconds to go.

    `prefix` stands in front of the launcher, `options` are further ones of its own. `until` is called again and again
    while the job runs; when it says true, all of the job is killed.
    """
    mark = uuid.uuid4().hex
    with tempfile.TemporaryDirectory(prefix="rp", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        variables = environment(flavour, folder, tcp=tcp) | {MARK: mark} | (env or {})
        with open(os.path.join(folder, "out"), "w+b") as out, open(os.path.join(folder, "err"), "w+b") as err:
            started = time.monotonic()
            line = [*prefix, *command(flavour, ranks, argv, recovery=recovery, options=options)]
            launcher = subprocess.Popen(line, env=variables, stdout=out, stderr=err, stdin=subprocess.DEVNULL,
                                        start_new_session=True)
            leftovers = {}
            try:
                returncode = wait(launcher, timeout, until)
                patience = time.monotonic() + grace
                while returncode is not None and (leftovers := marked(mark)) and time.monotonic() < patience:
                    time.sleep(0.02)
            except subprocess.TimeoutExpired:
                returncode = None
            finally:
                seconds = time.monotonic() - started
                while alive := marked(mark):  # until none comes back: a launcher may be starting some
                    for pid in alive:
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                    time.sleep(0.02)
                launcher.wait()
            texts = []
            for stream in (out, err):
                stream.seek(0)
                texts.append(stream.read().decode(errors="replace"))
    return Job(returncode, *texts, seconds, sorted(leftovers.values()))
